"""Recognises an answer that hands in the reference, or calls it, instead of being written by the reader."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any


def copied_name(answer: Any, references: Sequence[str]) -> str | None:
    """The dotted name of the reference that `answer` is or calls, or None.

    It follows global names, attributes of modules, imports inside functions, closures, defaults, `partial`
    and helper functions that are defined beside the answer.
    """
    known = {id(_resolve(name)): name for name in references}
    return next((known[id(value)] for value in _reachable(answer, set()) if id(value) in known), None)


def _resolve(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _reachable(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if isinstance(value, functools.partial):
        yield from _reachable(value.func, seen)
    inner = getattr(value, "__wrapped__", getattr(value, "__func__", value))
    if inner is not value:
        yield inner
    value = inner
    if isinstance(value, type):
        for member in vars(value).values():
            yield from _reachable(member, seen)
    code = getattr(value, "__code__", None)
    if code is None or str(getattr(value, "__module__", "")).split(".")[0] in ("torch", "numpy", "dtlab"):
        return  # library code is not the reader's: what it calls is its own affair
    for cell in value.__closure__ or ():
        try:
            yield from _reachable(cell.cell_contents, seen)
        except ValueError:
            continue  # an empty cell
    for default in value.__defaults__ or ():
        yield from _reachable(default, seen)
    for name_set in _name_sets(code):
        for found in _named(name_set, value.__globals__):
            yield from _reachable(found, seen)


def _name_sets(code: CodeType) -> Iterator[tuple[str, ...]]:
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _name_sets(constant)


def _named(names: tuple[str, ...], namespace: dict[str, Any]) -> Iterator[Any]:
    modules: list[ModuleType] = []
    for name in names:
        value = namespace.get(name, sys.modules.get(name))
        if isinstance(value, ModuleType):
            modules.append(value)
        elif value is not None:
            yield value
    # a.b.c appears as the names a, b, c; look each up in every module met, going down one level at a time
    for module in modules:
        for name in names:
            value = vars(module).get(name)
            if isinstance(value, ModuleType) and value not in modules:
                modules.append(value)
            elif value is not None and not isinstance(value, ModuleType):
                yield value
