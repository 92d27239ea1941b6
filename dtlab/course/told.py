"""Tells a reader which exception an answer raised, on which of its lines, and where to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.errors import users_line

if TYPE_CHECKING:
    from dtlab.ranks.rank_state import Frame


def told(error: Exception) -> str:
    """The message of a check whose answer raised `error`, alone or on a rank."""
    if hasattr(error, "cell_lines") and hasattr(error, "reports"):  # a RankError, without loading torch
        return _on_a_rank(error)
    line = users_line(error)
    what = f"your answer raised {type(error).__name__}: {error}"
    if not line:
        return f"{what}\nWhere to look: what the answer returns; the check could not work with it."
    return f"{what}\n  {line}\nWhere to look: that line, with the values that it had when it was called."


def _on_a_rank(error: Any) -> str:
    """A RankError with no source line but the answer's, and no word on restarts, which checks do without."""
    from dtlab.ranks.rank_state import own_frame
    from dtlab.ranks.source_lines import is_dtlabs

    said = str(error)
    for report in error.reports:  # what the other ranks do is told with a line, too
        frame = own_frame(report.state.stack) if report.state is not None else None
        if frame is not None and is_dtlabs(frame.file):
            said = said.replace(f", at {report.state.where()}", "")
    lines = [line for line in said.split("\n") if not line.startswith("  restarts are off")]
    frames = _frames(error)
    lines = _without_dtlabs_lines(lines, frames, error.cell_lines)
    marked = any("-->" in line for line in lines)
    if _raised(error) and not any(_is_answers(frame) for frame in frames):
        user = "the code above, which is not yours," if marked else "the check"
        where = f"what the answer returns; {user} could not work with it."
    elif marked:
        where = f"the line marked -->: rank {error.rank} did not get past it."
    else:
        where = f"your function, from its first line on: rank {error.rank} did not get past it."
    return "\n".join([*lines, f"Where to look: {where}"])


def _frames(error: Any) -> list[Frame]:
    """Where the rank to blame stood, or stands, innermost last."""
    report = next((one for one in error.reports if one.rank == error.rank), None)
    if report is None:
        return []
    return list(report.frames or (report.state.stack if report.state is not None else ()))


def _raised(error: Any) -> bool:
    return any(one.rank == error.rank and one.outcome == "raised" for one in error.reports)


def _is_answers(frame: Frame) -> bool:
    from dtlab.ranks.source_lines import is_dtlabs, is_users

    return is_users(frame.file) and not is_dtlabs(frame.file)


def _without_dtlabs_lines(lines: list[str], frames: list[Frame], shown: list[str]) -> list[str]:
    """The message with the answer's lines in the place of dtlab's own, which the reader has not written."""
    from dtlab.ranks.source_lines import excerpt, is_dtlabs, place

    own = next((frame for frame in reversed(frames) if _is_answers(frame)), None)
    ours = {f"  {place(frame)}" for frame in frames if is_dtlabs(frame.file)}
    told: list[str] = []
    skip = 0
    for line in lines:
        if skip:
            skip -= 1
        elif line in ours:  # the place of the excerpt, which follows it
            skip = len(shown)
            if own is not None:
                told = [one for one in told if not one.startswith(f"  {place(own)}:")]
                told += [f"  {place(own)}", *(f"    {one}" for one in excerpt(own))]
        elif not any(line.startswith((f"{one}:", one.replace("  ", "  raised in ", 1))) for one in ours):
            told.append(line)
    return told
