"""A pytest plugin beside nbval: times each notebook, counts its cells, and refuses stderr and no-ops.

nbval compares outputs but lets a cell write warnings to stderr, and a run that collected nothing looks green.
This plugin fails a cell that wrote to stderr without being tagged `varies` or `lab-failure`, and writes one
JSON record a notebook to the file named by DTLAB_NBVAL_RECORD, from which `dtlab.course.run` judges the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtlab.course.notebook_format import import_nbformat

import_nbformat()  # pytest loads this plugin before nbval, which imports it too

_records: dict[str, dict[str, Any]] = {}
QUIET_TAGS = {"varies", "lab-failure"}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Fail a passing cell whose stderr was not announced by a tag."""
    outcome = yield
    cell = getattr(item, "cell", None)
    if cell is None or outcome.excinfo is not None:  # type: ignore[attr-defined]
        return
    stderr = "".join(o.text for o in item.test_outputs or () if o.get("name") == "stderr")
    if stderr.strip() and not QUIET_TAGS & set(cell.metadata.get("tags", ())):
        message = f"{item.nodeid} wrote to stderr; fix the cause or tag the cell 'varies':\n{stderr}"
        outcome.force_exception(pytest.fail.Exception(message, pytrace=False))  # type: ignore[attr-defined]


def pytest_runtest_logreport(report: Any) -> None:
    """Add one phase of one cell to the record of its notebook; kernel start and stop are phases too."""
    record = _records.setdefault(report.nodeid.split("::")[0], {"seconds": 0.0, "executed": 0, "failed": 0})
    record["seconds"] += report.duration
    record["executed"] += report.when == "call" and not report.skipped
    record["failed"] += report.failed


def pytest_sessionfinish() -> None:
    """Write the records."""
    path = os.environ.get("DTLAB_NBVAL_RECORD")
    if path:
        Path(path).write_text(json.dumps(_records), encoding="utf-8")
