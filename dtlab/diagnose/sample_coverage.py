"""Did every sample reach the model once? The verdict on what ``dtlab.data.coverage`` counts (lesson 04)."""

from __future__ import annotations

from dtlab.data.coverage import Coverage, Seen
from dtlab.diagnose.checks import FAIL, OK, Line

__all__ = ["coverage_line", "sample_coverage"]


def sample_coverage(counted: Coverage | Seen) -> Line:
    """Judge a running job's ended epochs (``Coverage``), or what ranks returned (``seen(ids_by_rank, ids)``).

    >>> from dtlab.data.coverage import seen
    >>> sample_coverage(seen([[0, 1], [1, 2]], universe=range(4))).value
    '3 of 4 rows seen, 1 of them again, 1 never'
    """
    if isinstance(counted, Seen):
        return coverage_line(
            counted.unique_rows, len(counted.ids), counted.duplicate_rows, len(counted.never), 1
        )
    rows = len(counted.state_dict()["seen"])
    return coverage_line(counted.unique, rows, counted.duplicates, sum(counted.missed), counted.epochs)


def coverage_line(unique: int, rows: int, duplicates: int, missed: int, epochs: int = 1) -> Line:
    """The finding: ``duplicates`` and ``missed`` are added up over the ``epochs``; both should be 0."""
    value = f"{unique:,} of {rows:,} rows seen"
    if not duplicates and not missed:
        return Line(OK, "samples", f"{value}, each once in each epoch")
    over = f" over {epochs} epochs" if epochs > 1 else ""
    value += f", {duplicates:,} of them again, {missed:,} never{over}"
    fix = "give every rank its part of one order: GlobalBatchSampler, with tail='keep' so that none is lost"
    if not duplicates:
        fix = "keep the tail of the epoch: GlobalBatchSampler with tail='keep'"
    return Line(FAIL, "samples", value, fix)
