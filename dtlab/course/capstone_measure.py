"""What a recipe of the capstone does on two real ranks, counted and compared (lesson 16).

``measure(recipe, data)`` trains; nothing in it asks the recipe how it did:

- rows: the ids that reached the model in one epoch, over all ranks;
- one model: a few steps, held against one process that makes the same ones;
- bytes: those that the busiest rank sent in its largest step;
- AUC: of the scores on the test rows, computed here; and what the recipe says of it;
- resume: new processes go on from the checkpoint of the middle, to the end, bit for bit.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dtlab import launch, world
from dtlab.cost.embedding import dense_bytes
from dtlab.course.capstone import (
    DIM,
    GLOBAL_BATCH,
    Recipe,
    Run,
    auc_said,
    loss_sum,
    ordered,
    parts_kept,
    recommender,
    shared,
)
from dtlab.data.coverage import Seen, seen
from dtlab.data.datasets import Dataset
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.embedding import full_state
from dtlab.ranks.seeds import seed_everything
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.metrics import binary_auc, score

if TYPE_CHECKING:
    from dtlab.ranks.worlds import World

__all__ = ["SAME", "Measured", "measure"]

RANKS = 2
SGD_STEPS, SGD_RATE = 4, 0.5
SAME = 1e-5
"""Weights no further apart than this, after those steps, are one model."""
Launch = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Measured:
    """What was counted and compared. ``auc`` is computed here, ``said`` is what each rank's recipe says."""

    rows: Seen
    apart: float
    """Largest difference of a weight from one process, after a few steps of SGD; infinite without a step."""
    bytes: int
    bytes_of_whole_tables: int
    auc: float
    said: list[float]
    is_resumed: bool
    missing: list[str] = field(default_factory=list)
    """Parts of the run that are not what they were, right after the load."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Of the trained model, as one process would have it."""
    batch: int = GLOBAL_BATCH
    """Rows of the first step, over all ranks."""
    orders: int = 3
    """How many of three orders differ: this epoch's, the next one's, that of another seed."""


def _start(function: Any, ranks: int, *arguments: Any) -> Sequence[Any]:
    return list(launch(function, ranks, *arguments, timeout=120, echo=False))


def measure(recipe: Recipe, data: Dataset, *, seed: int = 0, start: Launch = _start) -> Measured:
    """Train ``recipe`` for one epoch on two ranks, go on from its middle in new processes, and compare.

    ``start(function, ranks, *arguments)`` launches the ranks. Raises what they raise.
    """
    middle = len(data.train) // GLOBAL_BATCH // 2 + 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = start(_whole_epoch, RANKS, recipe, data, place, middle, seed)
        again = start(_from_the_middle, RANKS, recipe, data, place, seed)
    alone = _alone(data, seed)
    return Measured(
        rows=seen([one["seen"] for one in whole], data.train.ids),
        apart=max(_apart(one["first steps"], alone) for one in whole),
        bytes=max(max(one["bytes"], default=0) for one in whole),
        bytes_of_whole_tables=dense_bytes(sum(data.cardinalities), DIM + 1, RANKS),
        auc=binary_auc(*whole[0]["scores"]),
        said=[one["said"] for one in whole],
        is_resumed=all(_same(a["weights"], b["weights"]) for a, b in zip(whole, again, strict=True)),
        missing=sorted({name for a, b in zip(whole, again, strict=True) for name in _differ(a, b)}),
        weights=whole[0]["weights"],
        batch=sum(one["batch"] for one in whole),
        orders=min(one["orders"] for one in whole),
    )


# ---------------------------------------------------------------- on the ranks


def _whole_epoch(recipe: Recipe, data: Dataset, folder: Path, middle: int, seed: int) -> dict[str, Any]:
    with world() as w, Checkpointer(folder, asynchronous=False) as saved:
        first = _first_steps(w, recipe, data, seed)
        run = Run(w, data, recipe, seed=seed)
        state: dict[str, Any] = {}
        for step in run.epoch():
            if step == middle:
                saved.save(_parts(recipe, run), step, samples=step * GLOBAL_BATCH)
                state = _state(run)
        scores = score(run.model, data.test)
        said = auc_said(recipe, w, run.model, data.test)
        return {
            "first steps": first,
            "seen": torch.cat(run.seen) if run.seen else torch.empty(0, dtype=torch.int64),
            "bytes": run.bytes,
            "scores": (scores["logits"], scores["labels"]) if scores is not None else None,
            "said": said,
            "batch": len(run.seen[0]) if run.seen else 0,
            "orders": _orders(w, recipe, run, seed),
            "state": state,
            "weights": full_state(run.model),
        }


def _from_the_middle(recipe: Recipe, data: Dataset, folder: Path, seed: int) -> dict[str, Any]:
    with world() as w, Checkpointer(folder, asynchronous=False) as saved:
        run = Run(w, data, recipe, seed=seed)
        info = saved.load(_parts(recipe, run))
        run.steps = info.step if info is not None else 0
        state = _state(run)
        for _ in run.epoch():
            pass
        return {"state": state, "weights": full_state(run.model)}


def _parts(recipe: Recipe, run: Run) -> dict[str, Any]:
    return {"nothing": {}, **parts_kept(recipe, run)}  # an empty checkpoint is one, too


def _orders(w: World, recipe: Recipe, run: Run, seed: int) -> int:
    """How many different orders this rank gets: in the epoch, in the next one, and with another seed."""
    other = ordered(recipe, w, len(run.table), seed + 1)
    later = [torch.cat([torch.as_tensor(rows) for rows in sampler]) for sampler in (run.sampler, other)]
    return len(
        {tuple(ids.tolist()) for ids in (torch.cat(run.seen), *(run.table.ids[rows] for rows in later))}
    )


def _state(run: Run) -> dict[str, Any]:
    """What the next step reads, as copies that can be compared."""
    own = [value.detach().clone() for value in run.model.state_dict().values()]
    moments = [value.clone() for entry in run.optimizer.state.values() for _, value in sorted(entry.items())]
    return {
        "weights": own,
        "optimizer": moments,
        "sampler": dict(run.sampler.state_dict()) if hasattr(run.sampler, "state_dict") else {},
        "generators": torch.get_rng_state(),
    }


def _first_steps(w: World, recipe: Recipe, data: Dataset, seed: int) -> dict[str, Tensor]:
    """Weights after a few steps of SGD on rows that are dealt out right; without dropout."""
    seed_everything(seed)
    replica = shared(recipe, w, recommender(data, dropout=0.0))
    sampler = GlobalBatchSampler(len(data.train), GLOBAL_BATCH, seed=seed, rank=w.rank, world_size=w.size)
    _sgd(replica, unwrap(replica), data, sampler, w.size)
    return full_state(unwrap(replica))


def _alone(data: Dataset, seed: int) -> dict[str, Tensor]:
    """The same steps in one process."""
    kept = torch.get_rng_state()
    seed_everything(seed)
    model = recommender(data, dropout=0.0)
    torch.set_rng_state(kept)
    _sgd(
        model,
        model,
        data,
        GlobalBatchSampler(len(data.train), GLOBAL_BATCH, seed=seed, rank=0, world_size=1),
        1,
    )
    return {name: value.detach() for name, value in model.state_dict().items()}


def _sgd(replica: nn.Module, model: nn.Module, data: Dataset, sampler: GlobalBatchSampler, size: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD_RATE)
    for _, rows in zip(range(SGD_STEPS), sampler.global_batches(), strict=False):
        batch = data.train.take(torch.from_numpy(sampler.local(rows)))
        optimizer.zero_grad()
        (loss_sum(replica, batch) * size / len(rows)).backward()
        optimizer.step()


# ---------------------------------------------------------------- comparing


def _apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return math.inf
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())


def _same(one: Any, other: Any) -> bool:
    """Whether two states hold the same, tensors bit for bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _differ(whole: dict[str, Any], again: dict[str, Any]) -> list[str]:
    before, after = whole["state"], again["state"]
    return [name for name in before if not _same(before[name], after.get(name))]
