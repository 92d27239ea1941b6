"""The training step and the loop around it, on any number of ranks (lessons 03 and 05).

The arithmetic is exact: the gradient of one step is the gradient of the sum of losses over the global
batch divided by its row count (or token count), whatever the number of ranks and micro-batches and however
unevenly a tail is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.data.batch import Batch
from dtlab.data.rows import rows_of
from dtlab.data.stream_loader import AnyLoader
from dtlab.errors import UserError, require_whole
from dtlab.parallel.communication import AllReduceClock
from dtlab.parallel.ddp import data_parallel, unwrap
from dtlab.parallel.pipelined_model import PipelinedModel
from dtlab.parallel.sampled_communication import SampledClock
from dtlab.ranks import agreement
from dtlab.train.arguments import check_alike, check_arguments, check_rows
from dtlab.train.flags import Flags
from dtlab.train.layout import RunLayout
from dtlab.train.losses import Loss, binary_cross_entropy, defaults_by_name
from dtlab.train.meter import Meter, Reading
from dtlab.train.metrics import Metrics, evaluate
from dtlab.train.non_finite import NonFinite, NonFinitePolicy, check_losses
from dtlab.train.pipelined_step import PipelinedStep
from dtlab.train.precision import Precision, pick_precision
from dtlab.train.progress import Progress
from dtlab.train.recompute import recompute_blocks
from dtlab.train.schedule import Schedule
from dtlab.train.settle import settle_buckets
from dtlab.train.step import FullStep
from dtlab.train.step_errors import torch_errors_named
from dtlab.train.steps import Watcher, global_steps, require_steps
from dtlab.train.tally import EpochResult, Tally

__all__ = ["EpochResult", "Trainer", "Watcher", "global_steps"]


class Trainer:
    """Trains ``model`` with ``optimizer`` on the ranks of the current world.

    Args:
        model: a plain module; it is replicated over the ranks by :func:`dtlab.data_parallel`.
        optimizer: built on ``model.parameters()``.
        loss: takes model and batch, returns the SUM of the rows' (or tokens') losses.
        engine: ``"torch"`` (DDP) or ``"by_hand"``.
        precision: "fp32", "bf16", "fp16", "auto", or a :class:`Precision`; None is fp32.
        clip: largest norm of all gradients together; None does not clip.
        schedule: sets the rate before each step; None leaves the optimizer's rate alone.
        micro_batch: most rows of one forward on one rank; None does not cut.
        count: tokens in a batch of this rank; the loss is then divided by all ranks' tokens instead of rows.
            That takes one small message a step, which hides behind the first forward.
        checkpoint_activations: compute the blocks' activations again in backward: True for ``model.blocks``,
            or names of submodules.
        compile: ``torch.compile`` the model; a text names the backend.
        non_finite: what a gradient that is not finite does: "stop", "skip" or "roll_back". In plain fp32
            without clipping, "stop" looks at the losses about once a second and not at every gradient.
        find_unused: allow parameters that a step does not use.
        seed: let dropout depend on (seed, step, rank); None goes on with the generators as they are.
        flags: shared flags of the run; by default the trainer makes its own.
        log_every: steps between two readings.
        on_batch: called with every batch that reaches the model (sample coverage uses it).
        on_reading: called with every reading.
        tell: takes a line when a step is skipped or rolled back; by default a DtlabWarning.
        layout: the one that ``model`` was laid out in by :func:`dtlab.train.layout.lay_out`, which then has
            applied ``checkpoint_activations``; ``engine`` and ``compile`` are for whole models.

    Raises:
        UserError: an argument is out of range or does not fit the model.

    >>> trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))  # doctest: +SKIP
    >>> for batch, rows in global_steps(loader):                                  # doctest: +SKIP
    ...     trainer.step(batch, rows)
    """

    @defaults_by_name
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss: Loss = binary_cross_entropy,
        engine: Literal["torch", "by_hand"] = "torch",
        precision: Precision | str | None = None,
        clip: float | None = None,
        schedule: Schedule | None = None,
        micro_batch: int | None = None,
        count: Callable[[Any], float | Tensor] | None = None,
        checkpoint_activations: bool | Sequence[str] = False,
        compile: bool | str = False,
        non_finite: NonFinitePolicy = "stop",
        find_unused: bool = False,
        seed: int | None = None,
        flags: Flags | None = None,
        log_every: int = 100,
        on_batch: Callable[[Batch], None] | None = None,
        on_reading: Callable[[Reading], None] | None = None,
        tell: Callable[[str], None] | None = None,
        show_progress: bool | None = None,
        layout: RunLayout | None = None,
    ) -> None:
        check_arguments(
            model, optimizer, loss=loss, clip=clip, schedule=schedule, micro_batch=micro_batch, count=count,
            seed=seed, log_every=log_every,
        )  # fmt: skip
        self.layout = layout if layout is not None and layout.mesh is not None else None
        """None for data parallelism alone, where every rank holds the whole model."""
        if self.layout is None:
            if checkpoint_activations:
                recompute_blocks(model, checkpoint_activations)
            if compile:
                model.compile(**({"backend": compile} if isinstance(compile, str) else {}))
            model = data_parallel(model, engine=engine, find_unused=find_unused)
        self.model = model
        self.clock = (
            AllReduceClock(model)
            if self.layout is None
            else SampledClock(optimizer.param_groups[0]["params"][0].device)
        )
        self.optimizer = optimizer
        self.rank, self.world_size = agreement.rank(), agreement.world_size()
        part, self._parts = self.rank, self.world_size  # whose samples, of how many parts
        if self.layout is not None:
            part, self._parts = self.layout.draw_rank, self.layout.data_size
        self.steps_done = 0
        """Steps taken, skipped ones included."""
        self.samples = 0
        """Samples of the steps that :meth:`train_epoch` took, over all ranks."""
        self.flags = Flags() if flags is None else flags
        self.tally = Tally(self._parts)
        self.schedule = schedule
        self._loss, self._count, self._stops = loss, count, non_finite == "stop"
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._parameters[0].device
        self._dtype = self._parameters[0].dtype
        self._scales: dict[int, Tensor] = {}
        if not isinstance(precision, Precision):
            # A gradient's norm that is computed anyway costs nothing to look at on a CPU.
            looks = non_finite != "stop" or (clip is not None and self._device.type == "cpu")
            precision = pick_precision(self._device, precision or "fp32", check_finite=looks)
            is_lean = precision.name == "fp32"
        else:
            is_lean = False
        if self.layout is not None and precision.uses_scaler:
            raise UserError("precision = 'fp16': ranks with parts of a model do not share one loss scale")
        self.precision = precision
        is_pipelined = isinstance(self.model, PipelinedModel)
        is_lean = is_lean and self._stops and schedule is None and not is_pipelined
        parts = {"model": unwrap(self.model), "optimizer": optimizer, "schedule": schedule}
        policy = NonFinite(non_finite, {n: p for n, p in parts.items() if p is not None}, tell=tell)
        full = (PipelinedStep if is_pipelined else FullStep)(
            self.model, optimizer, loss, precision=precision, clip=clip, schedule=schedule, count=count,
            micro_batch=micro_batch, flags=self.flags, non_finite=policy, seed=seed, rank=part,
            world_size=self._parts,
        )  # fmt: skip
        is_lean = is_lean and all(option is None for option in (clip, micro_batch, count, seed))
        check_alike(
            optimizer,
            schedule,
            {
                "clip": clip, "micro_batch": micro_batch, "count": count is not None,
                "precision": precision.name, "non_finite": non_finite, "find_unused": find_unused,
                "log_every": log_every,
            },
            is_whole=self.layout is None,
        )  # fmt: skip
        self._check = full.check
        self.full = None if is_lean else full
        """The step with everything, or None where nothing but the plain step was asked for."""
        self._on_batch, self._on_reading, self._log_every = on_batch, on_reading, log_every
        self._show = self.rank == 0 if show_progress is None else show_progress

    def step(self, batch: Batch, rows: int) -> Tensor:
        """One optimizer step; ``rows`` is the row count of the GLOBAL batch. Returns this rank's loss sum.

        ``batch`` holds this rank's rows, possibly none of them.

        Raises:
            NonFiniteError: on every rank, see ``non_finite``.
        """
        check_rows(rows_of(batch), rows)
        if isinstance(self.clock, SampledClock):
            with self.clock.step():
                return self._step(batch, rows)
        return self._step(batch, rows)

    def _step(self, batch: Batch, rows: int) -> Tensor:
        if self.full is not None:
            total = self.full(batch, rows, self.steps_done)
            self.steps_done += 1
            return total
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._check(self._loss(self.model, batch), rows_of(batch))
        # The ranks' gradients are averaged, so each rank's sum is scaled by ranks / rows. Handing the factor
        # to backward costs no extra operation in the graph.
        loss.backward(self._scales.get(rows) if rows in self._scales else self._scale(rows))
        self.optimizer.step()
        self.steps_done += 1
        return loss.detach()

    def _scale(self, rows: int) -> Tensor:
        scale = torch.tensor(self._parts / rows, device=self._device, dtype=self._dtype)
        self._scales[rows] = scale
        return scale

    def settle(self, batch: Batch) -> None:
        """Bring DDP's buckets into their final order (collective), so that a resumed run adds in that one.

        Call it before the first step and before loading a checkpoint, with any batch of training rows.
        """
        settle_buckets(self.model, lambda model: self._loss(model, batch))

    def train_epoch(
        self,
        loader: AnyLoader,
        *,
        label: str = "",
        max_steps: int | None = None,
        watch: Watcher | None = None,
    ) -> EpochResult:
        """Run from the loader's position to the end of its epoch, or for ``max_steps`` steps (0: none).

        A ``watch`` may end the pass earlier; the next call goes on, and its result counts both parts.

        Raises:
            NonFiniteError: on every rank, when the loss is not finite and the policy is to stop.
            UserError: this rank is out of memory, or ``max_steps`` is negative.
        """
        if max_steps is not None:
            require_whole("max_steps", max_steps, 0, "steps (or None for the whole epoch)")
        require_steps(loader)
        epoch = loader.sampler.epoch
        total = loader.sampler.steps_left if max_steps is None else min(loader.sampler.steps_left, max_steps)
        meter, tally = Meter(self.clock, loader), self.tally
        progress = Progress(total, label or f"epoch {epoch + 1}", show=self._show)
        tally.begin(meter)
        steps, finished = 0, True
        if not self.model.training:  # else parts that the user froze by eval() stay so
            self.model.train()
        with closing(progress), torch_errors_named(self.rank, lambda: self.steps_done):
            for batch, rows in global_steps(loader, total):
                if self._on_batch is not None:
                    self._on_batch(batch)
                loss_sum = self.step(batch, rows)
                weight = rows_of(batch) if self._count is None or self.full is None else self.full.counted
                if self.full is None or self.full.applied:
                    tally.add(loss_sum, weight, rows)
                else:
                    tally.skip(rows)  # a loss that is not finite would spoil the epoch's mean
                self.samples += rows
                steps += 1
                meter.add(rows)
                if steps % self._log_every == 0:
                    self._read(meter)
                if progress.active:
                    progress.update(steps, meter.samples_per_second)
                if watch is not None and self.steps_done >= watch.next_step and watch.look():
                    finished = steps == total
                    break
        self.check_finite()
        return tally.result(epoch + 1, finished=finished)

    def check_finite(self) -> None:
        """Stop when a loss since the last fold was not finite, on any rank (collective).

        Raises:
            NonFiniteError: on every rank, with the step and the parameters that are not finite.
        """
        if self._stops:
            check_losses(self.tally, unwrap(self.model), self.steps_done)

    def _read(self, meter: Meter) -> None:
        outcome = self.full.outcome if self.full is not None else None
        reading = replace(
            meter.read(self.steps_done),
            samples=self.samples,
            loss=self.tally.loss_since_last_reading(),
            lr=float(self.optimizer.param_groups[0]["lr"]),
            grad_norm=None if outcome is None or outcome.norm is None else float(outcome.norm),
        )
        if self._on_reading is not None:
            self._on_reading(reading)

    def evaluate(self, table: Batch, *, batch: int = 16384) -> Metrics:
        """Metrics of the model on ``table``; each row counts once."""
        metrics = evaluate(unwrap(self.model), table, batch=batch)
        assert metrics is not None
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Counters and sums of the epoch; call ``tally.fold()`` before. Equal on every rank."""
        return {"steps_done": self.steps_done, "samples": self.samples, "sums": self.tally.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting.

        Raises:
            UserError: the state is not that of a trainer.
        """
        expected = {"steps_done", "samples", "sums"}
        if set(state) != expected:
            raise UserError(
                f"trainer state has the keys {sorted(state)}; it needs exactly {sorted(expected)}"
            )
        self.steps_done, self.samples = int(state["steps_done"]), int(state["samples"])
        self.tally.load_state_dict(state["sums"])
