"""Does a layout of ranks train as one process does? The same small GPT in every layout (lesson 09).

``train_in_layout`` runs on ranks and ``train_alone`` in one process, both with the same data and optimizer.
``compare_layout`` holds one against the other. In float64 they agree to about 1e-15 a step; what a wrong
divisor, a forgotten all-reduce or a drifting copy leaves is larger by orders of magnitude.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.cost.decoder_activations import decoder_saved_bytes
from dtlab.cost.parameters import decoder_units
from dtlab.cost.pipeline import balanced_cuts, live_activations
from dtlab.diagnose.saved_bytes import SavedBytes
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import data_rank, parallelize, parallelize_stages
from dtlab.parallel.pipeline import Pipeline, pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.sharded import local_part
from dtlab.parallel.split import split
from dtlab.parallel.tensor_gpt import tensor_parallel
from dtlab.parallel.whole import whole
from dtlab.parallel.zero import ShardedOptimizer
from dtlab.ranks.means import mean
from dtlab.ranks.worlds import world
from dtlab.train.gradients import clip_by_norm, total_norm

__all__ = [
    "Layout",
    "LayoutRun",
    "LayoutTrainer",
    "Task",
    "compare_layout",
    "predicted_activation_bytes",
    "train_alone",
    "train_in_layout",
]


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and what else a layout is.

    Attributes:
        dims: the degrees; none may be -1.
        zero: deal out the optimizer state with ``ShardedOptimizer`` (ZeRO-1).
        engine: what runs a pipeline, "by_hand" or "torch".
        schedule: of a pipeline, in as many micro-batches as it has ranks.
        options: for ``parallelize`` or ``parallelize_stages``.
    """

    dims: ParallelDims
    zero: bool = False
    engine: Any = "by_hand"
    schedule: str = "1f1b"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What is trained: a GPT on tokens drawn from the step's number.

    Attributes:
        batch: samples of the global batch.
        clip: largest norm of the gradient, or None.
        model: sizes of the GPT, of which ``vocab_size`` and ``sequence`` make the data.
    """

    steps: int = 5
    batch: int = 8
    dtype: torch.dtype = torch.float64
    optimizer: str = "AdamW"
    lr: float = 0.01
    clip: float | None = None
    model: dict[str, Any] = field(
        default_factory=lambda: {
            "vocab_size": 12, "sequence": 8, "dim": 8, "num_layers": 2, "num_heads": 2,
        }
    )  # fmt: skip

    def data(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of the global batch, [batch, sequence] int64 each."""
        shape = (self.batch, self.model["sequence"] + 1)
        draw = torch.Generator().manual_seed(step)
        tokens = torch.randint(self.model["vocab_size"], shape, generator=draw)
        return tokens[:, :-1], tokens[:, 1:]

    def build(self, seed: int) -> GPT:
        """The model with the parameters of ``seed``."""
        torch.manual_seed(seed)
        return GPT(**self.model).to(self.dtype)

    @property
    def tokens(self) -> int:
        """Targets in the global batch."""
        return self.batch * self.model["sequence"]


@dataclass
class LayoutRun:
    """What a rank, or one process, has after training."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """Whole, by name; on the ranks of a pipeline those of the rank's stages."""
    num_parameters: int = 0
    """Numbers that this rank holds."""
    activation_bytes: int = 0
    """Peak of what autograd saved in the last step."""


class LayoutTrainer:
    """The task on this rank of a layout, or in one process for ``layout=None``; every rank makes one.

    Data-parallel ranks start from other weights, so that a forgotten broadcast shows.

    Attributes:
        model: what ``parallelize`` gave, or this rank's ``Pipeline``.
        optimizer: over this rank's parameters.
    """

    def __init__(self, layout: Layout | None, task: Task) -> None:
        self.task, self._index, self._number = task, 0, 1
        if layout is None:
            self.model: Any = task.build(0)
        else:
            mesh = build_mesh(layout.dims)
            self._index, self._number = data_rank(mesh)
            self.model = _in_layout(layout, mesh, task.build(self._index))
        pipe = self.model if isinstance(self.model, Pipeline) else None
        self.modules: list[nn.Module] = list(pipe.stages.values()) if pipe else [unwrap(self.model)]
        self.parameters = list(self.model.parameters())
        kind = getattr(torch.optim, task.optimizer)
        self.optimizer: torch.optim.Optimizer = (
            ShardedOptimizer(self.parameters, kind, lr=task.lr)
            if layout is not None and layout.zero
            else kind(self.parameters, lr=task.lr)
        )

    def step(self, number: int) -> tuple[float, float]:
        """One optimizer step: (loss of the global batch, norm of its gradient before clipping)."""
        inputs, targets = self.task.data(number)
        mine = slice(
            self._index * len(inputs) // self._number, (self._index + 1) * len(inputs) // self._number
        )
        inputs, targets = inputs[mine], targets[mine]
        self.optimizer.zero_grad()
        if isinstance(self.model, Pipeline):
            loss = self.model.step(inputs, targets, self.task.tokens)
        else:  # data parallelism takes means over ranks
            loss = token_loss(self.model(inputs), targets).total * (self._number / self.task.tokens)
            loss.backward()
            loss = mean(loss.detach())
        norm = total_norm(self.parameters)
        if self.task.clip is not None:
            clip_by_norm(self.parameters, self.task.clip, norm)
        self.optimizer.step()
        return float(loss), float(norm)


def train_alone(task: Task) -> LayoutRun:
    """One process, no ranks: what the layouts are held against."""
    return _train(LayoutTrainer(None, task))


def train_in_layout(layout: Layout, task: Task) -> LayoutRun:
    """On each rank of the layout, inside ``dtlab.launch``."""
    with world():
        return _train(LayoutTrainer(layout, task))


def predicted_activation_bytes(layout: Layout | None, task: Task, rank: int = 0) -> int:
    """``LayoutRun.activation_bytes`` of ``rank`` in closed form, without torch."""
    model, options = task.model, layout.options if layout else {}
    dims = layout.dims if layout else ParallelDims()
    units = decoder_saved_bytes(
        model["num_layers"],
        model["dim"],
        model["num_heads"],
        model["vocab_size"],
        task.model["sequence"],
        task.batch // dims.dp // dims.pp,  # a pipeline's micro-batches: one for each of its ranks
        element_bytes=task.dtype.itemsize,
        tp=dims.tp,
        sequence_parallel=options.get("sequence_parallel", False),
        by_hand=options.get("engine") == "by_hand",
    )
    if layout is None or dims.pp == 1:
        return sum(units)
    stage = dims.place(rank).pp
    weights = decoder_units(
        model["num_layers"], model["dim"], model["vocab_size"], model["sequence"], tp=dims.tp
    )
    start, end = balanced_cuts(weights, dims.pp)[stage]
    live = live_activations(layout.schedule, dims.pp, dims.pp, stage)  # type: ignore[arg-type]
    return live * sum(units[start:end])


def compare_layout(runs: Sequence[LayoutRun], alone: LayoutRun) -> tuple[float, float, float]:
    """Largest differences over steps, ranks and parameters: (losses, parameters, norms relatively)."""
    losses = max(abs(a - b) for run in runs for a, b in zip(run.losses, alone.losses, strict=True))
    norms = max(abs(a - b) / b for run in runs for a, b in zip(run.norms, alone.norms, strict=True))
    seen = {name for run in runs for name in run.parameters}
    missing = alone.parameters.keys() - seen
    assert not missing, f"no rank holds {', '.join(sorted(missing))}"
    tied = {"head.output.weight": "embedding.token.weight"}
    parameters = max(
        float((tensor - alone.parameters.get(name, alone.parameters[tied.get(name, name)])).abs().max())
        for run in runs
        for name, tensor in run.parameters.items()
    )
    return losses, parameters, norms


def _in_layout(layout: Layout, mesh: DeviceMesh, model: GPT) -> Any:
    if layout.dims.pp == 1:
        return parallelize(model, mesh, **layout.options)
    if layout.dims.tp > 1:
        tensor_parallel(model, mesh["tp"])
    schedule = build_schedule(layout.schedule, layout.dims.pp, layout.dims.pp)  # type: ignore[arg-type]
    parts = split(model, schedule.num_stages)
    parallelize_stages(parts, mesh, schedule.stages_of(mesh["pp"].get_local_rank()), **layout.options)
    return pipeline(
        parts,
        schedule,
        lambda logits, targets: token_loss(logits, targets).total,
        engine=layout.engine,
        group=mesh["pp"].get_group(),
        replicas=mesh["dp_replicate", "dp_shard"],
    )


def _train(trainer: LayoutTrainer) -> LayoutRun:
    result = LayoutRun()
    for number in range(trainer.task.steps):
        with SavedBytes(trainer.modules) as saved:
            loss, norm = trainer.step(number)
        result.losses.append(loss)
        result.norms.append(norm)
        result.activation_bytes = saved.peak
    for module in trainer.modules:
        result.parameters |= {name: whole(p).clone() for name, p in module.named_parameters()}
    result.num_parameters = sum(local_part(p).numel() for p in trainer.parameters)
    return result
