"""The runs of a folder: list them, compare two of them, find the one behind a checkpoint.

Everything is read from the ``record.jsonl`` that each run wrote, so there is no data base to keep in step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtlab.diagnose.record_file import Event, RunRecord, read_record
from dtlab.errors import UserError
from dtlab.train.record import RECORD
from dtlab.train.record_settings import settings_of

__all__ = ["Difference", "Run", "compare", "find_by_checkpoint", "list_runs", "read_run"]

# How a run ended and what it took; what is compared between two runs.
RESULTS = (
    "auc", "auc_validation", "log_loss", "bits_per_byte", "epochs", "samples", "samples_per_second",
    "communication_share", "memory_bytes", "seconds", "usd_estimate", "stopped_by",
)  # fmt: skip
_PLACES = (
    "run.output",
    "run.folder",
    "run.resume",
    "run.mlflow",
    "data.root",
)  # where a run lies says nothing about it
_MOST_PARENTS = 4


@dataclass(frozen=True)
class Run:
    """One run as its record tells it.

    Attributes:
        folder: of the run.
        record: its events.
    """

    folder: Path
    record: RunRecord

    @property
    def status(self) -> str:
        """finished, stopped, failed, or unfinished: it goes on still, or was killed."""
        end = self.record.end
        if end is None:
            return "unfinished"
        return "failed" if end.kind == "failed" else "stopped" if end.values.get("stopped_by") else "finished"

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its dotted name, and what else decides a result: data, ranks, commit, versions."""
        return settings_of(self.record.start.values)

    @property
    def results(self) -> dict[str, Any]:
        """The figures of the end; empty where there is none."""
        end = self.record.end
        return {} if end is None else {name: end.values[name] for name in RESULTS if name in end.values}

    @property
    def metric(self) -> tuple[str, float] | None:
        """The figure of the test, else of the best validation so far; None where there is neither."""
        end = self.record.end or Event("none", {})
        for name in ("auc", "log_loss"):
            value = end.number(name)
            if value is not None:
                return f"test {name}", value
        seen = [event.number("auc") for event in self.record.of("validation")]
        values = [value for value in seen if value is not None]
        return ("validation auc", max(values)) if values else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "run": str(self.folder),
            "status": self.status,
            "settings": self.settings,
            "results": self.results,
        }


@dataclass(frozen=True)
class Difference:
    """One name whose value is not the same in two runs; None where a run lacks it."""

    name: str
    first: Any
    second: Any


def read_run(path: Path) -> Run:
    """The run that lies in the folder ``path``, or whose record ``path`` is.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    record = read_record(path)
    return Run(record.path.parent, record)


def list_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """All runs below ``folder``, by name, which is the order of their starts; and a line for each unreadable.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"runs = {str(folder)!r}: no such folder; give run.output of your runs")
    runs, unreadable = [], []
    for record in sorted({*folder.glob(RECORD), *folder.glob(f"*/{RECORD}"), *folder.glob(f"*/*/{RECORD}")}):
        try:
            runs.append(read_run(record))
        except UserError as error:
            unreadable.append(str(error))
    return runs, unreadable


def compare(first: Run, second: Run) -> tuple[list[Difference], list[Difference]]:
    """Settings and results that differ, in the order of the record.

    Where a run lies is left out. What one of them lacks is None there.
    """
    return (
        [each for each in _differing(first.settings, second.settings) if each.name not in _PLACES],
        _differing(first.results, second.results),
    )


def find_by_checkpoint(path: Path, folder: Path) -> Run:
    """The run that wrote ``path``: a checkpoint, a model folder, or a file in one of them.

    The record lies above it. A model folder that was copied elsewhere names its run; that is looked for
    where it was, and under ``folder``, and taken when its configuration is the same.

    Raises:
        UserError: there is no such path, or no run is found.
    """
    if not path.exists():
        raise UserError(f"checkpoint = {str(path)!r}: no such file or folder; give a checkpoint of a run")
    place = path.resolve()
    for parent in [place, *place.parents][: _MOST_PARENTS + 1]:
        if (parent / RECORD).is_file():
            return read_run(parent)
    about = _description(place)
    named = Path(about["about"]["run"]) if about else None
    for candidate in (named, folder / named.name) if named is not None else ():
        if candidate is not None and (candidate / RECORD).is_file():
            found = read_run(candidate)
            if found.record.start.values.get("config") == about["config"]:
                return found
    raise UserError(
        f"checkpoint = {str(path)!r}: no {RECORD} above it"
        + (f", and its run {str(named)!r} is not there" if named is not None else "")
        + f" nor under {str(folder)!r}; give the folder of your runs"
    )


def _description(place: Path) -> dict[str, Any]:
    """What a model folder says of its run; {} where it says nothing that can be read."""
    file = place / "model.json" if place.is_dir() else place.parent / "model.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found["about"]["run"], str) and "config" in found else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    names = [*first, *(name for name in second if name not in first)]
    return [
        Difference(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    ]
