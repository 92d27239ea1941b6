"""Check of lesson 08's interleaved order: several stages on a rank, a shorter bubble, more alive."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import Checks, exercise
from dtlab.course.lessons.on_ranks import require_function

# Ranks, micro-batches, stages on each rank.
CASES = ((2, 4, 2), (4, 8, 2), (2, 2, 3), (1, 3, 2), (3, 6, 3))


@exercise(
    "08-interleaved",
    todo="number the rank's forwards by rounds of `ranks` micro-batches; mix them with the backwards as 1F1B",
    hints=(
        "Say which stage and micro-batch the k-th forward of a rank has: k // ranks is the number of the "
        "turn, k % ranks the place in it; turns go through the rank's stages 0 to v - 1, then a new round "
        "begins. "
        "Backwards go through the stages from the last to the first.",
        "turn, within = divmod(k, ranks); number, chunk = divmod(turn, v). Stage chunk * ranks + rank, "
        "micro-batch number * ranks + within; the k-th backward has stage (v - 1 - chunk) * ranks + rank. "
        "warm_up = min(m * v, (v - 1) * ranks + 2 * (ranks - 1 - rank)); then as in 1F1B.",
    ),
    references=("dtlab.parallel.schedules.interleaved", "dtlab.parallel.schedules.build_schedule"),
)
def interleaved(checks: Checks, answer: Any) -> None:
    """Five sizes: actions, activations alive and time units first; then every action."""
    from dtlab.course.lessons.l08 import compare, given_orders

    require_function(answer)
    given = {
        ("interleaved", p, m, v): given_orders([answer(rank, p, m, v) for rank in range(p)])
        for p, m, v in CASES
    }
    compare(
        checks,
        given,
        looks={
            "interleaved": "before its first backward rank r runs (v - 1) * ranks forwards of its earlier "
            "stages and 2 * (ranks - 1 - r) more, and one in the first pair"
        },
    )
