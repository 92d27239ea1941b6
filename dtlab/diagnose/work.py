"""What of a run's work counts: useful, redone and lost steps over all its attempts (lesson 13).

A step is *lost* when the next attempt begins before it, *redone* when an earlier attempt had made it and its
result is kept this time, and *useful* when it is kept and was made once. A run that ends has
``useful + redone`` steps of progress, and has paid for the lost ones on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["Attempt", "Kind", "kinds", "read_attempts", "totals"]

Kind = Literal["useful", "redone", "lost"]


class Attempt(NamedTuple):
    """One attempt of a run: it made the steps ``first`` up to but not ``end``."""

    first: int
    end: int
    saved: tuple[int, ...] = ()
    """Steps done at each of its complete checkpoints."""


def kinds(attempts: Sequence[Attempt], total: int) -> list[list[Kind]]:
    """What became of each step of each attempt, in the order in which they were made.

    Args:
        attempts: in order. The next one begins where it could: at a checkpoint, or at 0.
        total: steps of the whole run. If the last attempt did not get there, what it made after its last
            checkpoint is lost.

    >>> kinds([Attempt(0, 3, saved=(2,)), Attempt(2, 4)], total=4)
    [['useful', 'useful', 'lost'], ['redone', 'useful']]
    """
    made, result = 0, []
    for number, attempt in enumerate(attempts):
        if number + 1 < len(attempts):
            kept = attempts[number + 1].first
        else:
            kept = total if attempt.end >= total else max(attempt.saved, default=attempt.first)
        steps: list[Kind] = [
            "lost" if step >= kept else "redone" if step < made else "useful"
            for step in range(attempt.first, attempt.end)
        ]
        result.append(steps)
        made = max(made, attempt.end)
    return result


def totals(attempts: Sequence[Attempt], total: int) -> dict[Kind, int]:
    """Steps of each kind over all attempts.

    >>> totals([Attempt(0, 37, saved=(10, 20, 30)), Attempt(30, 60)], total=60)
    {'useful': 53, 'redone': 7, 'lost': 7}
    """
    counts: Counter[Kind] = Counter(kind for steps in kinds(attempts, total) for kind in steps)
    return {"useful": counts["useful"], "redone": counts["redone"], "lost": counts["lost"]}


def read_attempts(path: str | Path) -> list[Attempt]:
    """The attempts that a log tells of: lines ``start N``, ``step N`` and ``saved N``, N the steps done.

    A torn last line of a process that was killed is left out.
    """
    attempts: list[Attempt] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        word, _, number = line.partition(" ")
        if not number.isdigit():
            continue
        if word == "start":
            attempts.append(Attempt(int(number), int(number)))
        elif attempts and word == "step":
            attempts[-1] = attempts[-1]._replace(end=int(number))
        elif attempts and word == "saved":
            attempts[-1] = attempts[-1]._replace(saved=(*attempts[-1].saved, int(number)))
    return attempts
