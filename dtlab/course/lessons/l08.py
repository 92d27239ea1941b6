"""Check of lesson 08's orders of one stage a rank: GPipe and 1F1B, legal, tight, and as torch runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l08_interleaved, l08_run  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import require_function

if TYPE_CHECKING:
    from dtlab.parallel.actions import Schedule

# Ranks and micro-batches: the lesson's own, fewer micro-batches than ranks, a pipeline of one, uneven ones.
CASES = ((4, 8), (2, 5), (4, 2), (1, 3), (3, 7))
_WAIT = (
    "the last rank has nothing to wait for and begins with a pair; each rank before it has time for one more "
    "forward until its first gradient comes"
)


@exercise(
    "08-orders",
    todo="gpipe: all forwards, then all backwards; 1f1b: warm up, then a forward and a backward by turns",
    hints=(
        "Write both lists first, all forwards and all backwards of this rank; an order only mixes the two. "
        "How many forwards come before the first backward on the last rank, and on the one before it?",
        "warm_up = min(m, ranks - 1 - rank). After forwards[:warm_up], for i in range(m - warm_up): "
        "forwards[warm_up + i], then backwards[i]. What is left is backwards[m - warm_up:].",
    ),
    references=(
        "dtlab.parallel.schedules.one_f_one_b",
        "dtlab.parallel.schedules.gpipe",
        "dtlab.parallel.schedules.build_schedule",
    ),
)
def orders(checks: Checks, answer: Any) -> None:
    """Two schedules in five sizes: actions, activations alive and time units first; then every action."""
    require_function(answer)
    names = [(name, p, m) for name in ("gpipe", "1f1b") for p, m in CASES]
    given = {(n, p, m): given_orders([answer(n, rank, p, m) for rank in range(p)]) for n, p, m in names}
    compare(checks, given, looks={"gpipe": "all forwards, then all backwards, each from 0 up", "1f1b": _WAIT})


def given_orders(answers: Sequence[Any]) -> list[list[str]]:
    """What was given for each rank, as lists; ToDo for a stub, CheckFailed for what is no list of texts."""
    found = []
    for rank, order in enumerate(answers):
        if order is None or order is ...:
            raise ToDo("the order is None; is a return missing?" if order is None else "...")
        if not isinstance(order, list | tuple) or not all(isinstance(action, str) for action in order):
            raise CheckFailed(
                f"the order of rank {rank} is {describe(order)}: give a list of texts such as '0F3'."
            )
        found.append(list(order))
    return found


def compare(
    checks: Checks,
    given: dict[tuple[Any, ...], list[list[str]]],
    looks: dict[str, str],
    stages_per_rank: int = 1,
) -> None:
    """Orders of all ranks by (schedule, ranks, micro-batches[, stages on a rank]), against the right ones."""
    from dtlab.parallel.schedules import build_schedule
    from dtlab.parallel.simulate import simulate

    totals = {"actions": 0, "activations": 0, "units": 0}
    built = {}
    for (name, p, m, *rest), ranks in given.items():
        v = rest[0] if rest else stages_per_rank
        right, case = build_schedule(name, p, m, v), f"{name}, {p} ranks, {m} micro-batches"
        case += f", {v} stages on each" if v > 1 else ""
        for rank, order in enumerate(ranks):
            if len(order) != 2 * m * v:
                look = "a forward and a backward of each micro-batch, on each of the rank's stages"
                checks.integer(f"{case}: actions of rank {rank}", len(order), 2 * m * v, look=look)
        schedule = _legal(name, m, ranks, v, case)
        timeline, target = simulate(schedule), simulate(right)
        for rank, alive in enumerate(timeline.peak_live):
            want = target.peak_live[rank]
            if alive != want:
                look = _alive_look(alive, want, looks[name])
                checks.integer(f"{case}: most activations alive on rank {rank}", alive, want, look=look)
        if timeline.makespan != target.makespan:
            what = f"{case}: time units of a step, a forward 1 and a backward 2"
            checks.integer(what, int(timeline.makespan), int(target.makespan), look=looks[name])
        totals["actions"] += sum(map(len, ranks))
        totals["activations"] += sum(timeline.peak_live)
        totals["units"] += int(timeline.makespan)
        built[case] = schedule, right
    count = f"{len(given)} schedules"
    checks.integer(f"actions in {count}, all legal", totals["actions"], totals["actions"])
    checks.integer(
        f"most activations alive, over all ranks of {count}", totals["activations"], totals["activations"]
    )
    checks.integer(f"time units of {count}", totals["units"], totals["units"])
    for case, (schedule, right) in built.items():
        _same(case, schedule, right)
    checks.equal(
        "every action in the order in which torch executes it",
        [schedule.ranks for schedule, _ in built.values()],
        [right.ranks for _, right in built.values()],
    )


def _legal(name: str, micro_batches: int, ranks: list[list[str]], v: int, case: str) -> Schedule:
    from dtlab.errors import UserError
    from dtlab.parallel.actions import Schedule
    from dtlab.parallel.legality import check_schedule

    try:
        return check_schedule(Schedule.of(name, micro_batches, ranks, stages_per_rank=v))
    except UserError as error:
        told = str(error).removeprefix(f"{name}: ")
        raise CheckFailed(f"{case}: {told}.\nWhere to look: {_legal_look(told)}.") from None


def _legal_look(told: str) -> str:
    """Where to look for an order that cannot run, from what is wrong with it."""
    if "wait for ever" in told:
        return (
            "each waits for an action that stands behind the one in which another rank waits. Early ranks "
            "run the most forwards ahead, and backwards begin with the last stage"
        )
    if "which it needs" in told:
        return "is the warm-up too short, or does the backward of a pair come before its forward"
    if "micro-batches" in told or "twice" in told or "never runs" in told:
        return "each micro-batch from 0 to m - 1 passes each of the rank's stages once, forward and backward"
    return "an action is stage, F or B, micro-batch, and rank r holds the stages r, r + ranks, ... only"


def _alive_look(alive: int, right: int, look: str) -> str:
    if alive == right + 1:
        return f"one forward too many before the first backward: {look}"
    if alive == right - 1:
        return f"one forward too few before the first backward: {look}"
    return look


def _same(case: str, schedule: Schedule, right: Schedule) -> None:
    for rank, (got, wanted) in enumerate(zip(schedule.ranks, right.ranks, strict=True)):
        for place, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            if mine != theirs:
                raise CheckFailed(
                    f"{case}: legal and as fast, but action {place} of rank {rank} is {mine}, torch runs "
                    f"{theirs}.\nWhere to look: micro-batches go in order; a rank runs its forward first, "
                    "then the backward."
                )
