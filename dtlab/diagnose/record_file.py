"""Read a run record: ``record.jsonl``, or the folder that ``dtlab train`` left.

Any file may be given, so nothing in it is taken on trust: a field that is missing or of another kind is None.
"""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dtlab.errors import UserError, one_line
from dtlab.train.record import RECORD

__all__ = ["Event", "RunRecord", "read_record"]

_STARTS = ("start", "resume")
_MOST_BYTES = 2**28
_RUNS = Path("runs")
_GIVE = "give a run's folder or its record.jsonl"


@dataclass(frozen=True)
class Event:
    """One line of the record."""

    kind: str
    values: dict[str, Any]

    def number(self, *keys: str) -> float | None:
        """The finite number at ``values[key][key]...``; None where there is none."""
        found = self.value(*keys)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        # A whole number of hundreds of digits is no float.
        return float(found) if abs(found) < 1e300 and math.isfinite(found) else None

    def text(self, *keys: str) -> str | None:
        """The text there, on one line, of at most 300 characters, printable; None where there is none."""
        found = self.value(*keys)
        if not isinstance(found, str) or not found.strip():
            return None
        return one_line(found)  # somebody else may have written the file

    def value(self, *keys: str) -> Any:
        found: Any = self.values
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found


@dataclass(frozen=True)
class RunRecord:
    """The events of one run in order; a run that was started again has several starts."""

    path: Path
    events: tuple[Event, ...]
    is_torn: bool = False  # the last line was cut short and is left out

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @cached_property
    def start(self) -> Event:
        """The last start, whose configuration and world size the end belongs to."""
        return self.of(*_STARTS)[-1]

    @cached_property
    def end(self) -> Event | None:
        """How the last attempt ended: "end", "failed", or None."""
        last = self.attempts[-1]
        return next((event for event in reversed(last) if event.kind in ("end", "failed")), None)

    @cached_property
    def attempts(self) -> list[list[Event]]:
        """The events, cut before each start."""
        found: list[list[Event]] = []
        for event in self.events:
            if event.kind in _STARTS:
                found.append([])
            found[-1].append(event)
        return found


def read_record(path: Path) -> RunRecord:
    """Read ``path``, a record or the folder of a run.

    Raises:
        UserError: there is no such file, it cannot be read, or it is no run record; one line says why.
    """
    file = _file_in(path)
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"run = {str(file)!r}: neither a file nor a folder; {_GIVE}")
        if about.st_size > _MOST_BYTES:
            raise UserError(f"run = {str(file)!r}: more than 256 MiB; give the record.jsonl of one run")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"run = {str(file)!r}: {error.strerror}; {_GIVE}") from None
    except UnicodeDecodeError:
        raise UserError(f"run = {str(file)!r}: not text; {_GIVE}") from None
    lines = text.split("\n")
    is_whole = lines[-1] == ""
    if is_whole:
        lines.pop()
    if not text.strip():
        raise UserError(f"run = {str(file)!r}: empty; the run ended before it wrote its first line")
    is_torn = not is_whole and len(lines) > 1 and not _is_json(lines[-1])
    if is_torn:  # the run was killed, or the disk was full, while this line was written
        lines.pop()
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() and number < len(lines):
            continue
        events.append(_event(file, number, line, is_first=not events))
    return RunRecord(file, tuple(events), is_torn)


def _file_in(path: Path) -> Path:
    try:
        if len(path.parts) == 1 and not path.exists() and (_RUNS / path / RECORD).is_file():
            path = _RUNS / path  # the name alone, as dtlab runs lists it
        if not path.is_dir():
            return path
        if (path / RECORD).is_file():
            return path / RECORD
        runs = [each.parent for each in path.glob(f"*/{RECORD}")]
        newest = max(runs, key=lambda each: (each / RECORD).stat().st_mtime, default=None)
    except OSError as error:
        raise UserError(f"run = {str(path)!r}: {error.strerror}; {_GIVE}") from None
    if newest is None:
        raise UserError(f"run = {str(path)!r}: no {RECORD} in it; give the folder that dtlab train named")
    raise UserError(
        f"run = {str(path)!r}: holds {len(runs)} run(s) and is none itself; give one, the newest is {newest}"
    )


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _event(file: Path, number: int, line: str, *, is_first: bool) -> Event:
    where = f"run = {str(file)!r}: line {number}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is no JSON; {_GIVE}") from None
    kind = values.get("event") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{where} is JSON, but no event of a run record; {_GIVE}")
    if is_first and (kind not in _STARTS or not isinstance(values.get("config"), dict)):
        raise UserError(f"{where} is not the start of a run; give a whole record.jsonl")
    return Event(kind, values)
