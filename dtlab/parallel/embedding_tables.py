"""Whole tables dealt to the ranks: each field of the recommender lives on one rank (lesson 07).

The exchange is that of rows, with another layout. Nothing is cut, so a rank reads what it owns at full speed;
but the largest table must fit one rank, and a field that every sample uses loads its owner with everybody's
lookups.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from dtlab.cost.embedding import deal_tables
from dtlab.errors import UserError
from dtlab.models.deepfm import FieldEmbedding
from dtlab.parallel.embedding_layout import WholeTables
from dtlab.parallel.embedding_rows import RowWise

__all__ = ["TableWise"]


class TableWise(RowWise):
    """``weight`` [rows of the own fields, embedding_dim].

    ``owners``: a rank for each field; default: largest field first, each to the rank with the fewest rows.
    A plain ``nn.Embedding`` is one field.

    ``UserError``: owners for another number of fields, or outside the ranks.
    """

    def __init__(
        self,
        table: nn.Embedding,
        group: dist.ProcessGroup | None = None,
        owners: Sequence[int] | None = None,
    ) -> None:
        sizes = [table.num_embeddings]
        if isinstance(table, FieldEmbedding):
            sizes = table.cardinalities.tolist()
        ranks = dist.get_world_size(group)
        dealt = list(owners) if owners is not None else deal_tables(sizes, ranks)
        if len(dealt) != len(sizes) or not all(0 <= owner < ranks for owner in dealt):
            raise UserError(
                f"owners: {dealt}; give a rank of 0 to {ranks - 1} for each of the {len(sizes)} fields"
            )
        super().__init__(table, group, WholeTables(sizes, dealt))
        self.owners = dealt
