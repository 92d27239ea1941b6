"""Runs the measurement of a check on real ranks; ranks that wait for each other become a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed

if TYPE_CHECKING:
    from dtlab import RankError


def require_function(answer: Any) -> None:
    """Raise CheckFailed for an answer that is a value and not a function."""
    if not callable(answer):
        raise CheckFailed(f"the answer is {answer!r}: hand in the function itself.")


def on_ranks(nproc: int, measure: Callable[[Any], Any], answer: Any) -> list[Any]:
    """`measure(answer)` on every rank, results in rank order.

    Raises CheckFailed when the ranks wait for each other, with what each of them waits in. Every other
    failure of a rank is raised as it is.
    """
    from dtlab import RankError, launch

    try:
        return launch(measure, nproc, answer, timeout=8, echo=False)
    except RankError as error:
        if error.exception_type not in ("TimeoutError", "LateRankError"):
            raise
        raise CheckFailed(
            f"the ranks wait for each other: {_standing(error)}.\n"
            "Where to look: every rank must make the same collective calls, also one without samples; "
            "no `if` on the rank or on this rank's own data around a collective."
        ) from None


def _standing(error: RankError) -> str:
    """Which ranks are in which operation; the launcher's own words when they did not answer."""
    inside: dict[str, list[str]] = {}
    for report in error.reports:
        state = report.state
        if state is not None and state.operation and not state.completed:
            inside.setdefault(state.operation, []).append(str(report.rank))
    if len(inside) < 2:
        return error.message
    words = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} in {op}" for op, ranks in inside.items()
    ]
    return "; ".join(words) + (" (the check's, after your function returned)" if "barrier" in inside else "")
