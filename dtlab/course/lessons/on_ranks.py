"""Runs the measurement of a check on real ranks; ranks that do not come to an end become a refusal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed
from dtlab.course.compare import describe

if TYPE_CHECKING:
    from dtlab import RankError
    from dtlab.ranks.rank_state import Frame, RankState
    from dtlab.ranks.report import RankReport

LIMIT = 8.0  # seconds that the ranks of a check have, when it names no other limit
_WORKER = os.path.join("dtlab", "ranks", "worker.py")
_LEAVING = os.path.join("dtlab", "ranks", "leaving.py")
SAME_CALLS = (
    "every rank must make the same collective calls, also one without samples; "
    "no `if` on the rank or on the number of samples around a collective."
)


def require_function(answer: Any) -> None:
    """Raise CheckFailed for an answer that is a value and not a function."""
    if not callable(answer):
        raise CheckFailed(f"the answer is {describe(answer)}: hand in the function itself.")


def on_ranks(
    nproc: int,
    measure: Callable[..., Any],
    answer: Any,
    *arguments: Any,
    timeout: float | None = None,
    look: str = SAME_CALLS,
) -> list[Any]:
    """`measure(answer, *arguments)` on every rank, results in rank order.

    Raises CheckFailed when the answer is no function, and when the ranks do not end in `timeout` seconds
    (default LIMIT): with the line of a loop that goes on for ever, with the rank that left a collective out,
    or with what each rank waits in and `look`. Every other failure of a rank is raised as it is.
    """
    from dtlab import RankError, launch

    require_function(answer)
    timeout = LIMIT if timeout is None else timeout
    try:
        return list(launch(measure, nproc, answer, *arguments, timeout=timeout, echo=False))
    except RankError as error:
        if error.exception_type not in ("TimeoutError", "LateRankError"):
            raise
        raise CheckFailed(stuck(error, timeout, look)) from None


def stuck(error: RankError, timeout: float, look: str) -> str:
    """Why ranks did not end: a rank that is busy in the answer, or ranks that wait for each other."""
    from dtlab.ranks.rank_state import UNRECORDED

    states = [report.state for report in error.reports if report.state is not None]
    busy = [state for state in states if not state.waits and _computes(answer_line(state))]
    if busy:
        return _endless(busy, [state for state in states if state.waits], timeout)
    waiting = [state for state in states if state.waits and state.operation not in UNRECORDED]
    gone = [report.rank for report in error.reports if _has_left(report)]
    if gone and waiting:
        return _left_out(gone, waiting, look)
    lines = {(frame.line, frame.source.strip()) if frame else None for frame in map(answer_line, states)}
    only = next(iter(lines)) if len(lines) == 1 and len(states) == len(error.reports) else None
    if only is not None:
        return (
            f"your function did not end within {timeout:g} s: every rank is at line {only[0]}, `{only[1]}`.\n"
            f"Where to look: does a loop around that line never end? If not: {look}"
        )
    return f"the ranks wait for each other: {_standing(error)}.\nWhere to look: {look}"


def _endless(busy: list[RankState], waiting: list[RankState], timeout: float) -> str:
    frame = answer_line(busy[0])
    assert frame is not None
    others = f", and rank {waiting[0].rank} waits for it in {waiting[0].operation}" if waiting else ""
    return (
        f"your function did not end within {timeout:g} s: rank {busy[0].rank} is still at line {frame.line}, "
        f"`{frame.source.strip()}`{others}.\n"
        "Where to look: the loop around that line. What ends it, and does that ever come?"
    )


def _left_out(gone: list[int], waiting: list[RankState], look: str) -> str:
    """Ranks that are through, and the first of those that wait for them in a call which they never made."""
    first = waiting[0]
    frame = answer_line(first)
    at = f", at line {frame.line}, `{frame.source.strip()}`" if frame else ""
    return (
        f"{_ranks(gone)} left out a collective that {_ranks([state.rank for state in waiting])} made: "
        f"rank {first.rank} waits in {first.what()}{at}, and {_ranks(gone)} "
        f"{'have' if len(gone) > 1 else 'has'} ended without that call.\n"
        f"Where to look: {look}"
    )


def _has_left(report: RankReport) -> bool:
    """Whether a rank is through with its part: it has returned, or waits for the others to leave too."""
    state = report.state
    if state is None or not state.stack:
        return report.outcome == "returned"
    return not state.waits and any(frame.file.endswith(_LEAVING) for frame in state.stack)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def answer_line(state: RankState) -> Frame | None:
    """The innermost frame of the reader's own code, none of dtlab's; None when the answer has returned."""
    from dtlab.ranks.source_lines import is_dtlabs, is_users

    for frame in reversed(state.stack):
        if frame.file.endswith(_WORKER):
            return None
        if is_users(frame.file) and not is_dtlabs(frame.file):
            return frame
    return None


def _computes(frame: Frame | None) -> bool:
    """Whether the reader's code is at a line that waits for nobody."""
    return frame is not None and not re.search(r"\.wait\(|\bdist\.(?!get_|is_)|\bdtlab\.", frame.source)


def _standing(error: RankError) -> str:
    """Which ranks are in which operation; the launcher's own words when they did not answer."""
    inside: dict[str, list[int]] = {}
    after = False
    for report in error.reports:
        state = report.state
        frame = answer_line(state) if state is not None else None
        if state is None or not (frame or state.waits):
            continue
        after |= frame is None
        operation = f"in {state.operation}, " if state.waits else ""
        place = f"{operation}at `{frame.source.strip()}`" if frame else f"in the check's {state.operation}"
        inside.setdefault(place, []).append(report.rank)
    if not inside:
        return error.message
    words = [f"{_ranks(ranks)} {op}" for op, ranks in inside.items()]
    return "; ".join(words) + (" (your function has returned there)" if after else "")
