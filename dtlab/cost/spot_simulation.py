"""Runs with drawn interruptions, as a second opinion on the formulas of `cost.spot` (lessons 13 and 14).

A formula gives a mean; the draws also give the spread, which is what a deadline asks about.
"""

import random

from dtlab.cost.spot import stretches
from dtlab.errors import UserError

MOST_INTERRUPTIONS = 100_000


def simulated_wall_seconds(
    work_seconds: float,
    mtbf_seconds: float,
    *,
    interval_seconds: float | None = None,
    save_seconds: float = 0.0,
    restart_seconds: float = 0.0,
    runs: int = 1000,
    seed: int = 0,
) -> list[float]:
    """Seconds on the machine of `runs` runs, each with interruptions of its own; arguments as in `cost.spot`.

    Raises:
        UserError: an argument is out of range, or a run was interrupted 100,000 times and had not ended.

    >>> simulated_wall_seconds(100.0, float("inf"), interval_seconds=50.0, save_seconds=1.0, runs=2)
    [102.0, 102.0]
    """
    lengths = stretches(work_seconds, mtbf_seconds, interval_seconds, save_seconds, restart_seconds)
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise UserError(f"runs={runs!r} is not a number of runs: give a whole number of 1 or more")
    draw = random.Random(seed)
    return [_one(lengths, 1 / mtbf_seconds, restart_seconds, draw) for _ in range(runs)]


def _one(lengths: list[tuple[float, int]], rate: float, restart: float, draw: random.Random) -> float:
    wall, interruptions = 0.0, 0
    for length, count in lengths:
        for _ in range(count):
            needed = length
            while rate and (until := draw.expovariate(rate)) < needed:
                wall, interruptions = wall + until, interruptions + 1
                needed = restart + length  # from the last save on, after a restart
                if interruptions > MOST_INTERRUPTIONS:
                    raise UserError(
                        f"a run was interrupted {MOST_INTERRUPTIONS:,} times and is not done: save more often"
                    )
            wall += needed
    return wall
