"""Rows of an embedding table sharded by torch's DTensor: the library's twin of ``RowWise`` (lesson 07).

DTensor knows no "ask the owner": every rank looks up every index in its own rows, with zeros for those that
it does not hold, and the sum over the ranks is the answer. So all indices go to all ranks and all vectors
through a reduce-scatter, as many as there are lookups, duplicates and all. It needs no code for the exchange
and its weight is a DTensor, which checkpoints know; its bytes grow with the ranks
(:func:`dtlab.cost.embedding.dtensor_bytes`), where those of ``RowWise`` do not.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.embedding_layout import Blocks
from dtlab.parallel.embedding_table import ShardedTable

__all__ = ["DTensorRows"]


class DTensorRows(ShardedTable):
    """``weight``: a DTensor [num_embeddings, embedding_dim], ``Shard(0)`` over ``group``.

    Keep it in an optimizer of its own: some of torch's optimizers refuse DTensors beside other tensors.

    ``UserError``: a sparse table, for which DTensor has no gradient; so few rows that a rank gets none.
    """

    def __init__(self, table: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(table, group)
        if self.sparse:
            raise UserError("sparse: DTensor has no sparse gradients; hold this table row_wise")
        if not len(Blocks(self.num_embeddings, self.num_ranks).rows_of(self.num_ranks - 1)):
            raise UserError(
                f"rows: {self.num_embeddings} in equal blocks leave rank {self.num_ranks - 1} without "
                "any, and DTensor cannot look up in an empty part; hold this table row_wise"
            )
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Shard, distribute_tensor

        full = table.weight.detach()
        ranks: Any = group or dist.group.WORLD
        mesh = DeviceMesh.from_group(ranks, full.device.type)
        self.longest = 0
        """Most lookups of a rank in the last step, at least 1: the others are padded to it."""
        # distribute_tensor takes the values of the mesh's first rank.
        weight = distribute_tensor(full, mesh, [Shard(0)])
        self.weight = nn.Parameter(weight, requires_grad=table.weight.requires_grad)

    def full_weight(self) -> Tensor:
        return self.weight.full_tensor().detach()  # type: ignore[attr-defined]

    def take(self, full: Tensor) -> Tensor:
        from torch.distributed.tensor import Shard, distribute_tensor

        return distribute_tensor(full, self.weight.device_mesh, [Shard(0)])  # type: ignore[attr-defined]

    def lookup(self, rows: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        flat, mesh = rows.flatten(), self.weight.device_mesh  # type: ignore[attr-defined]
        longest = torch.tensor(len(flat), device=flat.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self.group)
        self.longest = max(1, int(longest))  # also without any lookup the table gets a gradient
        padded = F.pad(flat, (0, self.longest - len(flat)))
        everybodys = flat.new_empty(self.num_ranks * self.longest)
        dist.all_gather_into_tensor(everybodys, padded, group=self.group)
        indices = DTensor.from_local(everybodys, mesh, [Replicate()], run_check=False)
        # The lookup gives a sum that is still to be taken; taking it and cutting it is one reduce-scatter.
        summands: Any = F.embedding(indices, self.weight)
        vectors = summands.redistribute(placements=[Shard(0)]).to_local()
        if vectors.requires_grad:
            vectors.register_hook(self._mean)
        return vectors[: len(flat)].view(*rows.shape, self.embedding_dim)

    def _mean(self, gradient: Tensor) -> Tensor:
        return gradient / self.num_ranks
