"""Hints of an exercise: the first says where to look, the second nearly gives the line."""

from __future__ import annotations

from html import escape

from dtlab.course.checks import find_exercise
from dtlab.course.display import show_html
from dtlab.errors import UserError


def hint(name: str, level: int = 1) -> None:
    """Show hint 1 or 2 of an exercise, folded in a notebook.

    Raises UserError for an unknown exercise or level.

    Example: `hint("02-ring")`, then `hint("02-ring", 2)`.
    """
    found = find_exercise(name)
    if level not in (1, 2):
        raise UserError(f"hint level {level!r}: there are two, hint({name!r}) and hint({name!r}, 2)")
    title, more = f"Hint {level} of 2", f"Still stuck? hint({name!r}, 2)" if level == 1 else ""
    text = found.hints[level - 1]
    # Folded, so that "restart and run all" gives nothing away to a reader who did not ask.
    html = f"<details><summary>{title}</summary>{escape(text)}<br><code>{escape(more)}</code></details>"
    show_html(html, f"{title}: {text}" + (f"\n{more}" if more else ""))
