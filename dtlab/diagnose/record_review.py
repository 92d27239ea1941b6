"""``dtlab doctor --run RECORD``: read a run record and say what to fix (lesson 12)."""

from __future__ import annotations

from pathlib import Path

from dtlab.diagnose import record_checks, record_speed
from dtlab.diagnose.doctor import Report
from dtlab.diagnose.record_file import read_record

__all__ = ["review_record"]

_CHECKS = (
    record_checks.ending,
    record_checks.origin,
    record_checks.attempts,
    record_checks.samples,
    record_checks.losses,
    record_checks.skipped,
    record_checks.epochs,
    record_speed.speed,
    record_speed.memory,
    record_checks.price,
    record_checks.notes,
)


def review_record(path: str | Path) -> Report:
    """The findings about a run, each OK, WARN or FAIL with its fix; ``report.ok`` when nothing FAILs.

    ``path``: a ``record.jsonl``, or the folder of a run. What the record does not hold gets no line.

    Raises:
        UserError: there is no such file, it is empty, or it is no run record. A torn last line is left out.

    Example::

        print(review_record("runs/20261130-120000-1"))
    """
    record = read_record(Path(path))
    lines = [line for check in _CHECKS for line in check(record)]
    return Report(tuple(lines), good="the run is sound", bad="the run is not sound")
