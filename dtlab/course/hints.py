"""Hints of an exercise: the first says where to look, the second nearly gives the line."""

from __future__ import annotations

from dtlab.course.checks import find_exercise
from dtlab.errors import UserError


def hint(name: str, level: int = 1) -> None:
    """Print hint 1 or 2 of an exercise. Raises UserError for an unknown exercise or level.

    Example: `hint("02-ring")`, then `hint("02-ring", 2)`.
    """
    found = find_exercise(name)
    if level not in (1, 2):
        raise UserError(f"hint level {level!r}: there are two, hint({name!r}) and hint({name!r}, 2)")
    print(f"Hint {level} of 2: {found.hints[level - 1]}")
    if level == 1:
        print(f"Still stuck? hint({name!r}, 2)")
