"""The mean over ranks of numbers, tensors and dicts of numbers (lessons 04, 12)."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks import wire
from dtlab.ranks.groups import wire_device, world_size
from dtlab.ranks.wire import Header

__all__ = ["mean"]

_KIND, _DTYPE, _DIMS, _SHAPE = 2, 3, 4, 6  # fields of a header that must be equal on every rank


def mean(x: Any, weight: float | None = None, group: dist.ProcessGroup | None = None) -> Any:
    """The mean over ranks, known to all of them.

    Args:
        x: a number, a tensor (same shape and dtype on every rank), or a dict of numbers.
        weight: how much this rank counts, usually its number of samples. All ranks give one or none does.
            A rank of weight 0 has no say; its value may be NaN.
        group: process group; default: the current one.

    Returns:
        float, tensor (floating, on x's device) or dict of floats. A key that only some ranks give is averaged
        over these. NaN where all weights are 0.

    Raises:
        UserError: on every rank: a negative or non-finite weight, something that is no number (a text that
            reads like one is none), different shapes, dtypes or kinds, or a weight on some ranks only.

    Example:
        >>> mean(0.5), mean({"loss": 2.0}, weight=10)
        (0.5, {'loss': 2.0})
    """
    if weight is not None:
        known = _number(weight)
        if known is None or not 0 <= known < float("inf"):
            fix = f"weight={weight!r} must be a finite number that is not negative: give the sample count"
            raise _refused(fix, f"a value with the weight {weight!r}", group)
        weight = known
    if isinstance(x, Mapping):
        return _mean_dict(x, weight, group)
    if isinstance(x, Tensor):
        return _mean_tensor(x, weight, group)
    value = _number(x)
    if value is None:
        kind = type(x).__name__
        fix = f"mean takes a number, a tensor or a dict of numbers, not {kind}: {reprlib.repr(x)}"
        raise _refused(fix, f"a {kind}", group)
    share = 1.0 if weight is None else weight
    value = value * share if share else 0.0
    both = [(value, share)]
    if world_size(group) > 1:
        header = Header(wire.NUMBER, body=(wire.bits_of(value), wire.bits_of(share)))
        headers = _compare_means(header, "a number", weight, group)
        both = [(wire.float_of(h.body[0]), wire.float_of(h.body[1])) for h in headers]
    weights = sum(share for _, share in both)
    return sum(value for value, _ in both) / weights if weights else float("nan")


def _number(x: Any) -> float | None:
    """A float; None for what is no number, "3" included."""
    if isinstance(x, str | bytes | bytearray) or getattr(getattr(x, "dtype", None), "kind", "") in ("U", "S"):
        return None
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several numbers
        return None


def _refused(fix: str, what: str, group: dist.ProcessGroup | None) -> UserError:
    """The error of this rank; where other ranks bring something good, all raise that they differ."""
    if world_size(group) > 1:
        _compare_means(Header(), what, None, group)
    return UserError(fix)


def _compare_means(
    header: Header, what: str, weight: float | None, group: dist.ProcessGroup | None
) -> list[Header]:
    shape = range(_SHAPE, _SHAPE + header.dims)
    return wire.compare(
        "mean",
        header,
        lambda: f"{what}{'' if weight is None else ' with a weight'}",
        argument=0 if weight is None else 1,
        same=(_KIND, _DTYPE, _DIMS, *shape),
        group=group,
    )


def _mean_tensor(x: Tensor, weight: float | None, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach()
    dtype = x.dtype if x.is_floating_point() or x.is_complex() else torch.float32
    # Sums of half-precision values lose digits, and a sample count above 2048 does not fit them.
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    share = 1.0 if weight is None else float(weight)
    value = x.to(wide) * share if share else torch.zeros_like(x, dtype=wide)
    weights = share
    if world_size(group) > 1:
        header = wire.tensor_header(x)
        fits = x.numel() < wire.BODY - x.dim() and not x.is_complex()
        numbers = [share, *value.flatten().tolist()] if fits else [share]
        header = replace(header, body=(*header.body, *map(wire.bits_of, numbers)))
        headers = _compare_means(header, wire.described(x), weight, group)
        weights = sum(wire.float_of(h.body[x.dim()]) for h in headers)
        if fits:  # a few values need no second message
            rows = [list(map(wire.float_of, h.body[x.dim() + 1 :][: x.numel()])) for h in headers]
            value = torch.tensor(rows, dtype=torch.float64).sum(0).reshape(x.shape).to(x.device, wide)
        else:
            sent = value.contiguous()
            sent = sent if _can_send(sent, group) else sent.to(wire_device(group))
            dist.all_reduce(sent, group=group)
            value = sent.to(x.device)
    return (value / weights if weights else torch.full_like(value, float("nan"))).to(dtype)


def _can_send(x: Tensor, group: dist.ProcessGroup | None) -> bool:
    backends = dist.get_backend_config(group)
    return f"{x.device.type}:" in backends or (x.device.type == "cuda" and "nccl" in backends)


def _mean_dict(
    x: Mapping[Any, Any], weight: float | None, group: dist.ProcessGroup | None
) -> dict[Any, float]:
    own: dict[Any, float] = {}
    for key, value in x.items():
        number = _number(value)
        if number is None:
            kind = type(value).__name__
            raise _refused(f"mean of a dict takes numbers: {key!r} is {kind}", f"a dict with a {kind}", group)
        own[key] = number
    share = 1.0 if weight is None else float(weight)
    everybody = [(own, share)]
    if world_size(group) > 1:
        header, data = wire.pack((own, share), wire_device(group))
        headers = _compare_means(replace(header, kind=wire.DICT), "a dict", weight, group)
        headers = [replace(h, kind=wire.OBJECT) for h in headers]
        everybody = wire.collect(headers, data, None, group, torch.device("cpu")) or []
    totals: dict[Any, float] = {}
    weights: dict[Any, float] = {}
    # Ranks may give different keys, so they cannot add up blindly: position 3 of one is not position 3 of
    # another.
    for values, their_share in everybody:
        for key, value in values.items():
            totals[key] = totals.get(key, 0.0) + (value * their_share if their_share else 0.0)
            weights[key] = weights.get(key, 0.0) + their_share
    return {key: totals[key] / weights[key] if weights[key] else float("nan") for key in totals}
