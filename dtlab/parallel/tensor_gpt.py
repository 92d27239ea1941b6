"""The GPT on tensor-parallel ranks: by hand, or by torch's DTensor plans (lesson 07).

What is cut: query, key, value and the MLP's first matrix by columns (query, key and value so by heads), both
output matrices by rows, embedding and head by tokens. Positions and norms are held by all. A tied embedding
and head stay one parameter.
"""

from typing import Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from dtlab.errors import UserError
from dtlab.models.gpt import GPT, Block
from dtlab.parallel.by_hand_ddp import broadcast_state
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.same_batch import SameBatch
from dtlab.parallel.tensor import ColumnLinear, RowLinear, copy_to_ranks
from dtlab.parallel.vocabulary_parallel import VocabularyEmbedding, VocabularyHead
from dtlab.parallel.whole import whole

__all__ = ["full_parameters", "tensor_parallel"]


def tensor_parallel(
    model: GPT,
    mesh: DeviceMesh,
    *,
    engine: Literal["by_hand", "dtensor"] = "dtensor",
    sequence_parallel: bool = False,
    gather_logits: bool = True,
) -> GPT:
    """``model`` with its matrices cut over the ranks of ``mesh`` (one axis), in place; every rank calls it.

    All ranks start from the parameters of the axis's first rank and must see the same samples, which is
    compared at the first batch and at every 100th.

    Args:
        engine: "dtensor" for torch's parallel styles, "by_hand" for the modules of this course.
        sequence_parallel: "dtensor" only: between the cut layers each rank holds S / t positions, so norms
            and residuals are not computed t times. The length of the samples must be divisible by t.
        gather_logits: give all logits on every rank; by hand, False leaves each rank its part for
            ``vocabulary_parallel_loss``.

    Raises:
        UserError: heads, widths or a vocabulary that the ranks do not divide (by hand the vocabulary is
            padded), an unknown engine; in forward: ranks that were given different samples.
    """
    group, ranks = mesh.get_group(), mesh.size()
    block = model.blocks[0]
    assert isinstance(block, Block)
    ParallelDims(tp=ranks).check_model(
        num_heads=block.attention.query.out_features // block.attention.head_dim,
        hidden=block.mlp.input.out_features,
        vocab_size=model.vocab_size if engine == "dtensor" else None,
    )
    broadcast_state(model, group)
    if engine == "by_hand":
        if sequence_parallel:
            raise UserError("sequence_parallel=True: engine 'by_hand' has it not; take engine='dtensor'")
        _cut_by_hand(model, group, gather_logits)
    elif engine == "dtensor":
        if not gather_logits:
            raise UserError("gather_logits=False: take engine='by_hand', whose loss takes parts")
        plan = _plan(model, sequence_parallel)
        parallelize_module(model, mesh, plan)  # type: ignore[arg-type]
        if sequence_parallel:
            model.register_forward_pre_hook(lambda _, inputs: _check_length(inputs[0], ranks))
    else:
        raise UserError(f"engine = {engine!r}: choose 'dtensor' or 'by_hand'")
    if model.is_tied:
        model.head.output.weight = model.embedding.token.weight  # both are cut by tokens
    same = SameBatch(group, "tensor-parallel group")
    model.embedding.register_forward_pre_hook(lambda _, inputs: same.check(inputs[0]))
    return model


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter as one process would hold it, on all ranks; every rank calls it."""
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


def _cut_by_hand(model: GPT, group: dist.ProcessGroup, gather_logits: bool) -> None:
    model.embedding.token = VocabularyEmbedding(model.embedding.token, group)  # type: ignore[assignment]
    model.head.output = VocabularyHead(model.head.output, group, gather=gather_logits)  # type: ignore[assignment]
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        assert isinstance(attention, nn.Module)
        assert isinstance(mlp, nn.Module)
        # One f for query, key and value: one all-reduce in backward, not three.
        attention.register_forward_pre_hook(lambda _, inputs: (copy_to_ranks(inputs[0], group),))
        for name in ("query", "key", "value"):
            setattr(attention, name, ColumnLinear(attention.get_submodule(name), group, copy_input=False))  # type: ignore[arg-type]
        attention.output = RowLinear(attention.output, group)  # type: ignore[arg-type]
        mlp.input = ColumnLinear(mlp.input, group)  # type: ignore[arg-type]
        mlp.output = RowLinear(mlp.output, group)  # type: ignore[arg-type]


def _check_length(tokens: Tensor, ranks: int) -> None:
    if tokens.shape[1] % ranks:
        raise UserError(
            f"sequence_parallel=True: tp = {ranks} does not divide the samples' length {tokens.shape[1]}; "
            "cut or pad them, or leave sequence parallelism out"
        )


def _plan(model: GPT, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """What torch does at each module; the names are those of ``GPT``."""
    between = Shard(1) if sequence_parallel else Replicate()  # layout of [B, S, D] between the cut layers
    plan: dict[str, ParallelStyle] = {
        "embedding.token": RowwiseParallel(input_layouts=Replicate()),
        "head.output": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    for index in range(len(model.blocks)):
        block = f"blocks.{index}"
        for name in ("query", "key", "value"):
            plan[f"{block}.attention.{name}"] = ColwiseParallel()
        plan[f"{block}.attention.output"] = RowwiseParallel(output_layouts=between)
        plan[f"{block}.mlp.input"] = ColwiseParallel()
        plan[f"{block}.mlp.output"] = RowwiseParallel(output_layouts=between)
    if sequence_parallel:
        plan["embedding"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=True
        )
        plan["head.norm"] = SequenceParallel(use_local_output=True)
        for index in range(len(model.blocks)):
            block = f"blocks.{index}"
            for name in ("attention", "mlp"):
                plan[f"{block}.{name}_norm"] = SequenceParallel(use_local_output=True)
                plan[f"{block}.{name}"] = PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
                )
    return plan
