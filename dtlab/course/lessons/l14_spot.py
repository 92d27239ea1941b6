"""Check of lesson 14's spot risk: mean cents, late runs and the choice, from drawn finish times."""

from __future__ import annotations

from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function

HOUR = 3600.0


class Case(NamedTuple):
    name: str
    walls: list[float]
    work: float
    deadline: float
    spot_usd: float
    on_demand_usd: float
    most_late: float


def _hours(*hours: float) -> list[float]:
    return [HOUR * hour for hour in hours]


CASES = (
    Case("cheap and in time", _hours(20, 21, 22, 25), 20 * HOUR, 26 * HOUR, 4.0, 11.3, 0.0),
    Case("cheap, one of four late", _hours(20, 21, 22, 27), 20 * HOUR, 26 * HOUR, 4.0, 11.3, 0.1),
    Case(
        "the same, and a quarter may be late", _hours(20, 21, 22, 27), 20 * HOUR, 26 * HOUR, 4.0, 11.3, 0.25
    ),
    Case("done in the last second", _hours(20, 24, 24), 20 * HOUR, 24 * HOUR, 4.0, 11.3, 0.0),
    Case("many interruptions, a small discount", _hours(30, 38, 40), 20 * HOUR, 60 * HOUR, 6.9, 11.3, 0.5),
    Case("one very late run", _hours(20, 20, 20, 20, 45), 20 * HOUR, 48 * HOUR, 4.9, 5.5, 0.5),
)


@exercise(
    "14-spot",
    todo="mean hours x price in cents; how many runs are late; spot only if few are late and it is cheaper",
    hints=(
        "What is billed is the hours that a run takes, not the hours of work. What does on demand take?",
        "cents = round(100 * spot_usd * statistics.fmean(walls) / 3600); late = sum(wall > deadline for wall "
        "in walls); 'spot' if late <= most_late * len(walls) and cents < round(100 * on_demand_usd * work / "
        "3600), else 'on-demand'.",
    ),
    references=(
        "dtlab.cost.spot_plan.plan_spot",
        "dtlab.cost.billing.compare_spot",
        "dtlab.cost.spot.true_saving",
    ),
)
def risk(checks: Checks, answer: Any) -> None:
    """Cents and late runs of six cases, then the choices."""
    require_function(answer)
    given = {case.name: _three(answer(*case[1:]), case.name) for case in CASES}
    for case in CASES:
        cents, late, _ = given[case.name]
        right, right_late, _ = _expected(case)
        checks.integer(f"{case.name}: mean cents on spot", cents, right, look=_mistake(case, cents))
        checks.integer(
            f"{case.name}: late runs of {len(case.walls)}",
            late,
            right_late,
            look="a count, of runs that end after the deadline; one that ends at it is in time",
        )
    for case in CASES:
        checks.equal(
            f"{case.name}: the choice",
            given[case.name][2],
            _expected(case)[2],
            look="two conditions: at most most_late of the runs are late, and fewer cents than on demand, "
            "which takes the hours of work",
        )


def _expected(case: Case) -> tuple[int, int, str]:
    cents = round(100 * case.spot_usd * sum(case.walls) / len(case.walls) / HOUR)
    late = sum(wall > case.deadline for wall in case.walls)
    cheaper = cents < round(100 * case.on_demand_usd * case.work / HOUR)
    return cents, late, "spot" if cheaper and late <= case.most_late * len(case.walls) else "on-demand"


def _mistake(case: Case, cents: Any) -> str:
    wrong = {
        "that is the price of the work; interruptions are paid too": case.work,
        "that is the median: dollars follow the mean, which late runs pull up": sorted(case.walls)[
            len(case.walls) // 2
        ],
        "that is the run that takes longest, not the mean": max(case.walls),
        "that is all runs together, not the mean": sum(case.walls),
    }
    for said, seconds in wrong.items():
        if isinstance(cents, int) and abs(cents - 100 * case.spot_usd * seconds / HOUR) <= 1:
            return said
    return "round(100 * spot_usd * mean of walls / 3600): the price is per hour of all hosts"


def _three(got: Any, name: str) -> tuple[Any, Any, Any]:
    if got is None or got is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if got is None else "..."))
    if not (isinstance(got, tuple | list) and len(got) == 3):
        raise CheckFailed(f"{name}: got {got!r}: give (mean cents, late runs, 'spot' or 'on-demand').")
    return got[0], got[1], got[2]
