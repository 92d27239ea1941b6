"""Check of lesson 16's end: the whole report card, plan first, measured on another seed than the lesson's."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise, is_stub

SEED, LEAST_AUC = 1, 0.70


@exercise(
    "16-report",
    todo="the plan of your choose_plan for JOB, and your recipe in the plan's number format",
    hints=(
        "The plan says in which number format the cards compute. Does the report card train in it?",
        "plan = choose_plan(JOB, machines()); final = replace(recipe, precision=plan['precision']).",
    ),
)
def report(checks: Checks, answer: Any, plan: Any) -> None:
    """The plan's cents, then its lines, then the recipe measured in the plan's format."""
    from dtlab.course.capstone import Recipe, clicks
    from dtlab.course.capstone_plan import PLAN_KEYS, plan_card
    from dtlab.course.lessons.l16 import passes, start_ranks, steps_of_rows
    from dtlab.course.report_card import card_of, measure

    if plan is None or is_stub(plan):
        raise ToDo("the plan is still to do")
    if not isinstance(answer, Recipe):
        raise CheckFailed(f"the answer is a {type(answer).__name__}: hand in the Recipe of your trainer.")
    if not isinstance(plan, dict) or set(plan) != set(PLAN_KEYS):
        raise CheckFailed(f"the plan is {plan!r}: hand in a dict with {', '.join(PLAN_KEYS)}.")
    planned = plan_card(plan)
    bill = planned.lines[-1]
    checks.integer("cents of the plan", plan["cents"], int(bill.wanted.split()[0]), look=bill.look)
    for line in planned.lines:
        passes(checks, line)
    checks.equal(
        "number format of the recipe",
        answer.precision,
        plan["precision"],
        look="a report card in another format than the plan's says nothing of the run that will be paid",
    )
    measured = measure(answer, clicks(), seed=SEED, start=start_ranks(150))
    steps_of_rows(checks, measured)
    for line in card_of(measured, least_auc=LEAST_AUC).lines:
        passes(checks, line)
