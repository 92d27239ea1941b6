"""The largest batch that fits: doubled from a start until memory ends, on all ranks together (lesson 01).

- A trial is a real step on this rank's rows: forward, backward and the optimizer, whose state is there only
  after its first step. Then everything is put back as it was.
- No trial sends anything. A rank that is out of memory in the middle of a step would leave the others waiting
  for its gradients; here each rank works alone, catches its own error, and then all agree: a batch fits when
  it fits on every rank. So all get the same answer, that of the rank with the least memory.
- With data parallelism the gradients lie beside the buckets, as in a step with micro-batches. Without
  micro-batches the true peak is lower, by one gradient at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dtlab.diagnose.step_memory import memory_limit, step_bytes
from dtlab.errors import UserError, require_number, require_whole
from dtlab.parallel.ddp import no_sync, unwrap
from dtlab.ranks import agreement
from dtlab.train.losses import Loss, binary_cross_entropy, defaults_by_name, require_sum
from dtlab.train.untouched import untouched

__all__ = ["FoundBatch", "Trial", "find_batch", "repeated"]

FITS, OVER, OUT = "fits", "over the share", "out of memory"


@dataclass(frozen=True)
class Trial:
    """One batch that was tried, on the rank that came closest to its limit; the same on every rank."""

    batch: int
    """Rows per rank."""
    bytes: int | None
    """Most bytes in use during the step; None where memory ran out on the way."""
    limit: int
    """Bytes that this rank may use."""
    share: float | None
    verdict: str
    """"fits", "over the share" or "out of memory"."""
    rank: int


@dataclass(frozen=True)
class FoundBatch:
    """The answer, the same on every rank.

    Attributes:
        batch: the largest batch per rank that fits, of those tried; 0 when even the start does not.
        share: how much of its limit a rank may use.
        tried: the trials in order.
        stopped: why no larger one was tried.
    """

    batch: int
    share: float
    tried: tuple[Trial, ...]
    stopped: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("batch", "bytes", "share", "verdict")]
        for one in self.tried:
            size = "-" if one.bytes is None else f"{one.bytes:,}"
            share = "-" if one.share is None else f"{one.share:.1%}"
            where = f" on rank {one.rank}" if one.verdict != FITS else ""
            rows.append((f"{one.batch:,}", size, share, one.verdict + where))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*(c.rjust(w) for c, w in zip(r, widths, strict=False)), r[3]]) for r in rows]
        return "\n".join([*lines, f"largest that fits: {self.batch:,} rows per rank ({self.stopped})"])


@defaults_by_name
def find_batch(
    model: nn.Module,
    optimizer: Optimizer,
    batch_of: Callable[[int], Any],
    *,
    loss: Loss = binary_cross_entropy,
    start: int = 256,
    most: int | None = None,
    share: float = 0.9,
    limit_bytes: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_trial: Callable[[Trial], None] | None = None,
) -> FoundBatch:
    """Double the rows per rank until a step does not fit on some rank (collective).

    Args:
        model: plain, or what ``data_parallel`` returned.
        optimizer: of its parameters.
        batch_of: makes a batch of so many rows on this rank's device: a tensor with the rows in dimension 0,
            a tuple, list or dict of such tensors, or anything whose length is its rows.
        loss: takes model and batch, returns the sum of the rows' losses.
        start: rows per rank of the first trial, the same on every rank.
        most: rows per rank beyond which nothing is tried, for example those that the data has. The smallest
            of the ranks counts.
        share: part of the limit that a step may use. Close to the limit CUDA's allocator begins to free and
            retry, which is slow; hence 0.9.
        limit_bytes: what this rank may use; it may differ between ranks. Default: the card's memory, or on a
            CPU this rank's part of what is free on the host. On a CPU the limit is enforced: a step that
            passes it ends there.
        autocast: context of forward and loss, for example ``precision.autocast``.
        on_trial: called after each trial on every rank.

    Raises:
        UserError: a number is out of range, the ranks start differently, ``batch_of`` gave another number of
            rows than it was asked for, ``loss`` returned no sum, or a step of this model communicates by
            itself (sharded parameters, SyncBatchNorm).

    >>> from dtlab.data.batch import Batch
    >>> model = nn.Linear(4, 1)
    >>> rows = lambda n: Batch(torch.arange(n), torch.zeros(n, 0).long(), torch.ones(n, 4), torch.ones(n))
    >>> def loss(model, batch):
    ...     return model(batch.dense).square().sum()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> find_batch(model, sgd, rows, loss=loss, start=4, most=16, limit_bytes=1_000_000).batch
    16
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _check(model, start, most, share, limit_bytes)
    device = parameters[0].device
    limit = int(limit_bytes) if limit_bytes is not None else memory_limit(device, _tensors(model, optimizer))
    size = agreement.world_size()
    asked = agreement.gather((start, most, share), dst=None) or []
    if len({(first, part) for first, _, part in asked}) > 1:
        raise UserError(
            f"start, share = {[(first, part) for first, _, part in asked]} on ranks 0 to {size - 1}: "
            "give the same on every rank"
        )
    bounds = [bound for _, bound, _ in asked if bound is not None]
    bound = min(bounds) if bounds else None
    tried: list[Trial] = []
    found, batch, stopped = 0, start, ""
    while not stopped:
        used = _measure(model, optimizer, batch_of, batch, loss, autocast, device, limit)
        verdict = OUT if used is None else OVER if used >= share * limit else FITS
        # One answer for all: each rank knows its own memory only.
        fits = agreement.all_agree(verdict == FITS)
        tried.append(_closest(batch, used, limit, verdict))
        if on_trial is not None:
            on_trial(tried[-1])
        if not fits:
            last = tried[-1]
            where = f"on rank {last.rank}"
            stopped = f"{batch:,} is out of memory {where}"
            if last.share is not None:
                stopped = f"{batch:,} takes {last.share:.1%} of the memory {where}"
        elif bound is not None and 2 * batch > bound:
            found, stopped = batch, f"no more than {bound:,} rows per rank were asked for"
        else:
            found, batch = batch, 2 * batch
    return FoundBatch(found, share, tuple(tried), stopped)


def repeated(batch: Any, rows: int) -> Any:
    """A batch of ``rows`` rows made from those of ``batch``, over and over: for memory any rows will do.

    Args:
        batch: a dataclass of tensors with the rows in dimension 0, such as ``Batch``; at least one row.

    >>> from dtlab.data.batch import Batch
    >>> one = Batch(torch.arange(2), torch.zeros(2, 0).long(), torch.ones(2, 3))
    >>> repeated(one, 5).ids.tolist()
    [0, 1, 0, 1, 0]
    """
    columns = {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
    tensors = {name: column for name, column in columns.items() if isinstance(column, torch.Tensor)}
    device = next(iter(tensors.values())).device
    index = torch.arange(rows, device=device) % len(batch)
    return replace(batch, **{name: tensor.index_select(0, index) for name, tensor in tensors.items()})


def _measure(
    model: nn.Module,
    optimizer: Optimizer,
    batch_of: Callable[[int], Any],
    rows: int,
    loss: Loss,
    autocast: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
    limit: int,
) -> int | None:
    """Most bytes in use during one step of ``rows`` rows; None when they do not suffice."""
    # DDP's own forward may send buffers. Its module's does not, and outside of DDP's forward its hooks rest.
    inner = model.module if isinstance(model, DistributedDataParallel) else model

    def step() -> None:
        batch = batch_of(rows)
        _require_rows(batch, rows)
        with autocast():
            total: Any = loss(inner, batch)
        require_sum(total)
        total.backward()
        optimizer.step()

    with untouched(model, optimizer), no_sync(model):
        model.train()
        return step_bytes(step, _tensors(model, optimizer), device, limit)


def _require_rows(batch: Any, asked: int) -> None:
    """Refuse a batch of other rows: its size would stand in the answer, and never have run."""
    inside = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, torch.Tensor):
        came = {batch.shape[0] if batch.dim() else 1}
    elif isinstance(batch, tuple | list | Mapping):
        came = {part.shape[0] for part in inside if isinstance(part, torch.Tensor) and part.dim()}
    else:
        came = {len(batch)} if hasattr(batch, "__len__") else set()
    if came and asked not in came:
        given = ", ".join(f"{rows:,}" for rows in sorted(came))
        raise UserError(
            f"batch_of({asked:,}) gave {given} rows: give as many as asked for, for example by "
            "repeating those there are (batch_finder.repeated), or set most to what the data has"
        )


def _closest(batch: int, used: int | None, limit: int, verdict: str) -> Trial:
    """The trial as seen by the rank that is shortest of memory (collective)."""
    every = agreement.gather((used, limit, verdict), dst=None) or []

    def pressure(rank: int) -> float:
        their_used, their_limit, their_verdict = every[rank]
        return float("inf") if their_verdict == OUT else their_used / their_limit

    rank = max(range(len(every)), key=pressure)
    used, limit, verdict = every[rank]
    return Trial(batch, used, limit, None if used is None else used / limit, verdict, rank)


def _tensors(model: nn.Module, optimizer: Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.parameters(), *model.buffers(), *(v for v in states if isinstance(v, torch.Tensor))]


def _check(model: nn.Module, start: int, most: int | None, share: float, limit_bytes: int | None) -> None:
    require_whole("start", start, 1, "rows per rank")
    if most is not None:
        require_whole("most", most, 1, "rows per rank")
        if most < start:
            raise UserError(f"most = {most!r}: is less than start = {start}; raise it, or start lower")
    require_number("share", share, lambda x: 0 < x <= 1, "a share above 0 and up to 1, for example 0.9")
    if limit_bytes is not None:
        require_number("limit_bytes", limit_bytes, lambda x: x >= 1, "a number of bytes, 1 or more")
    if not dist.is_initialized() or agreement.world_size() == 1:
        return
    inner = unwrap(model)
    is_sharded = any(hasattr(parameter, "full_tensor") for parameter in inner.parameters())
    if is_sharded or any(isinstance(module, nn.SyncBatchNorm) for module in inner.modules()):
        what = "its parameters are sharded" if is_sharded else "it has a SyncBatchNorm"
        raise UserError(
            f"model = {type(inner).__name__}: {what}, so the ranks talk within a step, and one that is out "
            "of memory would leave the others waiting; find the batch on the plain model in one process"
        )
