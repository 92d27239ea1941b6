"""Leaving together, so that no rank closes a connection that another still uses (lesson 12).

A rank that leaves says so in the store and waits for the others there, not in a collective: a collective
would pair up with whatever call another rank makes one time too often. Meanwhile it asks what the others do,
so a peer that waits for this rank in vain is named within seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from dtlab.ranks import recorder
from dtlab.ranks.explain import unlike_sizes
from dtlab.ranks.late import LateRankError
from dtlab.ranks.rank_state import UNRECORDED, RankState

_LEFT, _FAILED = b"left", b"failed"
# Seconds until the first question, from there to the second, and between later ones. Ranks usually leave
# within milliseconds of each other; asking costs each rank a moment.
_QUESTIONS = (0.3, 0.7, 2.0)


def say_failed(store: Any, prefix: str, rank: int) -> None:
    """Tell those who leave not to wait for this rank."""
    with contextlib.suppress(Exception):  # the store may have gone with its host
        store.set(f"{prefix}/left/{rank}", _FAILED)


def wait_for_all(store: Any, prefix: str, rank: int, size: int, timeout: float) -> bool:
    """Say that this rank leaves and wait until all have left or failed.

    Returns:
        True when all left in good order, False when one failed.

    Raises:
        LateRankError: another rank waits in a collective that this rank never called, or does not leave
            within ``timeout`` seconds.
    """
    keys = [f"{prefix}/left/{other}" for other in range(size)]
    store.set(keys[rank], _LEFT)
    begin = time.monotonic()
    first, second, later = _QUESTIONS
    question, until_next, pause = begin + first, second, 0.0005
    alone: RankState | None = None  # the last rank here, in a message, when it was asked before
    while not store.check(keys):
        now = time.monotonic()
        asking = recorder.current()
        if asking is not None and (now > question or now - begin > timeout):
            states = asking.ask()
            here = [state for state in states if state is not None and not store.check([keys[state.rank]])]
            _look_for_waiting(states[rank], here, states)
            alone = _look_for_message(states[rank], here, states, alone)
            question, until_next = now + until_next, later
        if now - begin > timeout:
            absent = [other for other, key in enumerate(keys) if not store.check([key])]
            listed = ", ".join(map(str, absent))
            raise LateRankError(
                f"rank {rank} of {size} has left, but rank {listed} did not within {timeout:g} s",
                rank,
                tuple(absent),
                states if asking is not None else [None] * size,
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    return all(value == _LEFT for value in store.multi_get(keys))


def _look_for_waiting(
    own: RankState | None, others: Sequence[RankState], states: list[RankState | None]
) -> None:
    if own is None:
        return
    unlike = unlike_sizes([state for state in states if state is not None])
    if unlike:
        raise LateRankError(
            f"rank {own.rank} of {len(states)} leaves, but {unlike}. Fix: bring tensors of one size",
            own.rank,
            (own.rank,),
            states,
        )
    for state in others:
        beyond = state.sequence is not None and state.sequence > own.groups.get(state.group, 0)
        if state.waits and beyond and own.rank in (state.members or (own.rank,)):
            raise LateRankError(
                f"rank {own.rank} of {len(states)} has left after {own.what()}, but rank {state.rank} waits "
                f"in {state.what()}, at {state.where()}. Fix: every rank must make the same collective calls",
                own.rank,
                (own.rank,),
                states,
            )


def _look_for_message(
    own: RankState | None,
    here: Sequence[RankState],
    states: list[RankState | None],
    before: RankState | None,
) -> RankState | None:
    """The last rank that has not left, if it is in ``send`` or ``recv``: nobody can answer it any more.

    Asked twice, as what was sent may still be on its way. These have no number, so the stack must do.
    """
    last = here[0] if len(here) == 1 and here[0].operation in UNRECORDED and here[0].waits else None
    if own is None or last is None or before is None or last.stack != before.stack:
        return last
    raise LateRankError(
        f"rank {own.rank} of {len(states)} has left after {own.what()}, as all others, but rank {last.rank} "
        f"waits in {last.what()}, at {last.where()}. Fix: every send needs its recv on the other rank",
        own.rank,
        (own.rank,),
        states,
    )
