"""Which machines, how many, and how to cut the model: cheapest in time, or fastest in budget (lesson 14).

`plan_search` finds the best way on each number of machines of each type; here these are compared. Among
machines the cheapest and the fastest differ, and the frontier holds those that no other beats in both.

Dollars or hours that differ by less than 1 % count as equal: then the other of the two decides.

What a prediction leaves out: data that the loader cannot bring (give `reader_per_host`), failures, queues for
capacity, storage.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from dtlab.cost.plan_job import Job, Space
from dtlab.cost.plan_machines import counts_of, machines_of
from dtlab.cost.plan_search import EQUAL, Candidate, Predictor, Search
from dtlab.cost.plan_space import check_tp
from dtlab.cost.work import work_of
from dtlab.errors import UserError

__all__ = ["Candidate", "Plan", "Predictor", "frontier", "nearest", "plan"]


@dataclass(frozen=True)
class Plan:
    """What was found.

    - `best`: by the job's goal within deadline and budget; `runner_up`: the next best on other machines.
    - `frontier`: fastest first, each cheaper than those before it, whatever the deadline and budget.
    - `candidates`: the best way of each number of machines; `dots`: (seconds, usd) of all that was predicted.
    - `covered` configurations = `refused` (bf16 on a card without it) + `no_room` + `too_slow` (by their bare
      computation) + `set_aside` (pipelines that are not needed) + `predicted`.
    - `left_out`: machine types that were not tried, with the reason.
    """

    job: Job
    space: Space
    best: Candidate
    runner_up: Candidate | None
    frontier: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    covered: int
    refused: int
    no_room: int
    too_slow: int
    set_aside: int
    predicted: int
    search_seconds: float
    left_out: tuple[str, ...] = ()
    dots: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    def within(self, one: Candidate) -> bool:
        """Whether a candidate keeps the deadline and the budget."""
        return one.seconds <= self.job.deadline_seconds and one.usd <= self.job.budget_usd


def plan(job: Job, space: Space, predictor: Predictor | None = None) -> Plan:
    """Search `space` for the job; see the module's text for what is covered.

    Raises:
        UserError: an unknown instance, price or region; tensor parallelism beyond a machine; nothing fits a
            card; nothing keeps the deadline and the budget. The message says what comes nearest.
    """
    if predictor is None:
        from dtlab.cost.plan_model import Models

        predictor = Models()
    started = perf_counter()
    work_of(job.model)  # a model without a shape is refused for what it is, whatever the machines
    machines, left_out = machines_of(space)
    check_tp(space, max(found.gpus for found, _ in machines))
    search, failures = Search(job, space, predictor), []
    for found, price in machines:
        try:
            for count in counts_of(space, found):
                search.on(found, count, price)
        except UserError as error:  # a card of the user's own price file, of which no speed is known
            failures.append(str(error))
            if space.instances or len(failures) == len(
                machines
            ):  # one that was named, or all: the model's fault
                raise
    candidates = tuple(sorted(search.found, key=_order(job)))
    if not candidates:
        raise UserError(search.why_nothing(min(found.gpus for found, _ in machines)))
    feasible = [one for one in candidates if _keeps(job, one)]
    if not feasible:
        raise UserError(_why_not(job, candidates))
    best = _first(job, feasible)
    rest = [one for one in feasible if one is not best]
    others = [one for one in rest if one.instance is not best.instance] or rest
    runner_up = _first(job, others) if others else nearest(job, [c for c in candidates if c is not best])
    return Plan(
        job=job,
        space=space,
        best=best,
        runner_up=runner_up,
        frontier=frontier(candidates),
        candidates=candidates,
        covered=search.covered,
        refused=search.refused,
        no_room=search.no_room,
        too_slow=search.too_slow,
        set_aside=search.set_aside,
        predicted=len(search.dots),
        search_seconds=perf_counter() - started,
        left_out=(*left_out, *failures),
        dots=tuple(search.dots),
    )


def frontier(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other beats in both time and dollars, fastest first."""
    kept: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (one.seconds, one.usd)):
        if not kept or one.usd < kept[-1].usd:
            kept.append(one)
    return tuple(kept)


def _keeps(job: Job, one: Candidate) -> bool:
    return one.seconds <= job.deadline_seconds and one.usd <= job.budget_usd


def _order(job: Job):
    if job.goal == "cheapest":
        return lambda one: (round(one.usd, 6), one.seconds)
    return lambda one: (one.seconds, one.usd)


def _first(job: Job, candidates: Sequence[Candidate]) -> Candidate:
    """The best by the job's goal; of those that differ by less than predictions can, by the other measure."""
    if job.goal == "cheapest":
        least = EQUAL * min(one.usd for one in candidates)
        return min((one for one in candidates if one.usd <= least), key=lambda one: (one.seconds, one.usd))
    least = EQUAL * min(one.seconds for one in candidates)
    return min((one for one in candidates if one.seconds <= least), key=lambda one: (one.usd, one.seconds))


def nearest(job: Job, candidates: Iterable[Candidate]) -> Candidate | None:
    """The best that keeps the limits; where none does, what misses them by least."""
    order = _order(job)

    def miss(one: Candidate) -> float:
        return max(one.seconds / job.deadline_seconds, one.usd / job.budget_usd)

    return min(candidates, key=lambda one: (max(1.0, miss(one)), *order(one)), default=None)


def _why_not(job: Job, candidates: Sequence[Candidate]) -> str:
    fastest = min(candidates, key=lambda one: one.seconds)
    cheapest = min(candidates, key=lambda one: one.usd)
    limits = []
    if job.deadline_seconds < math.inf:
        limits.append(f"deadline = {job.deadline_seconds / 3600:g} h")
    if job.budget_usd < math.inf:
        limits.append(f"budget = ${job.budget_usd:,.2f}")
    return (
        f"{' and '.join(limits)}: nothing keeps it; the fastest is {fastest.name} with "
        f"{fastest.seconds / 3600:,.2f} h and ${fastest.usd:,.2f}, the cheapest {cheapest.name} with "
        f"{cheapest.seconds / 3600:,.2f} h and ${cheapest.usd:,.2f}; give more time, money or GPUs"
    )
