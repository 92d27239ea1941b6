"""Check of lesson 01: what a step is bound by, and which of its rules a wrong answer left."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import Checks, exercise
from dtlab.course.lessons.l01_answers import PARTS, dict_of, same_integer, total_of
from dtlab.course.lessons.l01_traces import recorded_traces
from dtlab.course.lessons.on_ranks import require_function


@exercise(
    "01-bound",
    todo="return data, compute and sync of the typical step, and what the step is bound by",
    hints=(
        "zip(*trace) gives, for each step, the steps of all ranks. Which of them waited least in sync? "
        "min(..., key=lambda step: step['sync']). Leave out the first step.",
        "last = [min(step, key=lambda one: one['sync']) for step in zip(*trace)][1:]; then for each part "
        "statistics.median_low(one[part] for one in last); the part with the largest median names the bound.",
    ),
)
def bound(checks: Checks, answer: Any) -> None:
    """Four recorded jobs: the three medians in microseconds, then the name."""
    require_function(answer)
    found = {name: dict_of(answer(trace), (*PARTS, "bound")) for name, trace in recorded_traces().items()}
    right = {name: _right_bound(trace) for name, trace in recorded_traces().items()}
    for name, got in found.items():
        for part in PARTS:
            if not same_integer(got[part], right[name][part]):
                look = _bound_look(found, name)
                checks.integer(
                    f"trace {name}: microseconds of {part}", got[part], right[name][part], look=look
                )
        checks.integer(
            f"trace {name}: microseconds of the typical step", total_of([got]), total_of([right[name]])
        )
    for name, got in found.items():
        checks.equal(
            f"what trace {name} is bound by",
            got["bound"],
            right[name]["bound"],
            look="the longest of the three names it: 'input-bound', 'compute-bound' or 'communication-bound'",
        )


def _bound_look(found: dict[str, dict[str, Any]], name: str) -> str:
    """Where to look, from the rule that the answer seems to have followed instead."""
    traces = recorded_traces()
    followed = {one: _rules_followed(traces[one], got) for one, got in found.items()}
    everywhere = [rule for rule in followed[name] if all(rule in rules for rules in followed.values())]
    general = (
        "each step is that of the rank with the least sync; without step 0; then median_low of each part"
    )
    return next(iter(everywhere or followed[name]), general)


def _rules_followed(trace: list[list[dict[str, int]]], got: dict[str, Any]) -> list[str]:
    """Wrong rules that give this answer for this trace; some traces cannot tell two of them apart."""
    from statistics import mean, median, median_high, median_low

    by_step = list(zip(*trace, strict=True))
    last = [min(step, key=lambda one: one["sync"]) for step in by_step]
    first_come = [max(step, key=lambda one: one["sync"]) for step in by_step]
    rules: dict[str, tuple[Any, Any]] = {
        "rule 2: leave out step 0": (last, median_low),
        "rule 1: the rank with the *least* sync came last; you took the one with the most": (
            first_come[1:],
            median_low,
        ),
        "rule 1: both ranks matter; you took rank 0 in every step": (trace[0][1:], median_low),
        "rule 1: both ranks matter; you took rank 1 in every step": (trace[1][1:], median_low),
        "rule 1: take one rank in each step; you joined the steps of all ranks": (
            [one for step in by_step[1:] for one in step],
            median_low,
        ),
        "rule 1: take the three parts of one rank together; you took the least of each part": (
            [{part: min(one[part] for one in step) for part in PARTS} for step in by_step[1:]],
            median_low,
        ),
        "rule 1: take the three parts of one rank together; you took the most of each part": (
            [{part: max(one[part] for one in step) for part in PARTS} for step in by_step[1:]],
            median_low,
        ),
        "rule 3: a mean lets one slow step decide; take the median": (last[1:], mean),
        "rule 3: median_low gives a step that was measured; yours lies between two": (last[1:], median),
        "rule 3: median_low, not median_high": (last[1:], median_high),
    }
    return [
        rule
        for rule, (steps, middle) in rules.items()
        if all(abs(float(got[part]) - middle(one[part] for one in steps)) < 0.6 for part in PARTS)
    ]


def _right_bound(trace: list[list[dict[str, int]]]) -> dict[str, Any]:
    from statistics import median_low

    from dtlab.cost.scaling import classify_step

    last = [min(step, key=lambda one: one["sync"]) for step in zip(*trace, strict=True)][1:]
    parts = {part: median_low(one[part] for one in last) for part in PARTS}
    return {**parts, "bound": classify_step(*(parts[part] for part in PARTS))}
