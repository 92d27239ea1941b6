"""A table of measured runs: its rows by column, and the number in a cell, or what is wrong with it.

- CSV in UTF-8, with or without a byte order mark, any line ends, quoted or not. Columns in any order and
  case; others are ignored. Lines that begin with # are notes. Cells that a row lacks at its end are blank.
- A row with more cells than the header is left out: a comma that was not quoted has moved its columns.
- A number may be written 8, 8.0, 1,024 or 3.1e5, and with a unit where a column has one. GB is no unit of
  memory here: tables mean both 1e9 bytes and GiB by it.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from dtlab.errors import UserError

MEMORY: dict[str, float] = {"gib": 1.0, "mib": 1 / 1024, "kib": 1 / 1024**2, "bytes": 1 / 1024**3}
TOKENS = {"k": 1024.0, "tokens": 1.0, "tok": 1.0}
RATE = {"tokens/s": 1.0, "tok/s": 1.0}
BYTES = {"bytes": 1.0, "b": 1.0, "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3}
_SPELLED = {"gib": "GiB", "mib": "MiB", "kib": "KiB", "gb": "GB", "mb": "MB"}
MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


class Row(dict[str, str]):
    """Cells by column, in lower case, and the line of the file where the row begins."""

    line: int = 0


def place(row: Mapping[str, str], number: int) -> str:
    """ "line 7" of a row of a file, else "row 3"."""
    line = getattr(row, "line", 0)
    return f"line {line}" if line else f"row {number}"


def read_rows(path: Path, refused: list[str] | None = None) -> list[Row]:
    """The rows of a CSV.

    Args:
        refused: takes a line for each row with more cells than the header.

    Raises:
        UserError: no such file, no CSV in UTF-8, or two columns of one name.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _rows(file, str(path), refused)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"runs = {str(path)!r}: {error}; give a CSV file with a header, in UTF-8") from None


class _Lines:
    """The lines of a file without notes and blank lines, but with all of a quoted cell; counted."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.number, self.at_start, self.begun = file, 0, True, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.number += 1
            if self.at_start:
                if line.startswith("#") or not line.strip():
                    continue
                self.at_start, self.begun = False, self.number
            yield line


def _rows(file: TextIO, path: str, refused: list[str] | None) -> list[Row]:
    lines = _Lines(file)
    found: list[Row] = []
    names: list[str] | None = None
    for cells in csv.reader(lines):
        lines.at_start = True
        cells = [cell.strip() for cell in cells]
        if names is None:
            names = [name.lower() for name in cells]
            twice = {name for name in names if name and names.count(name) > 1}
            if twice:
                raise UserError(f"runs = {path!r}: two columns are named {min(twice)!r}; name each once")
        elif any(cells[len(names) :]):
            if refused is not None:
                refused.append(
                    f"line {lines.begun}: has {len(cells)} cells, the header {len(names)}: put a cell that "
                    "holds a comma in quotes"
                )
        elif any(cells):
            row = Row(zip(names, cells + [""] * (len(names) - len(cells)), strict=False))
            row.line = lines.begun
            found.append(row)
    return found


def number(row: Mapping[str, str], *names: str, units: Mapping[str, float] | None = None) -> float | None:
    """The number in the first of these columns that is not blank; None where all are.

    Args:
        units: what may stand behind the number, in lower case, and how much of the column's own unit it is.

    Raises:
        UserError: no number, or another unit.

    >>> number({"mem": "43008 MiB"}, "mem", units=MEMORY), number({"n": "1,024"}, "n")
    (42.0, 1024.0)
    """
    for name in names:
        text = row.get(name, "")
        if text:
            return _value(name, text, units or {})
    return None


def _value(name: str, text: str, units: Mapping[str, float]) -> float:
    found = re.fullmatch(r"([+-]?[\d.,]+(?:e[+-]?\d+)?)\s*(\D*)", text, re.IGNORECASE | re.ASCII)
    figure, unit = (found.group(1), found.group(2).strip().lower()) if found else ("", "")
    if "," in figure:
        grouped = units is not MEMORY and re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?", figure)
        figure = figure.replace(",", "") if grouped else ""
    try:
        value = float(figure) * (units[unit] if unit else 1.0)
    except (ValueError, KeyError):
        value = math.nan
    if not math.isfinite(value):
        spelled = [_SPELLED.get(unit, unit) for unit in units]
        known = f", alone or in {', '.join(spelled)}" if units else " without a unit"
        raise UserError(f"{name} = {text!r}: give a number{known}")
    return value


def whole(row: Mapping[str, str], *names: str, units: Mapping[str, float] | None = None) -> int | None:
    """The same for a whole number of 1 or more.

    >>> whole({"tp": "8.0"}, "tp"), whole({}, "tp")
    (8, None)
    """
    value = number(row, *names, units=units)
    if value is not None and not (value == int(value) and 1 <= value < 1e12):
        name = next(name for name in names if row.get(name))
        raise UserError(f"{name} = {row[name]!r}: give a whole number of 1 or more")
    return None if value is None else int(value)
