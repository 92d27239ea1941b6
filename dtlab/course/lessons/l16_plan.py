"""Check of lesson 16's plan: machines, hosts and number format, in time, within the budget, in cents."""

from __future__ import annotations

import math
from typing import Any

from dtlab.course.capstone_plan import HOUR, MOST_HOSTS, PLAN_KEYS, ROOM, Machine, PlanJob
from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function

SMALL = Machine(4, 16e9, False, 5.0, {"fp32": 1_000, "fp16": 2_000, "bf16": 4_000})
LARGE = Machine(8, 40e9, True, 25.0, {"fp32": 5_000, "fp16": 8_000, "bf16": 8_200})
MIDDLE = Machine(4, 24e9, True, 7.0, {"fp32": 1_600, "fp16": 2_500, "bf16": 2_700})
ALL = {"small": SMALL, "middle": MIDDLE, "large": LARGE}
TWINS = {"slow": MIDDLE, "fast": MIDDLE._replace(usd_per_hour=14.0, speeds={"fp16": 5_000, "bf16": 5_400})}
CASES = {
    "a small table, a long deadline": (PlanJob(50e6, 1e9, 24 * HOUR, 10_000, 0.9), ALL),
    "a table that one small host does not hold": (PlanJob(50e6, 90e9, 24 * HOUR, 10_000, 0.9), ALL),
    "a table for the largest cards, and no time": (PlanJob(90e6, 250e9, 2 * HOUR, 20_000, 0.9), ALL),
    "the same with little money": (PlanJob(90e6, 250e9, 9 * HOUR, 5_000, 0.9), ALL),
    "exactly at the deadline": (PlanJob(7_200_000, 1e9, HOUR, 10_000, 0.5), {"small": SMALL}),
    "exactly at the budget": (PlanJob(7_200_000, 1e9, HOUR, 500, 0.5), {"small": SMALL}),
    "seconds only": (PlanJob(1_000, 1e9, HOUR, 10_000, 0.9), {"large": LARGE}),
    "of equal cents the faster": (PlanJob(50e6, 1e9, 24 * HOUR, 10_000, 0.9), TWINS),
    "exactly full, on four hosts": (
        PlanJob(50e6, ROOM * 16 * 16e9, 24 * HOUR, 10_000, 0.9),
        {"small": SMALL},
    ),
    "nothing is large enough": (PlanJob(50e6, 5e12, 24 * HOUR, 10**6, 0.9), ALL),
}


@exercise(
    "16-plan",
    todo="of all machines, hosts and formats: what fits, in a format of the card, in time, within the "
    "budget; then the cheapest",
    hints=(
        "Go through all machines, hosts and formats, and leave out what does not fit, what the cards only "
        "emulate, what is late and what is too dear. What is left can be compared by one number.",
        "speed = hosts * job.keeps ** (hosts - 1) * speeds[precision]; seconds = samples / speed; cents = "
        "round(100 * usd_per_hour * hosts * max(60, seconds) / 3600); state_bytes / (hosts * cards) <= "
        "ROOM * card_bytes; precision != 'bf16' or has_bf16; min(..., key=(cents, seconds), default=None).",
    ),
    references=("dtlab.cost.planner.plan",),
)
def plan(checks: Checks, answer: Any) -> None:
    """Cents of each job first, then the whole choice."""
    require_function(answer)
    given = {name: answer(job, dict(machines)) for name, (job, machines) in CASES.items()}
    right = {name: _plan(job, machines) for name, (job, machines) in CASES.items()}
    for name, wanted in right.items():
        got = given[name]
        if got is ...:
            raise ToDo("choose_plan gave ...")
        if wanted is None:
            continue
        if got is None:
            raise CheckFailed(
                f"{name}: got None, but {wanted['instance']} in {wanted['precision']} will do for "
                f"{wanted['cents']} cents and {wanted['seconds']:,.0f} s.\nWhere to look: prices are "
                "dollars an hour, times are seconds, and a limit that is just met is met (<=)."
            )
        if not isinstance(got, dict) or set(got) != set(PLAN_KEYS):
            raise CheckFailed(f"{name}: got {got!r}: give a dict with {', '.join(PLAN_KEYS)}, nothing else.")
        checks.integer(f"{name}: cents", got["cents"], wanted["cents"], look=_why(CASES[name], got, wanted))
    checks.equal(
        "the choice for each job",
        given,
        right,
        tolerance=1e-9,
        look="seconds of the whole run; of equal cents the faster; None if there is none",
    )


def _options(job: PlanJob, machines: dict[str, Machine]) -> list[dict[str, Any]]:
    found = []
    for name, machine in machines.items():
        for hosts in range(1, MOST_HOSTS + 1):
            for precision, speed in machine.speeds.items():
                seconds = job.samples / (hosts * job.keeps ** (hosts - 1) * speed)
                cents = round(100 * machine.usd_per_hour * hosts * max(60, seconds) / 3600)
                found.append(dict(zip(PLAN_KEYS, (name, hosts, precision, seconds, cents), strict=True)))
    return found


def _broken(one: dict[str, Any], job: PlanJob, machines: dict[str, Machine]) -> list[str]:
    """Which limits an option breaks."""
    machine = machines[one["instance"]]
    limits = {
        "its cards do not hold the tables": job.state_bytes / (one["hosts"] * machine.cards)
        <= ROOM * machine.card_bytes,
        "its cards only emulate bf16": one["precision"] != "bf16" or machine.has_bf16,
        "it is late": one["seconds"] <= job.deadline_seconds,
        "it is over the budget": one["cents"] <= job.budget_cents,
    }
    return [name for name, holds in limits.items() if not holds]


def _plan(job: PlanJob, machines: dict[str, Machine]) -> dict[str, Any] | None:
    allowed = [one for one in _options(job, machines) if not _broken(one, job, machines)]
    return min(allowed, key=lambda one: (one["cents"], one["seconds"]), default=None)


def _why(case: tuple[PlanJob, dict[str, Machine]], got: dict[str, Any], wanted: dict[str, Any]) -> str:
    job, machines = case
    best = (
        f"{wanted['hosts']} x {wanted['instance']} in {wanted['precision']} is the cheapest that is allowed"
    )
    same = [
        one for one in _options(job, machines)
        if all(one[key] == got.get(key) for key in ("instance", "hosts", "precision"))
    ]  # fmt: skip
    if not same:
        return f"{best}; of hosts there are 1 to {MOST_HOSTS}"
    broken = _broken(same[0], job, machines)
    if broken:
        return f"{got['hosts']} x {got['instance']} in {got['precision']} is not allowed: {broken[0]}"
    if got["cents"] != same[0]["cents"]:
        wrong = isinstance(got["seconds"], int | float) and not math.isclose(
            got["seconds"], same[0]["seconds"]
        )
        if wrong:
            right = f"{got['hosts']} hosts take {same[0]['seconds']:,.0f} s, not {got['seconds']:,.0f}"
            return f"{right}: they do h * keeps ** (h - 1) times the work of one"
        return "cents = 100 x dollars an hour x hosts x max(60, seconds) / 3600, rounded"
    return best
