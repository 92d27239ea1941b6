"""Gather what ranks computed about their samples, in the order of the ids and each sample once (lesson 04).

Gathered results come in rank order and, from a padded sampler, with extra entries: a metric over them depends
on the number of processes. Here the ids decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks import agreement


@dataclass(frozen=True)
class ById:
    """Results of all ranks: ``ids`` [N] growing, and ``columns`` by name, [N, ...] each, in that order."""

    ids: Tensor
    columns: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]


def gather_by_id(
    ids: Tensor,
    *,
    dst: int | None = 0,
    num_samples: int | None = None,
    group: dist.ProcessGroup | None = None,
    **columns: Tensor,
) -> ById | None:
    """Bring the ranks' results together, ordered by id (collective).

    Args:
        ids: [B] int64 of this rank's samples; B may differ between ranks and may be 0.
        dst: the rank that gets the result (None elsewhere); None for every rank.
        num_samples: how many samples there must be, to catch missing ones.
        group: the ranks whose samples differ, when it is not all; ``dst`` counts inside it.
        columns: [B, ...] each, results for those ids.

    Raises:
        UserError: on the ranks that get the result: a sample is there twice or missing. On every rank: the
            columns have other names or row shapes on another rank, or other lengths than the ids.

    >>> both = gather_by_id(torch.tensor([2, 0, 1]), score=torch.tensor([0.2, 0.0, 0.1]))
    >>> both.ids.tolist(), both["score"].tolist() == torch.tensor([0.0, 0.1, 0.2]).tolist()
    ([0, 1, 2], True)
    """
    _check(ids, columns, group)
    ids = ids if len(ids) else ids.long()  # torch.zeros(0) would make everybody's ids floats
    joined: dict[str, Tensor] = {}
    for name, column in {"ids": ids, **columns}.items():
        parts = agreement.gather(column, dst=dst, group=group)
        if parts is not None:
            joined[name] = torch.cat(parts)
    if not joined:
        return None
    order = torch.argsort(joined["ids"], stable=True)
    joined = {name: column[order] for name, column in joined.items()}
    ordered = joined.pop("ids")
    again = ordered[1:][ordered[1:] == ordered[:-1]].unique()
    if len(again):
        raise UserError(
            f"{len(again)} of {len(ordered.unique())} samples were evaluated more than once, "
            f"first id {int(again[0])}; give every sample an id of its own, and take a sampler that does not "
            "pad: GlobalBatchSampler(shuffle=False)"
        )
    if num_samples is not None and len(ordered) != num_samples:
        raise UserError(f"{len(ordered)} samples were evaluated, {num_samples} expected; use tail='keep'")
    return ById(ordered, joined)


def _check(ids: Tensor, columns: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Refuse, on all ranks alike, what could not be put together or would land under another name."""
    fault = ""
    if ids.dim() != 1 or (ids.is_floating_point() and len(ids)):
        fault = f"ids are {list(ids.shape)} {ids.dtype}; give one whole number per sample"
    for name, column in columns.items():
        if len(column) != len(ids):
            fault = f"{name} has {len(column)} rows for {len(ids)} ids; give one row per id"
    shapes = {name: list(column.shape[1:]) for name, column in columns.items()}
    told = agreement.gather((fault, len(ids), shapes), dst=None, group=group) or []
    for rank, (theirs, _, _) in enumerate(told):
        if theirs:
            raise UserError(theirs if len(told) == 1 else f"rank {rank}: {theirs}")
    names = {rank: list(shapes) for rank, (_, _, shapes) in enumerate(told)}
    if len(set(map(tuple, names.values()))) > 1:
        raise UserError(f"the ranks gather different columns: {names}; give the same, in one order")
    for name in columns:
        rows = {rank: shapes[name] for rank, (_, length, shapes) in enumerate(told) if length}
        if len(set(map(tuple, rows.values()))) > 1:
            raise UserError(f"the rows of {name} have different shapes on the ranks: {rows}; give one shape")
