"""A job's own figures from a TOML or JSON file, for a ladder that starts nothing (lesson 01)."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import fields
from pathlib import Path

from dtlab.diagnose.ladder import Figures
from dtlab.errors import UserError

__all__ = ["read_figures"]

_KNOWN = tuple(entry.name for entry in fields(Figures) if entry.name not in ("broken", "fixes"))


def read_figures(name: str | Path) -> Figures:
    """The figures of a file, whose keys are the fields of :class:`Figures`.

    Raises:
        UserError: no such file, another format, an unknown key, or a value out of range.

    >>> read_figures("job.toml")  # doctest: +SKIP
    Figures(source='...', ranks=8, ...)
    """
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"figures = {str(path)!r}: {error.strerror}; name a TOML or JSON file, for example "
            "examples/ladder/s0_8_cards.toml"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"figures = {str(path)!r}: not text ({error})") from None
    is_json = path.suffix.lower() == ".json"
    try:
        values = json.loads(text) if is_json else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise UserError(f"figures = {str(path)!r}: not valid {kind} ({error})") from None
    if not isinstance(values, dict):
        raise UserError(
            f"figures = {str(path)!r}: holds a {type(values).__name__}; give one object of figures"
        )
    for key in values:
        if key not in _KNOWN:
            near = difflib.get_close_matches(key, _KNOWN, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KNOWN)}"
            raise UserError(f"figures = {str(path)!r}: unknown key {key!r}; {hint}")
    try:
        return Figures(**values)
    except UserError as error:
        raise UserError(f"figures = {str(path)!r}: {error}") from None
