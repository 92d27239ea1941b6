"""One call from a model to its part on this rank: tensor, then data parallelism (lesson 09).

``parallelize(model, mesh)`` applies what the axes of the mesh ask for, in the order that torch needs: first
matrices are cut, then what is left is cut or copied over the data-parallel ranks.

Above all, ``tp`` > 1 cuts the matrices by ``tensor_parallel``. Then:

=============  ==========  ===============================================================
tp             dp_shard    what happens
=============  ==========  ===============================================================
1              1           ``data_parallel`` over ``dp_replicate``
1 or more      above 1     ``fully_sharded``; with ``dp_replicate`` > 1 as HSDP
above 1        1           ``fully_sharded`` over ``dp_replicate``; by hand ``data_parallel``
=============  ==========  ===============================================================

Pipelines have stages instead of a model: ``parallelize_stages`` does the same for each of them, and
``pipeline`` runs them.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.errors import UserError
from dtlab.models.gpt import GPT
from dtlab.parallel.ddp import data_parallel
from dtlab.parallel.fsdp import fully_sharded, sum_gradients
from dtlab.parallel.split import PipelineParts
from dtlab.parallel.tensor_gpt import tensor_parallel

__all__ = ["data_rank", "parallelize", "parallelize_stages"]


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    engine: Literal["by_hand", "dtensor"] = "dtensor",
    sequence_parallel: bool = False,
    **sharding: Any,
) -> nn.Module:
    """``model`` on the ranks of ``mesh`` (from ``build_mesh``); gradients are means over data-parallel ranks.

    Every rank calls it. Ranks that differ in ``tp`` alone must see the same samples (see ``data_rank``).

    Args:
        engine, sequence_parallel: with ``tp`` > 1, as for ``tensor_parallel``. Matrices cut by hand are
            averaged by DDP and cannot be sharded once more.
        sharding: ``param_dtype``, ``reduce_dtype``, ``reshard_after_forward``, ``blocks`` for
            ``fully_sharded``.

    Raises:
        UserError: a mesh with ``pp`` > 1, tensor parallelism for another model than the GPT, options that
            nothing uses, and what the parts raise.

    Example::

        mesh = build_mesh(ParallelDims(dp_shard=-1, tp=2))
        model = parallelize(GPT(), mesh)
        optimizer = torch.optim.AdamW(model.parameters())
    """
    if mesh["pp"].size() > 1:
        raise UserError(f"pp = {mesh['pp'].size()}: split the model and call parallelize_stages and pipeline")
    has_tp = mesh["tp"].size() > 1
    if has_tp:
        if not isinstance(model, GPT):
            raise UserError(
                f"tp = {mesh['tp'].size()}: there is no plan for {type(model).__name__}; take tp = 1"
            )
        tensor_parallel(model, mesh["tp"], engine=engine, sequence_parallel=sequence_parallel)
        # The logits are a view of what was gathered; torch warns of changes in place, and no loss makes any.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(FSDPGPT\) returned a view")
    if mesh["dp_shard"].size() > 1 or (has_tp and engine == "dtensor" and mesh["dp_replicate"].size() > 1):
        return fully_sharded(model, mesh, **sharding)
    if sharding:
        raise UserError(f"{', '.join(sharding)}: nothing is sharded with dp_shard = 1; leave it out")
    return data_parallel(model, group=mesh["dp_replicate"].get_group())


def parallelize_stages(
    parts: PipelineParts, mesh: DeviceMesh, keep: Sequence[int], **sharding: Any
) -> PipelineParts:
    """``parts`` with the stages ``keep`` cut over ``dp_shard``; they sum gradients, as pipelines do.

    Cut the model by ``tensor_parallel`` before it is split. ``keep``: ``schedule.stages_of(pp rank)``. With
    ``dp_shard`` = 1 the stages stay: ``pipeline(..., replicas=...)`` sums their gradients.
    """
    if mesh["dp_shard"].size() > 1:
        for number in keep:
            sum_gradients(fully_sharded(parts.stages[number], mesh, **sharding))
    return parts


def data_rank(mesh: DeviceMesh) -> tuple[int, int]:
    """(index of this rank among those that see different samples, their number): for the sampler."""
    shard = mesh["dp_shard"]
    index = mesh["dp_replicate"].get_local_rank() * shard.size() + shard.get_local_rank()
    return index, mesh["dp_replicate"].size() * shard.size()
