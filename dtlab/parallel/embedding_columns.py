"""An embedding table cut by columns: every rank holds a few numbers of every row (lesson 07).

One lookup: all ranks tell all others which rows they want (once each), every rank reads its columns of all
of them and sends each rank its part; the parts are put side by side. The backward goes the same way back.

No skew can unbalance it, since every rank serves every row; but every index goes to every rank, and short
vectors cut into pieces make poor messages. :func:`dtlab.cost.embedding.column_wise_bytes` gives the bytes.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.cost.embedding import columns_of
from dtlab.errors import UserError
from dtlab.parallel.embedding_exchange import all_to_all, exchange, gather_counts
from dtlab.parallel.embedding_table import ShardedTable

__all__ = ["ColumnWise"]


class ColumnWise(ShardedTable):
    """``weight`` [num_embeddings, own columns]; columns are dealt as equally as possible.

    With ``table.sparse`` the gradient is sparse over the rows.

    ``UserError``: fewer columns than ranks.
    """

    def __init__(self, table: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(table, group)
        if self.embedding_dim < self.num_ranks:
            raise UserError(
                f"dim: {self.embedding_dim} columns for {self.num_ranks} ranks leave some without any; "
                "hold this table row_wise"
            )
        self.columns = columns_of(self.embedding_dim, self.num_ranks)
        self.num_unique = [0] * self.num_ranks
        """Different rows that each rank wanted in the last lookup."""
        self._shard(table)

    @property
    def _range(self) -> slice:
        start = sum(self.columns[: self.rank])
        return slice(start, start + self.columns[self.rank])

    def take(self, full: Tensor) -> Tensor:
        return full[:, self._range].clone(memory_format=torch.contiguous_format)

    def put(self, full: Tensor, own: Tensor) -> None:
        full[:, self._range] = own

    def _is_cut(self, tensor: Tensor, shape: Sequence[int]) -> bool:
        if tensor.dim() == 1 and len(tensor) == self.num_embeddings:
            raise UserError(
                "a number for each row of a table that is cut by columns differs from rank to rank, and no "
                "whole row has it: hold the table row_wise, or take an optimizer with a state for each number"
            )
        return super()._is_cut(tensor, shape)

    def lookup(self, rows: Tensor) -> Tensor:
        wanted, position = rows.flatten().unique(return_inverse=True)
        own, n = len(wanted), self.num_ranks
        self.num_unique = gather_counts(torch.full((n,), own, device=wanted.device), self.group)
        everybodys = all_to_all(wanted.repeat(n), [own] * n, self.num_unique, self.group)
        # Rank q gets [its rows, own columns]; from p come [own rows, columns of p]: numbers, not rows, are
        # exchanged, since the widths differ.
        width = self.columns[self.rank]
        sent = [count * width for count in self.num_unique]
        parts = [own * columns for columns in self.columns]
        numbers = exchange(self.read(everybodys).flatten(), sent, parts, self.group)
        pieces = zip(numbers.split(parts), self.columns, strict=True)
        vectors = torch.cat([piece.view(own, columns) for piece, columns in pieces], 1)
        return vectors.index_select(0, position).view(*rows.shape, self.embedding_dim)
