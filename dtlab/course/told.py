"""Tells a reader which exception an answer raised, on which of its lines, and where to look."""

from __future__ import annotations

from dtlab.errors import users_line


def told(error: Exception) -> str:
    """The message of a check whose answer raised `error`, alone or on a rank."""
    if hasattr(error, "cell_lines") and hasattr(error, "reports"):  # a RankError, without loading torch
        return _on_a_rank(error)
    line = users_line(error)
    what = f"your answer raised {type(error).__name__}: {error}"
    if not line:
        return f"{what}\nWhere to look: what the answer returns; the check could not work with it."
    return f"{what}\n  {line}\nWhere to look: that line, with the values that it had when it was called."


def _on_a_rank(error: Exception) -> str:
    """A RankError without its last line about restarts, which a check never asks for."""
    lines = [line for line in str(error).split("\n") if not line.startswith("  restarts are off")]
    marked = any("-->" in line for line in lines)
    where = "the line marked -->" if marked else "your function, from its first line on"
    rank = getattr(error, "rank", None)
    return "\n".join([*lines, f"Where to look: {where}: rank {rank} did not get past it."])
