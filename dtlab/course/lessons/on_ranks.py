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

_WORKER = os.path.join("dtlab", "ranks", "worker.py")
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
    timeout: float = 8,
    look: str = SAME_CALLS,
) -> list[Any]:
    """`measure(answer, *arguments)` on every rank, results in rank order.

    Raises CheckFailed when the answer is no function, and when the ranks do not end in `timeout` seconds:
    with the line of a loop that goes on for ever, or with what each rank waits in and `look`. Every other
    failure of a rank is raised as it is.
    """
    from dtlab import RankError, launch

    require_function(answer)
    try:
        return list(launch(measure, nproc, answer, *arguments, timeout=timeout, echo=False))
    except RankError as error:
        if error.exception_type not in ("TimeoutError", "LateRankError"):
            raise
        raise CheckFailed(stuck(error, timeout, look)) from None


def stuck(error: RankError, timeout: float, look: str) -> str:
    """Why ranks did not end: a rank that is busy in the answer, or ranks that wait for each other."""
    states = [report.state for report in error.reports if report.state is not None]
    busy = [state for state in states if not state.waits and _computes(answer_line(state))]
    if busy:
        return _endless(busy, [state for state in states if state.waits], timeout)
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


def answer_line(state: RankState) -> Frame | None:
    """The innermost frame of the reader's own code; None when the answer has returned."""
    from dtlab.ranks.source_lines import is_users

    for frame in reversed(state.stack):
        if frame.file.endswith(_WORKER):
            return None
        if is_users(frame.file):
            return frame
    return None


def _computes(frame: Frame | None) -> bool:
    """Whether the reader's code is at a line that waits for nobody."""
    return frame is not None and not re.search(r"\.wait\(|\bdist\.(?!get_|is_)|\bdtlab\.", frame.source)


def _standing(error: RankError) -> str:
    """Which ranks are in which operation; the launcher's own words when they did not answer."""
    inside: dict[str, list[str]] = {}
    after = False
    for report in error.reports:
        state = report.state
        frame = answer_line(state) if state is not None else None
        if state is None or not (frame or state.waits):
            continue
        after |= frame is None
        operation = f"in {state.operation}, " if state.waits else ""
        place = f"{operation}at `{frame.source.strip()}`" if frame else f"in the check's {state.operation}"
        inside.setdefault(place, []).append(str(report.rank))
    if not inside:
        return error.message
    words = [f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {op}" for op, ranks in inside.items()]
    return "; ".join(words) + (" (your function has returned there)" if after else "")
