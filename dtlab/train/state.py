"""A nested state as flat tensors and JSON, and back: what a checkpoint can hold without pickle (lesson 13).

``flatten`` takes state dicts as PyTorch objects give them. Tensors and NumPy arrays leave under a path such
as ``optimizer/state/0/exp_avg``; the rest becomes JSON that keeps what JSON has no word for: integer keys,
tuples, infinities, bytes. ``unflatten`` gives the same values back. Anything else is refused by its path,
since only code could restore it and a file must not name code to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtlab.errors import UserError

__all__ = ["flatten", "unflatten"]

_TENSOR, _ARRAY, _BYTES, _TUPLE, _FLOAT, _DICT = "$tensor", "$array", "$bytes", "$tuple", "$float", "$dict"
_DTYPE, _DEVICE = "$dtype", "$device"


def flatten(state: Any, root: str = "state") -> tuple[dict[str, Tensor], Any]:
    """``(tensors by path, JSON tree)`` of a state.

    Args:
        state: dicts, lists, tuples, numbers, strings, None, bytes, tensors (DTensors too), NumPy arrays and
            numbers, ``torch.dtype`` and ``torch.device``.
        root: first word of every path.

    Returns:
        The tensors are detached but share their memory with the state.

    Raises:
        UserError: a value of another type, with its path.

    >>> tensors, tree = flatten({"lr": 0.1, 0: torch.ones(2), "betas": (0.9, 0.999)})
    >>> list(tensors), tree["$dict"][1]
    (['state/0'], [0, {'$tensor': 'state/0'}])
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _down(state, root, tensors)


def unflatten(tree: Any, tensors: Mapping[str, Tensor] | Callable[[str], Tensor]) -> Any:
    """The state that :func:`flatten` took apart.

    ``tensors``: the flat tensors, or a function that gives one by its path.

    Raises:
        UserError: a tensor is missing, or the tree is not one of ours.

    >>> state = {"betas": (0.9, 0.999), 0: torch.ones(2)}
    >>> tensors, tree = flatten(state)
    >>> unflatten(tree, tensors)
    {'betas': (0.9, 0.999), 0: tensor([1., 1.])}
    """
    return _up(tree, tensors if callable(tensors) else _getter(tensors))


def _down(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _down(value.item(), path, tensors)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized:
            kind = "quantized" if value.is_quantized else "sparse"
            raise UserError(
                f"{path} is a {kind} tensor: a checkpoint holds dense ones; save its parts, for example "
                "indices() and values()"
            )
        return {_TENSOR: _keep(value.detach(), path, tensors)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise UserError(f"{path} is an array of {value.dtype}: a checkpoint holds arrays of numbers only")
        plain = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
        return {_ARRAY: _keep(plain, path, tensors)}
    if isinstance(value, bytes | bytearray):
        return {_BYTES: _keep(torch.tensor(list(value), dtype=torch.uint8), path, tensors)}
    if isinstance(value, torch.dtype):
        return {_DTYPE: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {_DEVICE: str(value)}
    if isinstance(value, Mapping):
        return _down_dict(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [_down(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    raise UserError(
        f"{path} is a {type(value).__name__}: a checkpoint holds tensors, arrays, numbers, strings, lists "
        "and dicts; give the object's own state_dict() or to_dict()"
    )


def _down_dict(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    items = {key: _down(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if all(isinstance(key, str) for key in items) and not any(key.startswith("$") for key in items):
        return items
    # JSON has string keys only; an optimizer numbers its parameters
    return {_DICT: [[_down(key, f"{path} (a key)", tensors), item] for key, item in items.items()]}


def _keep(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    name, number = path, 1
    while name in tensors:  # {"a/b": x} and {"a": {"b": y}} have one path
        number += 1
        name = f"{path}~{number}"
    tensors[name] = tensor
    return name


def _getter(tensors: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
    def get(name: str) -> Tensor:
        if name not in tensors:
            raise UserError(f"tensor {name!r} is missing")
        return tensors[name]

    return get


def _up(tree: Any, get: Callable[[str], Tensor]) -> Any:
    if isinstance(tree, list):
        return [_up(item, get) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, inner),) = tree.items()
        if tag in _UP:
            return _UP[tag](inner, get)
        if tag.startswith("$"):
            raise UserError(f"{tag!r} is no kind of value that this dtlab knows")
    return {key: _up(item, get) for key, item in tree.items()}


def _key(tree: Any, get: Callable[[str], Tensor]) -> Any:
    key = _up(tree, get)
    return tuple(key) if isinstance(key, list) else key


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"{name!r} is no torch.dtype")
    return dtype


_UP: dict[str, Callable[[Any, Callable[[str], Tensor]], Any]] = {
    _TENSOR: lambda name, get: get(name),
    _ARRAY: lambda name, get: get(name).cpu().numpy(),
    _BYTES: lambda name, get: bytes(get(name).tolist()),
    _TUPLE: lambda items, get: tuple(_up(item, get) for item in items),
    _FLOAT: lambda text, get: float(text),
    _DICT: lambda pairs, get: {_key(key, get): _up(item, get) for key, item in pairs},
    _DTYPE: lambda name, get: _dtype(name),
    _DEVICE: lambda name, get: torch.device(name),
}
