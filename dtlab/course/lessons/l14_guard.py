"""Check of lesson 14's hard stop: the bill in cents, and two real ranks that stop together at the limit."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function

ASK = 4
BILLS = {
    "an hour of two ml.g4dn.12xlarge": (3600.0, 2, 4.89, 978),
    "five hours, six minutes and a bit": (18_404.2, 2, 4.89, 5_000),
    "five seconds": (5.0, 1, 7.09, 12),
    "an hour and a bit of 16 hosts at $98.32": (3600.2, 16, 98.32, 157_356),
}
_LATE = 10.0  # seconds after which a collective gives up


class Case(NamedTuple):
    name: str
    first: int
    total: int
    seconds_a_step: float
    before: float
    limit: int
    steps: int
    saves: int
    asks: int
    returned: str
    ahead: float = 2400.0  # seconds that rank 1's clock is ahead of rank 0's: its host was up earlier


# Two hosts at $9.78 an hour: 300 s are 81.5 cents, so $50 are passed in step 62 and seen at 64.
CASES = (
    Case("a limit of $50, steps of 300 s", 0, 100, 300.0, 0.0, 5_000, 64, 1, 16, "stopped"),
    Case("the same, rank 1's host up later", 0, 100, 300.0, 0.0, 5_000, 64, 1, 16, "stopped", -2400.0),
    Case("a limit that is not reached", 0, 22, 300.0, 0.0, 5_000, 22, 0, 5, "finished"),
    Case("reached to the cent at step 12", 0, 40, 300.0, 0.0, 978, 12, 1, 3, "stopped"),
    Case("an attempt before this one took 4 hours", 40, 100, 300.0, 14_400.0, 5_000, 56, 1, 4, "stopped"),
    Case("reached in the last step, which is a question", 0, 12, 300.0, 0.0, 978, 12, 1, 3, "stopped"),
)
_ASKING = "every `ask` steps all ranks call w.all_agree(..., rule='any'), whatever each one's own bill says"


@exercise(
    "14-guard",
    todo="cents: started seconds, 60 at least, of all hosts; then step, agree on rank 0's bill, save, stop",
    hints=(
        "The clocks of two hosts differ. If each rank decides by its own, which of them leaves first, and "
        "what does the other one do? Whose bill counts, and how do the others hear of it?",
        "cents: round(100 * usd_per_hour * hosts * max(60, math.ceil(seconds)) / 3600). Loop: run.step(); if "
        "run.steps % ask == 0: over = w.rank == 0 and spent() >= limit; if w.all_agree(over, rule='any'): "
        "save(run); return 'stopped'. After the loop: 'finished'.",
    ),
    references=("dtlab.cost.billing.cost", "dtlab.train.budget.Budget"),
)
def guard(checks: Checks, answer: Any, train_within: Any) -> None:
    """Four bills in cents; then steps, saves and questions of two ranks with clocks 40 minutes apart."""
    require_function(answer)
    require_function(train_within)
    for name, (seconds, hosts, usd, cents) in BILLS.items():
        got = answer(seconds, hosts, usd)
        checks.integer(f"{name}: cents", got, cents, look=_bill_mistake(got, seconds, hosts, usd))
    ranks = on_ranks(2, _guarded, train_within, CASES, timeout=40, look=_ASKING)
    for number, case in enumerate(CASES):
        _case(checks, case, [one[number] for one in ranks])


def _bill_mistake(got: Any, seconds: float, hosts: int, usd: float) -> str:
    started, hourly = max(60, math.ceil(seconds)), 100 * usd / 3600
    wrong = {
        "a run is billed for 60 seconds at least": hourly * hosts * math.ceil(seconds),
        "every host is billed": hourly * started,
        "a second that was started is billed whole: math.ceil": hourly * hosts * max(60, seconds),
        "cut off; a second that was started is billed whole: math.ceil": hourly
        * hosts
        * max(60, int(seconds)),
        "billing is by the second, not by the started hour": 100 * usd * hosts * math.ceil(seconds / 3600),
        "that is dollars": hourly * hosts * started / 100,
    }
    for said, cents in wrong.items():
        if isinstance(got, int) and got == round(cents):
            return said
    return "round(100 * usd_per_hour * hosts * max(60, math.ceil(seconds)) / 3600)"


def _case(checks: Checks, case: Case, ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        if one["returned"] is None or one["returned"] is ...:
            raise ToDo("train_within gave None; is a return missing?")
    for what, right, look in (
        ("steps", case.steps, "stop at the first question at which rank 0's bill has reached the limit"),
        ("saves", case.saves, "save(run) once, on all ranks, before 'stopped'; not when it is finished"),
        ("questions", case.asks, _ASKING),
    ):
        found = [one[what] for one in ranks]
        wrong = next((rank for rank, count in enumerate(found) if count != right), None)
        name = f"{case.name}: {what}" + (", on both ranks" if wrong is None else f" on rank {wrong}")
        checks.integer(name, found[wrong or 0], right, look=_cause(case, ranks) or look)
    if ranks[0]["saved_at"] != [case.steps] * case.saves:
        raise CheckFailed(
            f"{case.name}: saved at steps {ranks[0]['saved_at']}, expected {[case.steps] * case.saves}.\n"
            "Where to look: save after the step at which all have agreed."
        )
    given = [one["returned"] for one in ranks]
    if given != [case.returned] * 2:
        raise CheckFailed(
            f"{case.name}: returned {given} on the ranks, expected {case.returned!r} on each.\n"
            'Where to look: "stopped" when the limit was reached, "finished" when `total` steps are made.'
        )


def _cause(case: Case, ranks: list[dict[str, Any]]) -> str:
    """What is wrong with the question itself, whichever count shows it first."""
    if any(rule != "any" for one in ranks for rule in one["rules"]):
        return 'w.all_agree(flag) alone is true when *every* rank says so: rule="any"'
    asked_at = ranks[0]["asked_at"]
    if case.first in asked_at:
        return f"a question came at step {case.first}, before any step: run.step() first, then ask"
    if any(step % ASK for step in asked_at):
        return "a question after a step whose number `ask` does not divide: if run.steps % ask == 0"
    differs = ranks[0]["steps"] - case.steps
    if case.returned == "stopped" and differs * case.ahead < 0:
        return "rank 1's clock is 40 minutes off: one clock counts, rank 0's (w.rank == 0 and ...)"
    return ""


def _guarded(answer: Any, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """On a rank: each case with a step that is one all-reduce, and a simulated clock."""
    from dtlab import world

    with world(timeout=_LATE) as w:
        return [_one(w, answer, case) for case in cases]


def _one(w: Any, answer: Any, case: Case) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    class Counting:
        """A run whose step is one all-reduce, and a world that counts its questions."""

        def __init__(self) -> None:
            self.steps, self.asks = case.first, 0
            self.saved_at: list[int] = []
            self.rules: list[str] = []
            self.asked_at: list[int] = []

        def step(self) -> None:
            dist.all_reduce(torch.ones(1))
            self.steps += 1
            if self.steps > case.total + 20:
                raise CheckFailed(f"step {self.steps} of {case.total}: the loop ends at `total`.")

        def save(self, given: Any) -> None:
            if given is not self:
                raise CheckFailed("save takes the run: save(run).")
            dist.all_reduce(torch.ones(1))
            self.saved_at.append(self.steps)

        def all_agree(self, flag: Any, rule: str = "all", **named: Any) -> Any:
            self.asks += 1
            self.rules.append(rule)
            self.asked_at.append(self.steps)
            return w.all_agree(flag, rule=rule, **named)

        def spent(self) -> int:
            """Cents so far, by this rank's clock."""
            own = (self.steps - case.first) * case.seconds_a_step + (case.ahead if w.rank else 0.0)
            return round(978 * max(60.0, case.before + own) / 3600)

        def __getattr__(self, name: str) -> Any:
            return getattr(w, name)

    run = Counting()
    returned = answer(run, run, case.total, ASK, case.limit, run.spent, run.save)
    return {
        "returned": returned, "steps": run.steps, "saves": len(run.saved_at), "saved_at": run.saved_at,
        "questions": run.asks, "rules": run.rules, "asked_at": run.asked_at,
    }  # fmt: skip
