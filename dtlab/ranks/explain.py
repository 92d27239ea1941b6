"""What the states of all ranks say together: who is late, or what does not fit (lesson 12).

Collectives of one group are numbered in the order in which a rank starts them, so the rank with the lowest
number is the one that the others wait for. All functions here are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtlab.ranks.rank_state import DEFAULT_GROUP, RankState

__all__ = ["Explanation", "explain", "unlike_sizes"]

_ONE_SIZE = ("all_reduce", "reduce", "broadcast", "all_gather", "gather")  # all ranks bring one size


@dataclass(frozen=True)
class Explanation:
    """Who is late, and the reason in one line (``str()`` gives it)."""

    late: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def explain(states: Sequence[RankState | None]) -> Explanation:
    """Say who is late and what the others wait in.

    Args:
        states: one per rank in rank order; None for a rank that did not answer.

    Returns:
        ``late``: the ranks that the others wait for, empty when that cannot be told (all wait for each other,
        or nobody waits); ``text``: one line with every rank's operation.

    Example:
        >>> print(explain([RankState(0, "all_reduce", 4, False, groups={"0": 4}),
        ...                RankState(1, "all_reduce", 3, True, groups={"0": 3})]))
        rank 1 of 2 is late: last operation all_reduce #3; rank 0 waits in all_reduce #4
    """
    size = len(states)
    answered = [state for state in states if state is not None]
    silent = tuple(rank for rank, state in enumerate(states) if state is None)
    waiting = [state for state in answered if state.waits]
    unlike = unlike_sizes(answered)
    late = () if unlike else _late(answered, waiting)
    lines = [
        f"rank {rank} of {size} did not answer: ended, or holding the interpreter lock" for rank in silent
    ]
    for state in answered:
        if state.rank in late:
            verb = "waits in" if state.waits else "last operation"
            lines.append(f"rank {state.rank} of {size} is late: {verb} {state.what()}{_at(state)}")
    if unlike:
        lines.append(unlike)
    elif not late and not silent:
        lines.append(_standstill(waiting, size))
    for state in answered:
        if state.rank in late:
            continue
        if state.waits:
            at = "" if late else _at(state)
            lines.append(f"rank {state.rank} waits in {state.what()}{at}")
        else:
            lines.append(f"rank {state.rank}: last operation {state.what()}{_at(state)}")
    return Explanation(tuple(sorted({*silent, *late})), "; ".join(lines))


def _late(answered: Sequence[RankState], waiting: Sequence[RankState]) -> tuple[int, ...]:
    numbered = [state for state in waiting if state.sequence is not None]
    if numbered:
        # Several groups may wait at once: start from the rank that is furthest ahead in its group.
        ahead = max(numbered, key=lambda state: state.sequence or 0)
        reached = {
            state.rank: state.groups.get(ahead.group, 0)
            for state in answered
            if not ahead.members or state.rank in ahead.members
        }
        lowest = min(reached.values(), default=0)
        if lowest < (ahead.sequence or 0):
            return tuple(rank for rank, number in reached.items() if number == lowest)
    reached = {state.rank: state.groups.get(DEFAULT_GROUP, 0) for state in answered}
    if not waiting and len(set(reached.values())) > 1:  # the one that waited has just given up
        return tuple(rank for rank, number in reached.items() if number == min(reached.values()))
    if waiting:  # same numbers, or operations without a number (send, recv): late is who does not wait
        members = {rank for state in waiting for rank in state.members}
        return tuple(s.rank for s in answered if not s.waits and (not members or s.rank in members))
    return ()


def unlike_sizes(states: Sequence[RankState]) -> str:
    """Words for a collective to which ranks brought unlike sizes, or "": who is through it is not late."""
    for first in states:
        same = [s for s in states if (s.group, s.sequence) == (first.group, first.sequence)]
        if not first.waits or first.sequence is None or first.operation not in _ONE_SIZE:
            continue
        if any(s.operation == first.operation and s.sizes != first.sizes for s in same):
            sizes = "; ".join(f"rank {s.rank}: {', '.join(map(str, map(list, s.sizes)))}" for s in same)
            return f"the ranks call {first.operation} #{first.sequence} with different sizes ({sizes})"
    return ""


def _standstill(waiting: Sequence[RankState], size: int) -> str:
    numbered = [state for state in waiting if state.sequence is not None]
    if len(numbered) > 1:
        first = numbered[0]
        for other in numbered[1:]:
            if (other.group, other.sequence) != (first.group, first.sequence):
                continue
            if other.operation != first.operation:
                return f"the ranks call different operations as number {first.sequence}"
    return "every rank waits for another" if len(waiting) == size else "no rank waits in a collective"


def _at(state: RankState) -> str:
    where = state.where()
    return f", at {where}" if where else ""
