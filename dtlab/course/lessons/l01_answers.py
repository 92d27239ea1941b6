"""What the checks of lesson 01 make of an answer before they compare it."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed
from dtlab.course.compare import describe

PARTS = ("data", "compute", "sync")


def same_integer(got: Any, right: int) -> bool:
    return isinstance(got, int) and not isinstance(got, bool) and got == right


def total_of(rows: list[Any]) -> int:
    return sum(row[part] for row in rows for part in PARTS)


def list_of(got: Any) -> list[Any]:
    if got is None or got is ...:
        raise NotImplementedError
    if not isinstance(got, list | tuple):
        raise CheckFailed(f"the trace is {describe(got)}: give a list with one dict a step.")
    return list(got)


def dict_of(got: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """The answer as a dict with these keys; a stub says so, anything else is refused with the keys."""
    if got is None or got is ...:
        raise NotImplementedError
    if not isinstance(got, dict) or set(got) != set(keys):
        raise CheckFailed(f"got {describe(got)}: give a dict with the keys {', '.join(map(repr, keys))}.")
    return got
