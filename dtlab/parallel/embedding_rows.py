"""An embedding table whose rows are dealt to the ranks: ask the owner, get the vector (lesson 07).

One lookup, on rank r:

1. **Once each**: duplicates in the batch are looked up once. A hot row costs a rank one vector, not hundreds.
2. **Ask**: its indices go to their owners, with all_to_all (the counts first).
3. **Answer**: every owner reads its rows and sends them back, with a second all_to_all.
4. **Backward**: gradients of a row are added up on rank r, then travel to the owner, with a third one.

What crosses depends on the rows touched, not on the table:
:func:`dtlab.cost.embedding.row_wise_bytes`.

Naumov et al., "Deep learning recommendation model", arXiv 1906.00091, section 4 (butterfly shuffle).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.embedding_exchange import all_to_all, exchange, gather_counts
from dtlab.parallel.embedding_layout import Blocks, RowLayout
from dtlab.parallel.embedding_table import ShardedTable

__all__ = ["RowWise"]


class RowWise(ShardedTable):
    """``weight`` [own rows, embedding_dim]: what ``layout`` gives to this rank (default: ``Blocks``).

    With ``table.sparse`` the gradient is sparse over the own rows, for ``SGD``,
    ``SparseAdam`` and :class:`dtlab.parallel.embedding_optim.RowWiseAdagrad`.

    >>> table = RowWise(nn.Embedding(1_000_000, 16))  # 4 ranks  # doctest: +SKIP
    >>> table(torch.tensor([7, 7, 999_999])).shape  # doctest: +SKIP
    torch.Size([3, 16])
    """

    def __init__(
        self, table: nn.Embedding, group: dist.ProcessGroup | None = None, layout: RowLayout | None = None
    ) -> None:
        super().__init__(table, group)
        self.layout: RowLayout = layout or Blocks(self.num_embeddings, self.num_ranks)
        self.asked_of = [0] * self.num_ranks
        """Different rows that this rank asked of each rank in the last lookup."""
        self.asked_by = [0] * self.num_ranks
        """Rows that each rank asked of this one in the last lookup: their sum is this rank's load."""
        self._shard(table)

    def take(self, full: Tensor) -> Tensor:
        return full.index_select(0, self.layout.rows_of(self.rank).to(full.device))

    def put(self, full: Tensor, own: Tensor) -> None:
        full[self.layout.rows_of(self.rank).to(full.device)] = own

    def lookup(self, rows: Tensor) -> Tensor:
        wanted, position = rows.flatten().unique(return_inverse=True)
        owner, slot = self.layout.place(wanted)
        by_owner = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=self.num_ranks)
        self.asked_of, self.asked_by = counts.tolist(), gather_counts(counts, self.group)
        asked = all_to_all(slot[by_owner], self.asked_of, self.asked_by, self.group)
        vectors = exchange(self.read(asked), self.asked_by, self.asked_of, self.group)
        place = torch.empty_like(by_owner)
        place[by_owner] = torch.arange(len(by_owner), device=by_owner.device)
        return vectors.index_select(0, place[position]).view(*rows.shape, self.embedding_dim)
