"""The entry script of job s3: a GPT cut into stages, in as many copies as the ranks that are left allow.

A loop of one's own, made of dtlab's parts. The job's distribution says how many stages and micro-batches
there are; the hyper-parameters come from SM_HPS, the checkpoints of an earlier attempt lie in
/opt/ml/checkpoints.
"""

import os
import time
from dataclasses import dataclass, fields
from typing import Any

import torch

import dtlab
from dtlab.data.text import load_text
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import data_rank
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.split import split
from dtlab.sagemaker.hyperparameters import from_environment, read
from dtlab.sagemaker.rank_script import put_back
from dtlab.sagemaker.script import STOPPED, folder_of
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.full_state import gather_state, scatter_state
from dtlab.train.safetensors_io import export_model
from dtlab.train.signals import StopSignals


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters; ``batch-size`` in a job is ``batch_size`` here."""

    batch_size: int = 128  # samples of one step over all ranks
    epochs: int = 15
    max_steps: int = 0  # 0: as many as the epochs have
    learning_rate: float = 3e-4
    warmup_steps: int = 2000
    checkpoint_steps: int = 0  # 0: by the clock alone
    dim: int = 256
    num_layers: int = 4
    num_heads: int = 4
    sequence: int = 128

    @classmethod
    def of_job(cls) -> "Settings":
        texts = {name.replace("-", "_"): text for name, text in from_environment(os.environ).items()}
        kinds = {entry.name: entry.type for entry in fields(cls)}
        unknown = [name for name in texts if name not in kinds]
        if unknown:
            raise UserError(f"hyperparameters.{unknown[0]}: unknown; there are {', '.join(kinds)}")
        return cls(**read(texts, kinds))


class WholeState:
    """Weights and moments of all stages as one part of a checkpoint: rank 0 holds them, so any layout can go
    on."""

    per_rank = True

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        return gather_state(self.model, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scatter_state(state, self.model, self.optimizer)

    def rederive(self, state: dict[str, Any], *, step: int, rank: int, world_size: int) -> None:
        self.load_state_dict(state if rank == 0 else {})


def main() -> int:
    put_back(os.environ)
    settings = Settings.of_job()
    shape: dict[str, Any] = {"sequence": settings.sequence, "dim": settings.dim}
    shape |= {"num_layers": settings.num_layers, "num_heads": settings.num_heads}
    stages, micro_batches = (int(os.environ.get(f"DTLAB_{n}", "1")) for n in ("STAGES", "MICRO_BATCHES"))
    every_seconds = float(os.environ.get("DTLAB_CHECKPOINT_SECONDS", "1800"))
    with StopSignals() as signals, dtlab.world(seed=0) as w:
        mesh = build_mesh(ParallelDims(pp=stages, dp_replicate=-1))
        replica, replicas = data_rank(mesh)
        windows = load_text(settings.sequence, root=folder_of(os.environ, "data")).train
        torch.manual_seed(0)  # the same weights on every rank
        model = GPT(**shape).to(w.device)
        pipe = pipeline(
            split(model, stages),
            build_schedule(os.environ.get("DTLAB_SCHEDULE", "1f1b"), stages, micro_batches),
            lambda logits, targets: token_loss(logits, targets).total,
            engine="by_hand" if w.device.type == "cpu" else "torch",
            group=mesh["pp"].get_group(),
            replicas=mesh["dp_replicate", "dp_shard"],
        )
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=settings.learning_rate)
        sampler = dtlab.GlobalBatchSampler(
            len(windows), settings.batch_size, rank=replica, world_size=replicas, tail="drop"
        )
        progress = {"step": 0}
        parts = {"progress": progress, "sampler": sampler, "whole": WholeState(pipe, optimizer)}
        total = settings.max_steps or settings.epochs * sampler.steps_per_epoch
        with Checkpointer(folder_of(os.environ, "checkpoints") / "run", keep=2) as checkpoints:
            info = checkpoints.load(parts)
            if info is not None and w.is_main:
                w.log.info("goes on from %s", info)
            saved_at = time.monotonic()
            while progress["step"] < total:
                for indices in sampler:
                    step = progress["step"]
                    for group in optimizer.param_groups:
                        group["lr"] = settings.learning_rate * min(1.0, (step + 1) / settings.warmup_steps)
                    batch = windows.take(indices).to(w.device)
                    tokens = settings.batch_size * settings.sequence
                    optimizer.zero_grad()
                    loss = pipe.step(batch.tokens, batch.targets, divide_by=tokens)
                    optimizer.step()
                    progress["step"] = step = step + 1
                    if w.is_main and step % 20 == 0:
                        print(f"step={step} loss={loss.item():.4f}", flush=True)
                    is_due = w.is_main and time.monotonic() - saved_at >= every_seconds
                    is_due = is_due or bool(
                        settings.checkpoint_steps and step % settings.checkpoint_steps == 0
                    )
                    told = w.all_agree({"stop": signals.received is not None, "save": is_due}, "any")
                    if told["stop"] or told["save"]:
                        reason = "stop" if told["stop"] else "interval"
                        checkpoints.save(parts, step, samples=step * settings.batch_size, reason=reason)
                        saved_at = time.monotonic()
                    if told["stop"]:
                        return STOPPED.get(signals.received or "SIGTERM", 143)
                    if step >= total:
                        break
        state = gather_state(pipe)
        if w.is_main:
            whole = GPT(**shape)  # the stages keep what is left of the other
            whole.load_state_dict(state["model"])
            export_model(whole, folder_of(os.environ, "model") / "model.safetensors")
        w.barrier()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
