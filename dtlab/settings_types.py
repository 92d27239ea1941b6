"""The types of settings: what a frozen dataclass of settings was given, against what its fields say.

The command line converts words by the fields' types; a script or a notebook passes what it likes. Both meet
here, so ``OptimConfig(name="adam")`` and ``--optim.name adam`` get one answer. No torch, so that ``--help``
answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dtlab.errors import UserError

__all__ = ["settle_types"]

_MOST = 2**63 - 1
_WRONG = object()


def settle_types(settings: Any, table: str) -> None:
    """Check every field of a dataclass against its annotation; what is only spelt otherwise is replaced.

    A list becomes a tuple, text becomes a path where a path belongs, 64.0 becomes 64 where a whole number
    belongs, and NumPy's numbers become Python's. Ranges are not looked at, nor what a mapping holds, paths
    apart.

    Args:
        settings: an instance whose ``__post_init__`` calls this first.
        table: its name in front of the fields'; "" where they stand alone.

    Raises:
        UserError: a value of another type, an empty text, or a whole number of more than 64 bits.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Shape:
    ...     widths: tuple[int, ...] = ()
    ...     def __post_init__(self):
    ...         settle_types(self, "shape")
    >>> Shape(widths=[64, 32.0]).widths
    (64, 32)
    >>> Shape(widths=64)
    Traceback (most recent call last):
    dtlab.errors.UserError: shape.widths = 64: give a list of whole numbers
    """
    hints = _hints(settings.__class__)
    for entry in fields(settings):
        value, hint = getattr(settings, entry.name), hints[entry.name]
        settled = _settled(value, hint)
        if settled is _WRONG:
            where = f"{table}.{entry.name}" if table else entry.name
            shown = repr(value)
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            raise UserError(f"{where} = {shown}: give {_described(hint)}")
        if settled is not value:
            object.__setattr__(settings, entry.name, settled)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _settled(value: Any, hint: Any) -> Any:
    """``value`` as the hint wants it; _WRONG where it is something else."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value if isinstance(value, str) and value in inner else _WRONG
    if origin is tuple:
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            return _WRONG
        parts = tuple(_settled(part, inner[0]) for part in value)
        return _WRONG if _WRONG in parts else value if parts == value else parts
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return _WRONG
        if inner[1] is not Path:
            return value
        paths = {name: _path(part) for name, part in value.items()}
        return _WRONG if _WRONG in paths.values() else paths
    if is_dataclass(hint):
        return value if isinstance(value, hint) else _WRONG  # type: ignore[arg-type]
    if NoneType in inner:
        return (
            None if value is None else _settled(value, next(kind for kind in inner if kind is not NoneType))
        )
    return _PLAIN[hint](value)


def _bool(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    return bool(value) if str(getattr(value, "dtype", "")) == "bool" else _WRONG


def _number(value: Any) -> Any:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return _WRONG
    try:
        number = float(value)
        return value if type(value) in (int, float) else number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several numbers
        return _WRONG


def _whole(value: Any) -> Any:
    number = _number(value)
    if isinstance(number, float):
        number = value.__index__() if hasattr(value, "__index__") else number
        number = int(number) if number == number // 1 and abs(number) <= _MOST else _WRONG
    return number if number is not _WRONG and abs(number) <= _MOST else _WRONG


def _text(value: Any) -> Any:
    return value if isinstance(value, str) and value and "\0" not in value else _WRONG


def _path(value: Any) -> Any:
    if isinstance(value, Path):
        return value if "\0" not in str(value) else _WRONG
    return _WRONG if _text(value) is _WRONG else Path(value)


_PLAIN: dict[Any, Any] = {bool: _bool, int: _whole, float: _number, str: _text, Path: _path}


def _described(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"{', '.join(inner[:-1])} or {inner[-1]}"
    if origin is tuple:
        return f"a list of {_PLURAL[inner[0]]}"
    if origin is Mapping:
        return "a table of names and values"
    if is_dataclass(hint):
        return f"a {hint.__name__}"  # type: ignore[union-attr]
    if NoneType in inner:
        return f"{_described(next(kind for kind in inner if kind is not NoneType))}, or leave it out"
    return _ONE[hint]


_ONE = {
    bool: "true or false",
    int: "a whole number of at most 64 bits",
    float: "a number",
    str: "a text that is not empty",
    Path: "the name of a file or folder, not an empty one",
}
_PLURAL = {int: "whole numbers", str: "names", float: "numbers"}
