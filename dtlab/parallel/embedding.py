"""Embedding parallelism behind one call: the tables of a recommender shared between the ranks (lesson 07).

``shard_embeddings(model, "row_wise")`` puts a sharded table in the place of every ``nn.Embedding``; then
``data_parallel`` averages the rest of the model and leaves the tables alone. The model's code stays.

==================  ======================================  ===========================================
strategy            each rank holds                         good for
==================  ======================================  ===========================================
"data_parallel"     all rows (the table stays as it is)     small tables
"row_wise"          a block of neighbouring rows            large tables, ids in no order of frequency
"row_wise_cyclic"   every n-th row                          large tables sorted by frequency (skew)
"table_wise"        all rows of some fields                 many tables of like size
"column_wise"       some columns of all rows                wide tables, one very hot row
"row_wise_dtensor"  a block of rows, as a DTensor           comparing with torch's own way
==================  ======================================  ===========================================

``plan_embeddings`` shows the bytes per step and the memory of each way, and picks one.
"""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.cost.embedding_plan import TablePlan, plan_table
from dtlab.errors import UserError
from dtlab.models.deepfm import FieldEmbedding
from dtlab.parallel.embedding_columns import ColumnWise
from dtlab.parallel.embedding_dtensor import DTensorRows
from dtlab.parallel.embedding_layout import Cyclic
from dtlab.parallel.embedding_rows import RowWise
from dtlab.parallel.embedding_table import ShardedTable
from dtlab.parallel.embedding_tables import TableWise

__all__ = ["STRATEGIES", "full_state", "load_full_state", "plan_embeddings", "shard_embeddings"]

Group = dist.ProcessGroup | None


def _cyclic(table: nn.Embedding, group: Group) -> ShardedTable:
    return RowWise(table, group, Cyclic(table.num_embeddings, dist.get_world_size(group)))


STRATEGIES: dict[str, Callable[[nn.Embedding, Group], nn.Module]] = {
    "data_parallel": lambda table, group: table,
    "row_wise": RowWise,
    "row_wise_cyclic": _cyclic,
    "table_wise": TableWise,
    "column_wise": ColumnWise,
    "row_wise_dtensor": DTensorRows,
}


def shard_embeddings(
    model: nn.Module, strategy: str | Mapping[str, str] = "row_wise", *, group: Group = None
) -> nn.Module:
    """``model`` with its embedding tables shared between the ranks of ``group``; in a world of one, as it is.

    ``strategy``: one for all tables, or a mapping from a table's name ("embedding") to its strategy, in which
    tables that are not named stay replicated. ``group``: default, a group of all ranks made for this model,
    so that the tables' messages never meet the gradients' of ``data_parallel``. All ranks call it.

    The tables take rank 0's values. Gradients are means over the ranks, as those of ``data_parallel``. An
    ``nn.Embedding`` itself comes back as the sharded table.

    ``UserError``: an unknown strategy, a name without a table, a table that cannot be sharded so.

    >>> model = shard_embeddings(DeepFM([1_000_000], 3), "row_wise")  # doctest: +SKIP
    >>> model = data_parallel(model)  # doctest: +SKIP
    """
    tables = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    wanted = dict(strategy) if isinstance(strategy, Mapping) else dict.fromkeys(tables, strategy)
    for name, chosen in wanted.items():
        if name not in tables:
            raise UserError(f"strategy: no table {name!r} in the model; it has {', '.join(tables) or 'none'}")
        if chosen not in STRATEGIES:
            raise UserError(f"strategy: {chosen!r} for {name!r}; take one of {', '.join(STRATEGIES)}")
    if not isinstance(strategy, Mapping) and strategy not in STRATEGIES:
        raise UserError(f"strategy: {strategy!r}; take one of {', '.join(STRATEGIES)}")
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return model
    own = group if group is not None else dist.new_group()
    for name, chosen in wanted.items():
        sharded = STRATEGIES[chosen](tables[name], own)
        if not name:
            return sharded
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, sharded)
    return model


def plan_embeddings(
    model: nn.Module, *, samples: int, ranks: int, skew: float = 0.0, memory_bytes: float = float("inf")
) -> dict[str, TablePlan]:
    """For each table of ``model``, every way to hold it with its bytes per step, and the best that fits.

    ``samples``: of one rank in one step, each with one index of every field. ``skew`` and ``memory_bytes``
    (of one table on a rank): as in :func:`dtlab.cost.embedding_plan.plan_table`, which makes the plans.

    >>> plans = plan_embeddings(nn.ModuleDict({"item": nn.Embedding(100_000, 8)}), samples=256, ranks=4)
    >>> {name: plan.best.strategy for name, plan in plans.items()}  # what shard_embeddings takes
    {'item': 'row_wise'}
    """
    return {
        name: plan_table(
            table.cardinalities.tolist() if isinstance(table, FieldEmbedding) else table.num_embeddings,
            table.embedding_dim,
            samples=samples,
            ranks=ranks,
            skew=skew,
            memory_bytes=memory_bytes,
            element_bytes=table.weight.element_size(),
        )
        for name, table in model.named_modules()
        if isinstance(table, nn.Embedding)
    }


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of ``model`` with whole tables, as one process would have it; copies. A collective."""
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name, table in _sharded(model).items():
        state[f"{name}.weight".lstrip(".")] = table.full_weight()
    return state


@torch.no_grad()
def load_full_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what :func:`full_state` gave, on any number of ranks: each takes its part of the tables.

    ``UserError``: a table of another shape; torch's ``RuntimeError`` for missing or unknown names.
    """
    rest, tables = dict(state), _sharded(model)
    for name, table in tables.items():
        key = f"{name}.weight".lstrip(".")
        if key in rest:
            table.load_full(rest[key])
            rest[key] = table.weight.detach()
    model.load_state_dict(rest)


def _sharded(model: nn.Module) -> dict[str, ShardedTable]:
    return {name: module for name, module in model.named_modules() if isinstance(module, ShardedTable)}
