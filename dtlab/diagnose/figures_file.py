"""A job's own figures from a TOML or JSON file, for a ladder that starts nothing (lesson 01)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from dtlab.diagnose.ladder import Figures
from dtlab.errors import UserError, one_line
from dtlab.settings_file import near_name, read_settings

__all__ = ["read_figures"]

_KNOWN = tuple(entry.name for entry in fields(Figures) if entry.name not in ("broken", "fixes"))


def read_figures(name: str | Path) -> Figures:
    """The figures of a file, whose keys are the fields of :class:`Figures`.

    Raises:
        UserError: no such file, another format, an unknown key or one given twice, or a value out of range.

    >>> read_figures("job.toml")  # doctest: +SKIP
    Figures(source='...', ranks=8, ...)
    """
    path = Path(name)
    values = read_settings(path, "figures", "examples/ladder/s0_8_cards.toml", json_too=True)
    for key in values:
        if key not in _KNOWN:
            near = near_name(key, _KNOWN)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(_KNOWN)}"
            raise UserError(f"figures = {str(path)!r}: unknown key {key!r}; {hint}")
    try:
        if isinstance(values.get("source"), str):  # anybody may have written the file
            values["source"] = one_line(values["source"])
        return Figures(**values)
    except UserError as error:
        raise UserError(f"figures = {str(path)!r}: {error}") from None
