"""Checks of lesson 15: which trials go on at each rung, and what they cost.

The request: ``l15_request``; the agreed stop: ``l15_stop``; the record of a run: ``l15_record``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons import l15_record, l15_request, l15_stop  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import require_function


class Case(NamedTuple):
    name: str
    curves: Mapping[str, Sequence[float]]
    rungs: tuple[int, ...]
    keep: int


def _cases() -> tuple[Case, ...]:
    from dtlab.course.recorded import trials

    recorded = {one.name: one.auc for one in trials()}
    nan = math.nan
    small = {
        "late": [0.50, 0.55, 0.60, 0.70, 0.74, 0.76],
        "lost": [0.72, nan, nan, nan, nan, nan],
        "early": [0.66, 0.69, 0.68, 0.60, 0.58, 0.57],
        "steady": [0.60, 0.64, 0.66, 0.68, 0.70, 0.71],
        "twin": [0.60, 0.64, 0.66, 0.68, 0.70, 0.72],
    }
    return (
        Case("27 recorded runs, judged at looks 1, 3 and 9", recorded, (1, 3, 9), 3),
        Case("five, one of them lost, half go on", small, (2, 4), 2),
        Case("two of three go, one stays", {name: small[name] for name in ("late", "early")}, (1,), 3),
    )


@exercise(
    "15-rungs",
    todo="at each rung rank the trials that are left, keep one in `keep`, and count the looks of all",
    hints=(
        "Who is still there at a rung? A run keeps the weights of its best look: which figure of each trial "
        "decides? Until which look was one trained that does not go on, and until which one that always "
        "does?",
        "for rung in rungs: ranked = sorted(alive, key=lambda name: score(curves[name][:rung]), "
        "reverse=True), "
        "score = -inf where the last one is nan, else the max; going = ranked[:max(1, len(alive) // keep)]; "
        "looks[name] = rung for those that do not go. At the end looks[name] = len(curves[name]) for the "
        "rest.",
    ),
    references=("dtlab.tune.rungs.halve",),
)
def climb(checks: Checks, answer: Any) -> None:
    """How many go on and looks paid of three sets of curves; then the names."""
    require_function(answer)
    cases = _cases()
    given = [_ask(answer, case) for case in cases]
    right = [expected(case) for case in cases]
    for case, (survivors, looks), (want, paid) in zip(cases, given, right, strict=True):
        checks.integer(f"{case.name}: rungs", len(survivors), len(want), look="one list for each rung")
        for rung, names, wanted in zip(case.rungs, survivors, want, strict=True):
            checks.integer(
                f"{case.name}: go on after look {rung}",
                len(names),
                len(wanted),
                look="one in `keep` of those that are left, rounded down, and always one: "
                "max(1, len(alive) // keep)",
            )
        checks.integer(
            f"{case.name}: looks paid",
            sum(looks.values()),
            sum(paid.values()),
            look=_mistake(case, looks, paid),
        )
    whole = _cents(sum(map(len, cases[0].curves.values())))
    spent, least = (_cents(sum(looks.values())) for _, looks in (given[0], right[0]))
    checks.integer("cents of the 27 trained in full", whole, 86_144)
    checks.integer("cents saved by the rungs", whole - spent, whole - least)
    for case, (survivors, looks), (want, paid) in zip(cases, given, right, strict=True):
        checks.equal(
            f"{case.name}: who goes on, best first",
            [list(names) for names in survivors],
            want,
            look="by the best so far, max(curves[name][:rung]), as the weights of the best look are kept; "
            "nan at "
            "the rung is worse than any number; of equals the one that stands first in `curves`",
        )
        checks.equal(f"{case.name}: looks of each", dict(looks), paid)


def _cents(looks: int) -> int:
    """What so many looks cost in the lesson: ten minutes of one host each."""
    from dtlab.cost.billing import cost

    return cost("ml.g5.12xlarge", 600 * looks).cents


def expected(case: Case) -> tuple[list[list[str]], dict[str, int]]:
    """The right answer of a case."""
    from dtlab.tune.rungs import halve

    return halve(case.curves, case.rungs, case.keep)


def _mistake(case: Case, looks: Mapping[str, int], paid: Mapping[str, int]) -> str:
    if set(looks) != set(paid):
        missing = sorted(set(paid) - set(looks))
        return (
            f"every trial was trained for a while: no looks for {missing[0]!r}"
            if missing
            else ("a name in looks that is none of the trials")
        )
    full = {name: len(curve) for name, curve in case.curves.items()}
    if looks == full:
        return "a trial that does not go on is paid until its rung, not to its end"
    ended = [name for name in paid if paid[name] == full[name]]
    if any(looks[name] != full[name] for name in ended):
        return "what is left after the last rung is trained to the end of its curve"
    return "a trial is paid from look 1 to the rung at which it ended: that is the number of the look"


def _ask(answer: Any, case: Case) -> tuple[list[Any], dict[str, int]]:
    curves = {name: list(curve) for name, curve in case.curves.items()}
    found = answer(curves, case.rungs, case.keep)
    if found is None or found is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if found is None else "..."))
    if not isinstance(found, tuple) or len(found) != 2:
        raise CheckFailed("give a tuple of two: survivors, looks.")
    survivors, looks = found
    if not isinstance(survivors, list) or not all(isinstance(names, list | tuple) for names in survivors):
        raise CheckFailed("survivors: give a list with a list of names for each rung.")
    if not isinstance(looks, dict) or not all(isinstance(paid, int) for paid in looks.values()):
        raise CheckFailed("looks: give a dict, name -> number of looks, whole numbers.")
    return survivors, looks
