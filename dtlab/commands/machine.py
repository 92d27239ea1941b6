"""``dtlab doctor``."""

from __future__ import annotations


def doctor(*, json: bool = False) -> int:
    """Check this machine: every line is OK, WARN or FAIL, with the fix.

    Parameters
    ----------
    json
        Print one JSON object instead of lines.
    """
    from dtlab.diagnose.doctor import doctor as examine

    report = examine()
    print(report.to_json() if json else report)
    return 1 if report.failed else 0
