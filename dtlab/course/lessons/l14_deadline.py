"""Check of lesson 14's choice: the cheapest in time, in cents, and the configurations that none beats."""

from __future__ import annotations

import random
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.lessons.on_ranks import require_function


def _row(machine: str, cards: int, seconds: float, cents: int) -> dict[str, Any]:
    return {"machine": machine, "cards": cards, "hosts": 1, "seconds": seconds, "cents": cents}


ROWS = [
    _row("one", 1, 360_000, 14_080), _row("four", 4, 112_500, 22_156), _row("four", 8, 69_231, 27_269),
    _row("eight", 8, 64_286, 36_357), _row("fast", 8, 20_000, 35_164), _row("fast", 16, 11_000, 38_681),
    _row("old", 8, 20_000, 61_000), _row("slow", 4, 112_500, 24_000),
]  # fmt: skip
DEADLINES = {
    "100 hours, and 360,000 s is that to the second": (360_000, 14_080),
    "31.25 hours": (112_500, 22_156),
    "20 hours": (72_000, 27_269),
    "18.5 hours": (66_600, 35_164),
    "4 hours": (14_400, 38_681),
}
TIED = [_row("a", 4, 5_000, 900), _row("b", 8, 4_000, 900), _row("c", 4, 4_500, 900)]


def _drawn() -> list[dict[str, Any]]:
    """Many rows, among which a frontier by hand would take long."""
    draw = random.Random(14)
    return [_row(f"m{n}", 4, draw.randrange(1_000, 90_000), draw.randrange(500, 60_000)) for n in range(60)]


@exercise(
    "14-deadline",
    todo="choose: the fewest cents among those in time; frontier: what no other row beats in both",
    hints=(
        "Which rows are in time? Of these, which has the fewest cents? What is left when none is in time? "
        "And for the frontier: walk from the fastest row on. When is a slower row worth keeping?",
        "in_time = [row for row in rows if row['seconds'] <= deadline]; min(..., key=lambda row: "
        "(row['cents'], row['seconds']), default=None). frontier: sort by (seconds, cents), keep a row when "
        "its cents are below those of the last row kept.",
    ),
    references=(
        "dtlab.cost.economics.cheapest",
        "dtlab.cost.planner.frontier",
        "dtlab.cost.planner.nearest",
    ),
)
def deadline(checks: Checks, answer: Any, frontier: Any) -> None:
    """Cents at five deadlines, a tie, none in time; then the frontier, its length first."""
    require_function(answer)
    require_function(frontier)
    for name, (seconds, cents) in DEADLINES.items():
        got = _dict(answer([dict(row) for row in ROWS], seconds), name)
        late = "it is late" if got["seconds"] > seconds else "another one in time costs less"
        checks.integer(
            f"{name}: cents of the choice",
            got["cents"],
            cents,
            look=f"you chose {got['cards']} cards on {got['machine']!r}, {got['seconds']:,} s: {late}",
        )
    tied = _dict(answer([dict(row) for row in TIED], 6_000), "a tie")
    checks.integer(
        "three that cost 900 cents: seconds of the choice",
        tied["seconds"],
        4_000,
        look="of equal cents take the faster: a key of (cents, seconds)",
    )
    many = _drawn()
    for name, rows in {"eight rows": ROWS, "sixty rows": many, "three that cost the same": TIED}.items():
        front = _kept(frontier([dict(row) for row in rows]))
        checks.integer(
            f"{name}: length of the frontier",
            len(front),
            len(_frontier(rows)),
            look="a row is beaten when another is at most as slow and at most as dear, and better in one",
        )
        if _names(front) != _names(_frontier(rows)):
            raise CheckFailed(
                f"{name}: the frontier is {_names(front)}, expected {_names(_frontier(rows))}.\n"
                "Where to look: fastest first, and each one cheaper than all before it."
            )
    late = answer([dict(row) for row in ROWS], 3_600)
    checks.true("nothing is done in an hour: None", late is None, look="min(..., default=None)")
    checks.equal("the frontier of nothing", _kept(frontier([])), [])


def _dict(got: Any, name: str) -> dict[str, Any]:
    if got is None:
        raise CheckFailed(
            f"{name}: got None, and there are rows in time.\nWhere to look: `<=`, and a return."
        )
    if not isinstance(got, dict) or "cents" not in got:
        raise CheckFailed(f"{name}: got {type(got).__name__}: give the row itself, a dict.")
    return got


def _kept(got: Any) -> list[dict[str, Any]]:
    if not isinstance(got, list | tuple):
        raise CheckFailed(f"frontier gave {type(got).__name__}: give a list of rows, fastest first.")
    return list(got)


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['machine']} {row['cards']}" for row in rows]


def _frontier(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["seconds"], row["cents"])):
        if not kept or row["cents"] < kept[-1]["cents"]:
            kept.append(row)
    return kept
