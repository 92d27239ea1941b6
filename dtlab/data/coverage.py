"""Which samples were seen, by which rank, twice, never: counted from row ids, not assumed (lesson 04).

- ``seen(ids_by_rank, universe)`` is a pure function over what ranks returned; figures and exercises use it.
- ``Coverage`` counts in a running job: the trainer adds the ids of every batch that reached the model, and at
  the end of an epoch the ranks add up their counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.data.agreed import joined_as
from dtlab.errors import UserError
from dtlab.ranks.agreement import wire_device


@dataclass(frozen=True)
class Seen:
    """How often each rank saw each sample: ``counts`` [ranks, N] int64, ``ids`` [N] in growing order.

    >>> epoch = seen([[0, 1, 2], [2, 3]], universe=range(5))
    >>> epoch.twice.tolist(), epoch.never.tolist(), epoch.duplicate_rows, epoch.unique_rows
    ([2], [4], 1, 4)
    """

    ids: np.ndarray
    counts: np.ndarray

    @property
    def times(self) -> np.ndarray:
        """[N]: how often each sample was seen by all ranks together."""
        return self.counts.sum(axis=0)

    @property
    def twice(self) -> np.ndarray:
        """Ids seen more than once."""
        return self.ids[self.times > 1]

    @property
    def never(self) -> np.ndarray:
        """Ids that no rank saw."""
        return self.ids[self.times == 0]

    @property
    def once(self) -> bool:
        """Whether every sample was seen exactly once."""
        return bool((self.times == 1).all())

    @property
    def duplicate_rows(self) -> int:
        """Rows that came again: rows seen minus different rows seen."""
        return int(self.times.sum()) - self.unique_rows

    @property
    def unique_rows(self) -> int:
        """Different rows seen."""
        return int((self.times > 0).sum())

    def ranks_of(self, row_id: int) -> list[int]:
        """The ranks that saw a sample."""
        return np.flatnonzero(self.counts[:, np.searchsorted(self.ids, row_id)]).tolist()

    def __str__(self) -> str:
        return (
            f"{self.unique_rows} of {len(self.ids)} samples seen by {len(self.counts)} ranks, "
            f"{len(self.twice)} more than once, {len(self.never)} never"
        )


def seen(ids_by_rank: Sequence[Any], universe: Any) -> Seen:
    """Count from the ids that each rank saw (arrays, tensors or lists, in any order).

    Args:
        ids_by_rank: one collection of ids for each rank; may be empty.
        universe: the ids that exist.

    Raises:
        UserError: a rank saw an id that does not exist, or the universe names an id twice.
    """
    ids = _sorted_universe(universe)
    counts = np.zeros((len(ids_by_rank), len(ids)), dtype=np.int64)
    for rank, mine in enumerate(map(_as_ids, ids_by_rank)):
        counts[rank], foreign = _count(mine, ids)
        if foreign:
            unknown = mine[~np.isin(mine, ids)][0]
            raise UserError(f"rank {rank} saw id {unknown}, which is not among the {len(ids)} ids given")
    return Seen(ids, counts)


class Coverage:
    """Count the rows that reach the model, epoch by epoch, over all ranks.

    Adding a batch keeps a reference to its ids (8 bytes a row until the epoch ends) and costs no message.
    ``end_epoch`` is a collective of 4 bytes per row of the data set.

    >>> coverage = Coverage(range(4))
    >>> coverage.add(torch.tensor([3, 1])); coverage.add(torch.tensor([1]))
    >>> coverage.end_epoch(), coverage.unique, coverage.rows
    (1, 2, 3)
    """

    def __init__(self, universe: Any) -> None:
        self._ids = _sorted_universe(universe)
        self._parts: list[Tensor] = []
        self._seen = np.zeros(len(self._ids), dtype=bool)
        self._counts = np.zeros(len(self._ids), dtype=np.int32)  # of this epoch, over all ranks
        self.epochs = 0
        """Epochs (or parts of one) that were ended."""
        self.rows = 0
        """Rows that reached the model, over all ranks and ended epochs."""
        self.duplicates = 0
        """Rows that came again within an epoch, added up over the ended epochs."""
        self.missed: list[int] = []
        """For each ended epoch, the rows that no rank saw in it."""

    @property
    def unique(self) -> int:
        """Different rows seen in the ended epochs, over all ranks."""
        return int(self._seen.sum())

    def add(self, ids: Tensor) -> None:
        """Note the ids [B] of a batch that reached the model on this rank."""
        self._parts.append(ids)

    def end_epoch(self) -> int:
        """Add up the epoch over the ranks (collective) and return its duplicate rows, the same on every rank.

        Raises:
            UserError: on every rank, when a row reached the model that is not in the universe.
        """
        self.fold()
        counts, self._counts = self._counts, np.zeros(len(self._ids), dtype=np.int32)
        found = counts > 0
        duplicates = int(counts.sum(dtype=np.int64)) - int(found.sum())
        self._seen |= found
        self.epochs += 1
        self.rows += int(counts.sum(dtype=np.int64))
        self.duplicates += duplicates
        self.missed.append(len(found) - int(found.sum()))
        return duplicates

    def fold(self) -> None:
        """Add up what was seen since the last call over the ranks (collective), in mid-epoch too.

        Raises:
            UserError: on every rank, when a row reached the model that is not in the universe.
        """
        mine = torch.cat(self._parts).cpu().numpy() if self._parts else np.empty(0, dtype=np.int64)
        self._parts = []
        counts, foreign = _count(mine, self._ids)
        if joined_as() is not None:
            packed = torch.from_numpy(np.append(counts, foreign).astype(np.int32)).to(wire_device())
            dist.all_reduce(packed)
            summed = packed.cpu().numpy()
            counts, foreign = summed[:-1], int(summed[-1])
        if foreign:
            raise UserError(
                f"{foreign} rows reached the model whose ids are not among the {len(self._ids)} given; "
                "check which split the loader reads"
            )
        self._counts += counts.astype(np.int32)

    def state_dict(self) -> dict[str, Any]:
        """Everything counted up to the last :meth:`fold`; the same on every rank."""
        return {
            "seen": self._seen,
            "counts": self._counts,
            "epochs": self.epochs,
            "rows": self.rows,
            "duplicates": self.duplicates,
            "missed": list(self.missed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting, on this or another number of ranks.

        Raises:
            UserError: the state counts another number of rows.
        """
        seen, counts = np.asarray(state["seen"], dtype=bool), np.asarray(state["counts"], dtype=np.int32)
        if len(seen) != len(self._ids):
            raise UserError(
                f"coverage was counted over {len(seen)} rows, now there are {len(self._ids)}: the data is "
                "another"
            )
        self._seen, self._counts, self._parts = seen.copy(), counts.copy(), []
        self.epochs, self.rows = int(state["epochs"]), int(state["rows"])
        self.duplicates, self.missed = int(state["duplicates"]), [int(number) for number in state["missed"]]


def _as_ids(ids: Any) -> np.ndarray:
    if isinstance(ids, Tensor):
        ids = ids.cpu().numpy()
    return np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64).reshape(-1)


def _sorted_universe(universe: Any) -> np.ndarray:
    ids = np.sort(_as_ids(universe))
    again = ids[1:][ids[1:] == ids[:-1]]
    if len(again):
        raise UserError(f"id {again[0]} stands for two rows; give every row an id of its own")
    return ids


def _count(mine: np.ndarray, universe: np.ndarray) -> tuple[np.ndarray, int]:
    """Return how often each id of the (sorted) universe occurs, and how many ids are not in it."""
    where = np.searchsorted(universe, mine)
    known = np.zeros(len(mine), dtype=bool)
    inside = where < len(universe)
    known[inside] = universe[where[inside]] == mine[inside]
    return np.bincount(where[known], minlength=len(universe)), int((~known).sum())
