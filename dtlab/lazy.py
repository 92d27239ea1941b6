"""Names of a package that are loaded on first use, so that importing it costs milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["loaded_on_first_use"]


def loaded_on_first_use(
    package: str, home: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package whose ``home`` says which module has each name.

    >>> getter, names = loaded_on_first_use("dtlab", {"UserError": "dtlab.errors"})
    >>> getter("UserError").__name__, names()
    ('UserError', ['UserError'])
    """

    def getter(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter, lambda: sorted(home)
