"""Any torch module as numbers that ``dtlab.cost`` takes: parameters, bytes and FLOPs of a sample (lesson 09).

The module runs once on the meta device, where tensors have shapes and no bytes: a model of 100 billion
parameters is counted on a laptop. Values are unknown there, so a forward pass that branches on them cannot be
counted.

- Parameters that two modules share count once; buffers do not count. Frozen ones count too: a bill with them
  is too high by their gradients and moments.
- Activations are the tensors that autograd saves, each storage once, without parameters and buffers. They are
  taken to grow with the samples, and are given for fp32. Attention counts as fused: queries, keys, values,
  its output, and one number a query and head; the meta device itself would keep the matrix of scores.
- FLOPs are those of products and convolutions as torch counts them in the forward pass, three times: once
  forward, twice backward. All scores of attention count, also those that a mask leaves out.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dtlab.cost.presets import Preset
from dtlab.errors import UserError, one_line

__all__ = ["count_module"]


def count_module(
    module: nn.Module | Callable[[], nn.Module], *inputs: Tensor, name: str = "", **keywords: Tensor
) -> Preset:
    """``module`` as a preset for ``dtlab.cost.rank_memory`` and its kin.

    Args:
        module: a module, which is left as it is, or what builds one: then no byte of it is ever made.
        inputs, keywords: of its forward pass; samples along the first axis of the first one. They may be on
            the meta device themselves.
        name: of the preset; the class by default.

    Raises:
        UserError: no input with samples, or a forward pass that fails on the meta device.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> counted = count_module(model, torch.ones(4, 8))
    >>> counted.parameters, counted.sample_bytes  # of a sample: 8 numbers that enter, 16 after the ReLU
    (161, 96)
    >>> counted.sample_flops == 6 * (8 * 16 + 16)
    True
    """
    if not callable(module):
        raise UserError(f"module = {module!r}: give a torch module, or a function that makes one")
    arguments = [*inputs, *keywords.values()]
    if (
        not arguments
        or not isinstance(arguments[0], Tensor)
        or not arguments[0].ndim
        or not len(arguments[0])
    ):
        raise UserError("inputs = (): give the module's inputs, with samples along the first axis")
    model = _on_meta(module)
    label = name or type(model).__name__
    on_meta = [_meta(value) for value in inputs], {key: _meta(value) for key, value in keywords.items()}
    try:
        with FlopCounterMode(display=False) as flops:
            kept, attention = _saved_bytes(model, *on_meta)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise UserError(
            f"module = {label}: its forward pass fails on the meta device ({one_line(str(error), 160)}); "
            "check the inputs; nothing in it may depend on values"
        ) from None
    samples = len(arguments[0])
    tables = (each.weight for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag))
    return Preset(
        name=label,
        family="counted",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        formula="counted on the meta device",
        source=f"{type(model).__module__}.{type(model).__qualname__}",
        table_parameters=sum({id(weight): weight.numel() for weight in tables}.values()),
        sample_bytes=round(kept / samples),
        sample_flops=round(3 * (flops.get_total_flops() + attention) / samples),
        note=f"activations as autograd keeps them of {samples} samples, in fp32",
    )


def _on_meta(module: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    if not isinstance(module, nn.Module):
        with torch.device("meta"):
            built = module()
        if not isinstance(built, nn.Module):
            raise UserError(f"module = {module!r}: give a torch module, or a function that builds one")
        return built.to("meta")
    # A copy whose tensors are on the meta device from the start: deepcopy takes what the memo names.
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(_meta(parameter.detach()), requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = _meta(buffer)
    return copy.deepcopy(module, memo)


def _meta(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _saved_bytes(model: nn.Module, inputs: list[Any], keywords: dict[str, Any]) -> tuple[int, int]:
    """Bytes that autograd keeps of a forward pass, and the FLOPs of its fused attention."""
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # the tensors live until the sum is made, so no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            kept[_storage(tensor)] = tensor
        return tensor

    training = model.training
    model.train()
    fused = _FusedAttention()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), fused:
        output = model(*inputs, **keywords)
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    model.train(training)
    del output
    return total, fused.flops


class _FusedAttention(TorchFunctionMode):
    """Attention that keeps what a fused kernel keeps; its FLOPs are added up here, since no kernel runs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        keys = named["key"].shape[-2]
        self.flops += 2 * named["query"].numel() * keys  # the scores
        self.flops += 2 * named["query"].shape[:-1].numel() * keys * named["value"].shape[-1]
        return _Attention.apply(named["query"], named["key"], named["value"])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)  # in the layout of the queries, as the kernels have it
        if value.shape[-1] != query.shape[-1]:
            output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1]))
        return output

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("counted only")


def _storage(tensor: Tensor) -> int:
    return StorageWeakRef(tensor.untyped_storage()).cdata
