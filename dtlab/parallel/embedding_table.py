"""What every way to share an embedding table between ranks has in common (lesson 07).

- It stands in for the ``nn.Embedding`` or ``FieldEmbedding`` that it was made from: same calls, same values.
- A lookup is a collective: every rank of the group calls it equally often, with an empty batch if it has no
  rows, and goes back through it equally often.
- ``weight`` is this rank's part, its gradient the mean over the ranks. ``full_weight()`` is the whole table.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.models.deepfm import FieldEmbedding, field_rows
from dtlab.parallel.sharded import mark_sharded

__all__ = ["ShardedTable", "check_table"]


class ShardedTable(nn.Module):
    """A table [num_embeddings, embedding_dim] of which this rank holds ``weight``.

    ``table``: the whole one; every rank takes rank 0's values. ``group``: the ranks that share it.

    ``UserError``: a table with ``padding_idx``, ``max_norm`` or ``scale_grad_by_freq``; on a CPU, a lookup of
    an index outside the table.
    """

    offsets: Tensor
    cardinalities: Tensor
    weight: nn.Parameter

    def __init__(self, table: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        check_table(table)
        self.group = group
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.sparse = table.sparse
        self.has_fields = isinstance(table, FieldEmbedding)
        sizes = (
            table.cardinalities if isinstance(table, FieldEmbedding) else torch.tensor([self.num_embeddings])
        )
        sizes = sizes.to(table.weight.device)
        self.register_buffer("cardinalities", sizes, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)

    def take(self, full: Tensor) -> Tensor:
        """This rank's part of the whole table ``full``, as a copy."""
        raise NotImplementedError

    def put(self, full: Tensor, own: Tensor) -> None:
        """Write this rank's part into the whole table ``full``."""
        raise NotImplementedError

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows of the table: [...] int64 -> [..., embedding_dim]. A collective."""
        raise NotImplementedError

    def rows(self, indices: Tensor) -> Tensor:
        """Rows of the table for the indices of each field, checked on a CPU."""
        if self.has_fields:
            return field_rows(indices, self.cardinalities, self.offsets)
        is_checked = indices.device.type == "cpu" and indices.numel() > 0
        if is_checked and (indices.amin() < 0 or indices.amax() >= self.num_embeddings):
            wrong = indices[(indices < 0) | (indices >= self.num_embeddings)]
            raise UserError(f"index {int(wrong[0])} is outside the table's 0..{self.num_embeddings - 1}")
        return indices

    def read(self, slots: Tensor) -> Tensor:
        """``weight[slots]``, with the gradient that the table was built for: dense or sparse."""
        if self.sparse:
            return F.embedding(slots, self.weight, sparse=True)
        if not len(self.weight):
            return self.weight  # index_select refuses a rank without rows, whom nobody asks for one
        return self.weight.index_select(0, slots)  # its backward is faster on a CPU than that of F.embedding

    def forward(self, indices: Tensor) -> Tensor:
        return self.lookup(self.rows(indices))

    @torch.no_grad()
    def full_weight(self) -> Tensor:
        """The whole table [num_embeddings, embedding_dim] on every rank, in its memory. A collective."""
        full = self.weight.new_zeros(self.num_embeddings, self.embedding_dim)
        self.put(full, self.weight.detach())
        dist.all_reduce(full, group=self.group)
        return full

    @torch.no_grad()
    def whole_of(self, own: Tensor) -> Tensor:
        """The whole of ``own``: the weight, or what an optimizer keeps for it. On every rank, a collective.

        ``own`` [own rows, embedding_dim], or a number for each row, [own rows], as row-wise Adagrad has; what
        has another shape (a step count) is the same on all ranks and comes back as it is.
        """
        if not self._is_cut(own, self.weight.shape):
            return own
        full = own.new_zeros(self._whole_shape(own))
        self.put(full, own)
        dist.all_reduce(full, group=self.group)
        return full

    @torch.no_grad()
    def part_of(self, full: Tensor) -> Tensor:
        """This rank's part of what :meth:`whole_of` gave; no message is sent."""
        shape = (self.num_embeddings, self.embedding_dim)
        return self.take(full) if self._is_cut(full, shape) else full

    def _is_cut(self, tensor: Tensor, shape: Sequence[int]) -> bool:
        return tensor.dim() in (1, 2) and tuple(tensor.shape) == tuple(shape[: tensor.dim()])

    def _whole_shape(self, own: Tensor) -> tuple[int, ...]:
        return (self.num_embeddings, self.embedding_dim)[: own.dim()]

    @torch.no_grad()
    def load_full(self, full: Tensor) -> None:
        """Take this rank's part of ``full`` [num_embeddings, embedding_dim]."""
        shape = (self.num_embeddings, self.embedding_dim)
        if tuple(full.shape) != shape:
            raise UserError(f"weight: shape {tuple(full.shape)}, the table is {shape}; give the whole table")
        self.weight.copy_(self.take(full.to(self.weight.device)))

    def extra_repr(self) -> str:
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, rank {self.rank} of {self.num_ranks} holds "
            f"{tuple(self.weight.shape)}"
        )

    def _shard(self, table: nn.Embedding) -> None:
        """Make ``weight`` from the whole table of rank 0."""
        full = table.weight.detach().contiguous()
        dist.broadcast(full, group=self.group, group_src=0)
        self.weight = nn.Parameter(self.take(full), requires_grad=table.weight.requires_grad)
        mark_sharded(self.weight, self.group)
        self.weight.shard_table = self  # type: ignore[attr-defined]


def check_table(table: nn.Embedding) -> None:
    """``UserError`` for a table whose lookup or gradient is not that of its rows alone."""
    for name in ("padding_idx", "max_norm", "scale_grad_by_freq"):
        value = getattr(table, name)
        if value is not None and value is not False:  # padding_idx may be 0
            raise UserError(f"{name}: {value} of the table is lost when it is sharded; build it without")
