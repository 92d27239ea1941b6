"""The launcher asks its ranks what they are doing, those that hold the interpreter lock too (lesson 12)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dtlab.ranks import crash
from dtlab.ranks.rank_handle import Rank
from dtlab.ranks.rank_state import RankState, operation_in

__all__ = ["ask", "deadlocked", "joining"]

_JOINING = ("init_process_group", "new_group")


def ask(ranks: Sequence[Rank], store: Any, folder: Path, timeout: float, turn: Callable[[], None]) -> None:
    """Put into ``state`` of each rank that still runs its last operation and stack.

    Args:
        ranks: all ranks of the launch.
        store: the launch's store.
        folder: where ranks write their stacks at a signal.
        timeout: seconds for all answers.
        turn: lets the launcher read what the ranks write, for a moment.
    """
    from dtlab.ranks import recorder

    running = [rank for rank in ranks if not rank.gone and rank.started and rank.returned_at is None]
    if not running:
        return
    states = recorder.ask_all(store, len(ranks), timeout, [rank.rank for rank in running])
    for rank, state in zip(ranks, states, strict=True):
        rank.state = state
    silent = [rank for rank in running if rank.state is None]
    for rank in silent:
        if rank.process is not None and rank.process.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(rank.process.pid, signal.SIGUSR2)
    if silent:
        turn()
    for rank in silent:
        frames = crash.read_file(folder / f"rank{rank.rank}.stacks")
        rank.state = RankState(rank.rank, stack=frames) if frames else None


def joining(ranks: Sequence[Rank]) -> set[int]:
    """The ranks that waited in the making of a process group when they were asked."""
    return {
        rank.rank
        for rank in ranks
        if rank.returned_at is None and rank.state is not None and rank.state.operation in _JOINING
    }


def deadlocked(ranks: Sequence[Rank]) -> bool:
    """Whether every rank that still runs stood inside torch's call of a collective when it was asked."""
    states = [rank.state for rank in ranks if not rank.gone and rank.returned_at is None]
    return all(
        state is not None and state.waits and operation_in(state.stack) is not None for state in states
    )
