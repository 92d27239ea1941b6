"""What a lesson imports: cards, failure labs, checks, hints and progress.

Building and running the notebooks lives in `dtlab.course.build`, `.verify` and `.run`; a notebook needs
none of it. How to write a lesson is told in `notebooks/AUTHORING.md`.
"""

from dtlab.course.budget import time_budget
from dtlab.course.cards import bill, goal, predict, recap
from dtlab.course.checks import CheckFailed, Checks, check, exercise, solved
from dtlab.course.failure import expect_failure
from dtlab.course.hints import hint
from dtlab.course.progress import progress_table
from dtlab.course.running import running

__all__ = [
    "CheckFailed",
    "Checks",
    "bill",
    "check",
    "exercise",
    "expect_failure",
    "goal",
    "hint",
    "predict",
    "progress_table",
    "recap",
    "running",
    "solved",
    "time_budget",
]
