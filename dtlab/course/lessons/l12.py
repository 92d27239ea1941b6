"""Checks of lesson 12: who is late, which fault each patient has. The patches are in ``l12_patches.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dtlab.course.lessons.l12_patches  # noqa: F401  registers the checks of the patches
from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.lessons.on_ranks import require_function

if TYPE_CHECKING:
    from dtlab.ranks.rank_state import RankState

CAUSES = ("condition", "shapes", "unused parameter", "wrong group", "stale address")

# Cause and the rank or ranks whose code or data must be changed or looked at first.
TRUTH: dict[str, tuple[str, list[int]]] = {
    "skips_a_batch": ("condition", [0]),
    "own_vocabulary": ("shapes", [0, 1]),
    "unused_head": ("unused parameter", [1]),
    "wrong_pairs": ("wrong group", [1, 2]),
    "old_settings": ("stale address", [1]),
}


@exercise(
    "12-late",
    todo="compare, in the group of each waiting rank, how many collectives every member has started",
    hints=(
        "Collectives of one group are numbered in the order in which a rank starts them. A rank that waits "
        "in number n waits for every member that has started fewer than n. What if all have started n?",
        "late = set(); for each state that waits: members = state.members or range(len(states)); add every "
        "member whose states[member].groups.get(state.group, 0) < state.sequence. If late is empty, compare "
        "waiting ranks of the same group and sequence: first operation, then sizes.",
    ),
    references=(
        "dtlab.ranks.explain.explain",
        "dtlab.ranks.recorder.explain",
        "dtlab.figures.lanes.finding",
    ),
)
def late(checks: Checks, answer: Any) -> None:
    """Made-up states: number of late ranks, then who, then why."""
    require_function(answer)
    cases = _cases()
    given = {name: _pair(answer(list(states)), name) for name, (states, _, _) in cases.items()}
    for name, (_, who, _) in cases.items():
        checks.integer(f"{name}: late ranks", len(given[name]["late"]), len(who), look=_LOOK)
    checks.equal("who, in each case", *_column(given, cases, "late", 1), look=_LOOK)
    look = "why is one of the five texts of the docstring"
    checks.equal("why, in each case", *_column(given, cases, "why", 2), look=look)


def _column(given: Any, cases: Any, key: str, place: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given and what is right, by case."""
    got = {name: one[key] if isinstance(one[key], str) else list(one[key]) for name, one in given.items()}
    return got, {name: case[place] for name, case in cases.items()}


_LOOK = "count in the group that a rank waits in, and only its members; sorted, each rank once"


def _pair(given: Any, name: str) -> dict[str, Any]:
    if given is None or given is ...:
        raise NotImplementedError
    if not isinstance(given, dict) or set(given) != {"late", "why"} or not hasattr(given["late"], "__len__"):
        raise CheckFailed(f"{name}: got {given!r}: give a dict with 'late', a list of ranks, and 'why'.")
    return given


def _cases() -> dict[str, tuple[list[RankState], list[int], str]]:
    from dtlab.ranks.rank_state import RankState

    def state(rank: int, operation: str, number: int, waits: bool = True, **more: Any) -> RankState:
        group = more.get("group", "0")
        groups = {group: number} | more.pop("also", {})
        return RankState(rank, operation, number, completed=not waits, groups=groups, **more)

    left: dict[str, Any]
    right: dict[str, Any]
    left, right = {"group": "7", "members": (0, 2)}, {"group": "8", "members": (1, 3)}
    return {
        "three ranks, one behind": (
            [state(0, "all_reduce", 5), state(1, "all_reduce", 5), state(2, "all_reduce", 4, waits=False)],
            [2], "late",
        ),
        "two behind by different numbers": (
            [state(0, "barrier", 1, waits=False), state(1, "all_reduce", 6),
             state(2, "all_reduce", 3, waits=False)],
            [0, 2], "late",
        ),
        "two groups, each with a late rank": (
            [state(0, "all_reduce", 2, **left), state(1, "all_reduce", 9, **right),
             RankState(2, "all_reduce", 40, completed=True, groups={"0": 40}),
             RankState(3, groups={"7": 5, "8": 8})],
            [2, 3], "late",
        ),
        "a rank outside the group is not late": (
            [state(0, "all_reduce", 2, **left), state(1, "all_reduce", 1, waits=False, **right),
             state(2, "all_reduce", 1, waits=False, **left), RankState(3)],
            [2], "late",
        ),
        "a barrier met an all-reduce": (
            [state(0, "barrier", 2), state(1, "all_reduce", 2)], [], "different operations",
        ),
        "two lengths": (
            [state(0, "all_reduce", 3, sizes=((4,),)), state(1, "all_reduce", 3, sizes=((3,),))],
            [], "different sizes",
        ),
        "all in the same call": (
            [state(0, "all_reduce", 3, sizes=((4,),)), state(1, "all_reduce", 3, sizes=((4,),))],
            [], "all are here",
        ),
        "nobody waits": (
            [state(0, "all_reduce", 3, waits=False), state(1, "all_reduce", 3, waits=False)],
            [], "nobody waits",
        ),
    }  # fmt: skip


@exercise(
    "12-diagnosis",
    todo="give for each patient its cause, and the ranks that the message names",
    hints=(
        "The rank that gives up is seldom the rank that is wrong. Which one is late, has left, or is the one "
        "whose parameters got no gradient? Of four ranks in two groups two can be late.",
        "skips_a_batch: who started one all-reduce less? own_vocabulary: whose table has another length than "
        "the other's: both are looked at. unused_head: 'did not receive grad for rank'. wrong_pairs: the "
        "ranks that 'do not belong to the given group'. old_settings: who connects where nobody listens?",
    ),
)
def diagnosis(checks: Checks, answer: Any) -> None:
    """How many causes and ranks are right, and the first patient that is not."""
    if not isinstance(answer, dict) or set(answer) != set(TRUTH):
        raise CheckFailed(f"give a dict with the keys {', '.join(TRUTH)}.")
    for name, value in answer.items():
        if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], list | tuple | int)):
            raise CheckFailed(f"{name}: got {value!r}: give (cause, [ranks]).")
        if value[0] not in CAUSES:
            raise CheckFailed(f"{name}: {value[0]!r} is not one of {', '.join(CAUSES)}.")
    given = {name: (cause, _ranks(ranks)) for name, (cause, ranks) in answer.items()}
    for place, what, look in (
        (0, "cause", "what has to change so that the run is right?"),
        (1, "ranks", "read the message again: who is named as late, gone or outside?"),
    ):
        wrong = [name for name in TRUTH if given[name][place] != TRUTH[name][place]]
        checks.integer(
            f"patients with the right {what}",
            len(TRUTH) - len(wrong),
            len(TRUTH),
            look=f"{wrong[0]}: {look}" if wrong else "",
        )


def _ranks(given: Any) -> list[int]:
    return [given] if isinstance(given, int) else sorted(given)
