"""TorchRec as the engine of a table whose rows are sharded: for tables that outgrow one machine (lesson 07).

TorchRec and FBGEMM are Meta's production code for this: FBGEMM's tables update their rows *inside* the
backward, so a gradient of the table never exists, and its row-wise Adagrad keeps one number a row. They are
optional. FBGEMM is compiled against one release of torch, so no version of it fits all that dtlab takes:
1.8 fits torch 2.13, and trains on gloo there. No extra of dtlab can name them, because TorchRec asks for
FBGEMM's CUDA build and torchmetrics 1.0.3: ``pip install --no-deps torchrec==1.8.* fbgemm-gpu-cpu==1.8.*``
and then ``pip install tensordict tqdm pyre-extensions``.

The engine is hidden from the module tree: no optimizer and no DDP may see weights that train themselves.
Seen in TorchRec 1.8.0 on gloo: its "dense" kernel, not used here, fails in unpooled row-wise lookups ("Split
sizes doesn't match total dim 0 size"), and so does any rank with an empty batch.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.models.deepfm import FieldEmbedding, field_rows
from dtlab.parallel.embedding_table import check_table

__all__ = ["TorchRecRows"]

OPTIMIZERS = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


class TorchRecRows(nn.Module):
    """Stands in for ``table``; its rows live in TorchRec's shards and are updated in the backward, float32.

    ``lr``, ``optimizer``: the table's own, "sgd" or "rowwise_adagrad"; gradients are means over the ranks.
    Every rank takes rank 0's values and makes each lookup and backward, as of a ``ShardedTable``.

    ``UserError``: TorchRec is not installed, an unknown optimizer, a table that is not float32 or has
    ``padding_idx``, ``max_norm`` or ``scale_grad_by_freq``.

    >>> model.embedding = TorchRecRows(model.embedding, lr=0.05)  # doctest: +SKIP
    """

    def __init__(
        self,
        table: nn.Embedding,
        group: dist.ProcessGroup | None = None,
        *,
        lr: float,
        optimizer: str = "rowwise_adagrad",
    ) -> None:
        super().__init__()
        check_table(table)
        if optimizer not in OPTIMIZERS:
            raise UserError(f"optimizer: {optimizer!r}; take one of {', '.join(OPTIMIZERS)}")
        if table.weight.dtype != torch.float32:
            raise UserError(f"dtype: {table.weight.dtype}; TorchRec's tables train in torch.float32")
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.sparse = False  # no gradient leaves the engine
        self.group = group
        self.fields = (table.cardinalities, table.offsets) if isinstance(table, FieldEmbedding) else None
        full = table.weight.detach()
        dist.broadcast(full, group=group, group_src=0)
        # A list keeps the engine out of parameters(), buffers() and state_dict().
        self._engine = [_build(full, group, lr, OPTIMIZERS[optimizer])]

    def rows(self, indices: Tensor) -> Tensor:
        """Rows of the table for the indices of each field."""
        return indices if self.fields is None else field_rows(indices, *self.fields)

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows of the table: [...] int64 -> [..., embedding_dim]. A collective."""
        from torchrec import KeyedJaggedTensor

        wanted, position = rows.flatten().unique(return_inverse=True)
        if not len(wanted):
            wanted = wanted.new_zeros(1)  # a batch without any index fails in TorchRec; its gradient is 0
        asked = KeyedJaggedTensor.from_lengths_sync(["row"], wanted, torch.ones_like(wanted))
        found = self._engine[0](asked)["row"].values()
        return found.index_select(0, position).view(*rows.shape, self.embedding_dim)

    def forward(self, indices: Tensor) -> Tensor:
        return self.lookup(self.rows(indices))

    @torch.no_grad()
    def full_weight(self) -> Tensor:
        """The whole table [num_embeddings, embedding_dim] on every rank, in its memory. A collective."""
        (sharded,) = self._engine[0].state_dict().values()
        full = torch.zeros(self.num_embeddings, self.embedding_dim)
        for shard in sharded.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            full[row : row + rows, column : column + columns] = shard.tensor
        dist.all_reduce(full, group=self.group)
        return full


def _build(full: Tensor, group: dist.ProcessGroup | None, lr: float, optimizer: str) -> Any:
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec import EmbeddingCollection, EmbeddingConfig
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
        from torchrec.distributed.types import ShardingEnv, ShardingPlan
    except (ImportError, OSError) as error:
        raise UserError(
            f"engine: TorchRec cannot be imported ({error}); install torchrec and fbgemm-gpu-cpu in the "
            "release that fits your torch, or hold this table row_wise"
        ) from error
    rows, dim = full.shape
    config = EmbeddingConfig(name="table", num_embeddings=rows, embedding_dim=dim, feature_names=["row"])
    collection = EmbeddingCollection(tables=[config], device=full.device)
    collection.embeddings["table"].weight.data.copy_(full)
    sharder = EmbeddingCollectionSharder(
        fused_params={"optimizer": getattr(EmbOptimType, optimizer), "learning_rate": lr}
    )
    size = dist.get_world_size(group)
    plan = construct_module_sharding_plan(
        collection,
        {"table": row_wise(compute_kernel="fused")},
        sharder=sharder,
        local_size=size,
        world_size=size,
        device_type=full.device.type,
    )
    return DistributedModelParallel(
        collection,
        device=full.device,
        env=ShardingEnv.from_process_group(group or dist.group.WORLD),
        plan=ShardingPlan(plan={"": plan}),
        sharders=[sharder],
        init_data_parallel=False,
    )
