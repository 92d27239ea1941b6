"""Which rank holds which row of an embedding table (lesson 07).

A layout maps a row to its owner and to its slot, the row's place among the owner's own rows:

- ``Blocks``: neighbouring rows together, ceil(V/n) on a rank, the last ranks may have fewer or none. These
  are the parts of ``torch.chunk`` and of DTensor's ``Shard(0)``. A vocabulary sorted by frequency puts all
  hot rows on rank 0.
- ``Cyclic``: row i on rank ``i % n``, so that hot neighbours are spread.
- ``WholeTables``: all rows of one field on one rank.

All are pure arithmetic: no rank asks where a row is, and no row is lost when V is not a multiple of n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Blocks", "Cyclic", "RowLayout", "WholeTables"]


class RowLayout(Protocol):
    """Owner and slot of rows, and the rows of a rank."""

    def place(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``rows`` [...] int64 -> owners [...] and slots [...], int64."""
        ...

    def rows_of(self, rank: int) -> Tensor:
        """Rows that ``rank`` holds, [number] int64, in the order of their slots."""
        ...


@dataclass(frozen=True)
class Blocks:
    """Neighbouring rows on one rank.

    >>> [Blocks(11, 4).rows_of(rank).tolist() for rank in range(4)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    """

    num_rows: int
    num_ranks: int

    @property
    def block(self) -> int:
        """Rows of a full block."""
        return -(-self.num_rows // self.num_ranks)

    def place(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows.div(self.block, rounding_mode="floor"), rows % self.block

    def rows_of(self, rank: int) -> Tensor:
        start = min(rank * self.block, self.num_rows)
        return torch.arange(start, min(start + self.block, self.num_rows))


@dataclass(frozen=True)
class Cyclic:
    """Row i on rank ``i % n``.

    >>> [Cyclic(11, 4).rows_of(rank).tolist() for rank in range(4)]
    [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    """

    num_rows: int
    num_ranks: int

    def place(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows % self.num_ranks, rows.div(self.num_ranks, rounding_mode="floor")

    def rows_of(self, rank: int) -> Tensor:
        return torch.arange(rank, max(self.num_rows, rank), self.num_ranks)


class WholeTables:
    """All rows of a field on rank ``owners[field]``; field f has ``cardinalities[f]`` rows in a row.

    >>> layout = WholeTables([2, 3, 1], owners=[1, 0, 1])
    >>> layout.rows_of(1).tolist(), layout.place(torch.tensor([0, 3, 5]))
    ([0, 1, 5], (tensor([1, 0, 1]), tensor([0, 1, 2])))
    """

    def __init__(self, cardinalities: Sequence[int], owners: Sequence[int]) -> None:
        self.owners = torch.tensor(list(owners), dtype=torch.int64)
        sizes = torch.tensor(list(cardinalities), dtype=torch.int64)
        self._ends = sizes.cumsum(0)
        self._offsets = self._ends - sizes
        # Where a field starts among its owner's own rows.
        filled: dict[int, int] = {}
        starts = []
        for size, owner in zip(cardinalities, owners, strict=True):
            starts.append(filled.get(owner, 0))
            filled[owner] = starts[-1] + size
        self._shift = torch.tensor(starts) - self._offsets

    def place(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        field = torch.bucketize(rows, self._ends.to(rows.device), right=True)
        return self.owners.to(rows.device)[field], rows + self._shift.to(rows.device)[field]

    def rows_of(self, rank: int) -> Tensor:
        own = [
            torch.arange(int(start), int(end))
            for start, end, owner in zip(self._offsets, self._ends, self.owners, strict=True)
            if owner == rank
        ]
        return torch.cat(own) if own else torch.empty(0, dtype=torch.int64)
