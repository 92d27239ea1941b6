"""Compares an answer with what was expected and says in one line how they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def describe(value: Any) -> str:
    """A short description of any value: its type, with its shape or value where that is short."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = repr(value)
    if len(text) <= 60 and " at 0x" not in text:
        return text
    kind = f"a {type(value).__name__}"
    return f"{kind} with {_keys(value)}" if isinstance(value, Mapping) and value else kind


def _keys(value: Mapping[Any, Any]) -> str:
    """The first keys only: values may be long, and those of an environment secret."""
    shown = [key if len(key) <= 15 else f"{key[:12]}..." for key in map(repr, list(value)[:5])]
    rest = len(value) - len(shown)
    return f"the keys {', '.join(shown)}" + (f" and {rest} more" if rest else "")


def difference(got: Any, expected: Any, tolerance: float = 0.0) -> str:
    """ "" when equal, else one line: where, what came, what was expected. Shapes and lengths must match."""
    if _is_array(expected):
        return _array_difference(got, expected, tolerance)
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            return f"expected a dict, got {describe(got)}"
        if set(got) != set(expected):
            extra, lacking = (
                sorted(map(str, set(got) - set(expected))),
                sorted(map(str, set(expected) - set(got))),
            )
            return "keys differ: " + "; ".join(
                f"{word} {', '.join(keys[:4])}"
                for word, keys in (("missing", lacking), ("not expected", extra))
                if keys
            )
        return _first((f"[{key!r}]", got[key], expected[key]) for key in expected)(tolerance)
    if isinstance(expected, list | tuple):
        if not isinstance(got, list | tuple) and not _is_array(got):
            return f"expected {len(expected)} values, got {describe(got)}"
        if len(got) != len(expected):
            return f"got {len(got)} values, expected {len(expected)}"
        return _first((f"[{i}]", g, e) for i, (g, e) in enumerate(zip(got, expected, strict=True)))(tolerance)
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return _number_difference(got, expected, tolerance)
    same = type(got) is type(expected) and got == expected
    return "" if same else f"got {describe(got)}, expected {describe(expected)}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _first(items: Any) -> Any:
    def search(tolerance: float) -> str:
        for place, got, expected in items:
            wrong = difference(got, expected, tolerance)
            if wrong:
                return f"at {place}: {wrong}"
        return ""

    return search


def _number_difference(got: Any, expected: float, tolerance: float) -> str:
    try:
        value = float(got) if not isinstance(got, bool | str) else None
    except (TypeError, ValueError):
        value = None
    if value is None:
        return f"expected the number {expected:.8g}, got {describe(got)}"
    close = value == expected or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    return "" if close else f"got {value:.8g}, expected {expected:.8g}"


def _array_difference(got: Any, expected: Any, tolerance: float) -> str:
    import numpy as np

    def as_array(value: Any) -> Any:
        value = value.detach().cpu() if hasattr(value, "detach") else value
        return np.asarray(value)

    try:
        mine, theirs = as_array(got), as_array(expected)
    except (TypeError, ValueError, RuntimeError):
        return f"expected {describe(expected)}, got {describe(got)}"
    if mine.shape != theirs.shape:
        return f"got shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}"
    if mine.dtype.kind not in "biuf":
        return f"expected numbers, got an array of {mine.dtype}"
    close = mine == theirs
    if tolerance:
        close |= np.isclose(mine, theirs, rtol=tolerance, atol=tolerance)
    if np.all(close):
        return ""
    place = tuple(int(i) for i in np.argwhere(~close)[0]) if mine.ndim else ()
    where = f"first at {list(place)}: " if place else ""
    return (
        f"{int((~close).sum())} of {close.size} numbers differ, "
        f"{where}got {float(mine[place]):.8g}, expected {float(theirs[place]):.8g}"
    )
