"""``dtlab doctor``."""

from __future__ import annotations

from pathlib import Path


def doctor(*, run: Path | None = None, json: bool = False) -> int:
    """Check this machine, or a run that was made: every line is OK, WARN or FAIL, with the fix.

    Parameters
    ----------
    run
        Review this run instead of the machine: its folder, or its record.jsonl.
    json
        Print one JSON object instead of lines.
    """
    if run is not None:
        from dtlab.diagnose.record_review import review_record

        report = review_record(run)
    else:
        from dtlab.diagnose.doctor import doctor as examine

        report = examine()
    print(report.to_json() if json else report)
    return 1 if report.failed else 0
