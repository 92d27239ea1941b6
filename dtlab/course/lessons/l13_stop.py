"""Check of lesson 13's agreed stop: a signal reaches one rank, and all save at one step and leave."""

from __future__ import annotations

from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function

EVERY, ASK = 10, 4


_NOTED = ("steps", "saves", "asks", "asked_at", "rules")


class Case(NamedTuple):
    name: str
    first: int
    total: int
    told: tuple[int, int] | None  # rank and step
    saves: list[int]
    asks: int
    returned: str


ONE = Case("rank 1 is told in step 13", 0, 40, (1, 13), [10, 16], 4, "stopped")
MORE = (
    Case("nobody is told", 0, 30, None, [10, 20, 30], 7, "finished"),
    Case("rank 0 is told in step 20, where a save is due", 0, 40, (0, 20), [10, 20], 5, "stopped"),
    Case("continued at step 16", 16, 30, None, [20, 30], 3, "finished"),
)
_ASKING = "every `ask` steps all ranks call w.all_agree(told(), rule='any'), whatever told() says on each"

_SAME = f"{_ASKING}; and save(run) is for all ranks together"
_ALL = (
    'w.all_agree(flag) alone is true when *every* rank was told, and one was: w.all_agree(told(), rule="any")'
)
_TOO_EARLY = (
    "a question came at step {0}, before any step was made: run.step() first, then ask, and save or return "
    "at that step"
)
_LATE = 10.0  # seconds after which a collective gives up


@exercise(
    "13-stop",
    todo="step; every `ask` steps agree whether any rank was told; save when due or stopping; return",
    hints=(
        "told() is true on one rank only. Which call turns a local yes into a common one, and where must it "
        "stand so that every rank comes to it?",
        "while run.steps < total: run.step(); stop = run.steps % ask == 0 and w.all_agree(told(), "
        'rule="any"); if stop or run.steps % every == 0: save(run); if stop: return "stopped". After the '
        'loop: "finished".',
    ),
    references=("dtlab.course.interrupted.agreed_stop",),
)
def stop(checks: Checks, answer: Any) -> None:
    """Real SIGTERMs on two real ranks: steps, saves and messages first, then what was returned."""
    require_function(answer)
    alone = on_ranks(2, _told_to_stop, answer, (ONE,), timeout=30, look=_SAME)
    _case(checks, ONE, [one[0] for one in alone])
    several = on_ranks(2, _told_to_stop, answer, MORE, timeout=30, look=_SAME)
    for number, case in enumerate(MORE):
        _case(checks, case, [one[number] for one in several])
    by_case = [[one[0] for one in alone], *([one[number] for one in several] for number in range(len(MORE)))]
    checks.equal(
        '"stopped" or "finished", on every rank',
        [[one["returned"] for one in ranks] for ranks in by_case],
        [[case.returned] * 2 for case in (ONE, *MORE)],
    )


def _case(checks: Checks, case: Case, ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        if one["returned"] is None or one["returned"] is ...:
            raise ToDo("train_until_told gave None; is a return missing?")
    _everywhere(
        checks,
        f"{case.name}: steps",
        [one["steps"] for one in ranks],
        case.saves[-1],
        look=_cause(case, ranks)
        or "stop at the first question after the signal, on every rank; questions only after steps whose "
        "number `ask` divides; without a yes go on to `total`",
    )
    missing = sorted(set(case.saves) - set(ranks[0]["saves"]))
    _everywhere(
        checks,
        f"{case.name}: saves",
        [len(one["saves"]) for one in ranks],
        len(case.saves),
        look=_cause(case, ranks)
        or f"no save at step {missing[0]}: save every `every` steps, and before you return 'stopped'"
        if missing
        else "one save for a step, also where a save is due and the run stops; save() is for all ranks",
    )
    _everywhere(
        checks,
        f"{case.name}: questions",
        [one["asks"] for one in ranks],
        case.asks,
        look=_cause(case, ranks) or _ASKING,
    )
    if ranks[0]["saves"] != case.saves:
        raise CheckFailed(
            f"{case.name}: saves at steps {ranks[0]['saves']}, expected {case.saves}.\nWhere to look: save "
            "after the step that is due, not before it."
        )
    given = [one["returned"] for one in ranks]
    if given != [case.returned] * len(ranks):
        raise CheckFailed(
            f"{case.name}: returned {given} on the ranks, expected {case.returned!r} on each.\nWhere to "
            'look: "stopped" when any rank was told, "finished" when `total` steps are made.'
        )


def _cause(case: Case, ranks: list[dict[str, Any]]) -> str:
    """What is wrong with the questions themselves, whichever count shows it first; empty when nothing is."""
    if any(rule != "any" for one in ranks for rule in one["rules"]):
        return _ALL
    return _TOO_EARLY.format(case.first) if case.first in ranks[0]["asked_at"] else ""


def _everywhere(checks: Checks, what: str, given: list[int], expected: int, look: str) -> None:
    """Compare a count on every rank; a rank is named where it is wrong."""
    wrong = next((rank for rank, count in enumerate(given) if count != expected), None)
    name = f"{what}, on every rank" if wrong is None else f"{what} on rank {wrong}"
    checks.integer(name, given[wrong or 0], expected, look=look)


def _told_to_stop(answer: Any, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """On a rank: each case with a step that is one all-reduce, and real signals."""
    from dtlab import world

    with world(timeout=_LATE) as w:
        return [_one(w, answer, case) for case in cases]


def _one(w: Any, answer: Any, case: Case) -> dict[str, Any]:
    import os
    import signal

    import torch
    import torch.distributed as dist

    from dtlab.train.signals import StopSignals

    class Counting:
        """A run whose step is one all-reduce, and a world that counts its questions."""

        def __init__(self) -> None:
            self.steps, self.asks = case.first, 0
            self.saves: list[int] = []
            self.asked_at: list[int] = []
            self.rules: list[str] = []

        def step(self) -> None:
            dist.all_reduce(torch.ones(1))
            self.steps += 1
            if case.told == (w.rank, self.steps):
                os.kill(os.getpid(), signal.SIGTERM)
            if self.steps > case.total + 20:
                raise CheckFailed(f"step {self.steps} of {case.total}: the loop ends at `total`.")

        def save(self, given: Any) -> None:
            if given is not self:
                raise CheckFailed("save takes the run: save(run).")
            dist.all_reduce(torch.ones(1))
            self.saves.append(self.steps)

        def all_agree(self, flag: Any, rule: str = "all", **named: Any) -> Any:
            self.asks += 1
            if self.asks > case.total + 20:
                raise CheckFailed(
                    f"{self.asks} questions, and step {self.steps} of {case.total}: run.step() makes one."
                )
            self.asked_at.append(self.steps)
            self.rules.append(rule)
            return w.all_agree(flag, rule=rule, **named)

        def __getattr__(self, name: str) -> Any:
            return getattr(w, name)

    run = Counting()
    with StopSignals() as signals:
        returned = answer(run, run, case.total, EVERY, ASK, lambda: signals.received is not None, run.save)
    return {"returned": returned, **{name: getattr(run, name) for name in _NOTED}}
