"""Successive halving over known curves: who goes on at each rung, and how long each was trained (lesson 15).

Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization".
Hyperband (Li et al. 2018) runs it in brackets, which begin with fewer trials and judge later. Here all
trials of a rung are compared with each other. ``dtlab tune`` uses Optuna's, which compares a trial with those
that came to the rung before it, so that none waits.

A trial is judged by its best validation so far, because a run keeps the weights of its best epoch: by the
validation at the rung itself a run that is past its best falls behind one that never was as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dtlab.errors import UserError

__all__ = ["brackets", "halve"]


def halve(
    curves: Mapping[str, Sequence[float]], rungs: Sequence[int], keep: int = 3
) -> tuple[list[list[str]], dict[str, int]]:
    """The trials that go on after each rung, best first; and how many looks each was trained.

    Args:
        curves: name -> metric at look 1, 2, ...; larger is better. A trial whose metric is nan at a rung is
            lost, and worse than any other.
        rungs: looks after which the trials that are left are compared, rising.
        keep: one in so many goes on, rounded down, and always one.

    Raises:
        UserError: no curve, a rung that a curve does not reach, or keep below 2.

    >>> halve({"a": [0.5, 0.9], "b": [0.7, 0.6], "c": [0.6, 0.8]}, (1,), keep=3)
    ([['b']], {'a': 1, 'c': 1, 'b': 2})
    """
    shortest = min(map(len, curves.values()), default=0)
    if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1 or rungs[-1] > shortest:
        raise UserError(
            f"rungs = {tuple(rungs)}: give rising looks from 1 to {shortest}, which all curves have"
        )
    if keep < 2:
        raise UserError(f"keep = {keep}: give 2 or more; one in so many goes on")
    alive, survivors = list(curves), []
    looks: dict[str, int] = {}
    for rung in rungs:
        scores = {name: _best(curves[name][:rung]) for name in alive}
        ranked = sorted(alive, key=scores.__getitem__, reverse=True)
        going = ranked[: max(1, len(alive) // keep)]
        looks |= {name: rung for name in alive if name not in going}
        survivors.append(going)
        alive = going
    return survivors, looks | {name: len(curves[name]) for name in alive}


def _best(values: Sequence[float]) -> float:
    return -math.inf if math.isnan(values[-1]) else max(value for value in values if not math.isnan(value))


def brackets(most: int, keep: int = 3) -> list[list[tuple[int, int]]]:
    """Hyperband's brackets for trials of ``most`` looks: of each, (trials, looks) rung by rung.

    The first bracket begins with many trials and judges early, the last trains its few in full.

    >>> brackets(9)
    [[(9, 1), (3, 3), (1, 9)], [(5, 3), (1, 9)], [(3, 9)]]
    """
    if most < 1 or keep < 2:
        raise UserError(f"most = {most}, keep = {keep}: give 1 look or more, and keep of 2 or more")
    steps = 0
    while keep ** (steps + 1) <= most:
        steps += 1
    found = []
    for left in range(steps, -1, -1):
        trials = math.ceil((steps + 1) / (left + 1) * keep**left)
        rungs = [(trials // keep**n, most // keep ** (left - n)) for n in range(left + 1)]
        found.append(rungs)
    return found
