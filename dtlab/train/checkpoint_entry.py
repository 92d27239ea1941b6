"""Around each step of a save or load all ranks come together, and fail together (lesson 13)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks import agreement, recorder
from dtlab.ranks.late import LateRankError
from dtlab.ranks.rank_state import RankState
from dtlab.train.checkpoint_files import disk_error

__all__ = ["differing", "enter", "enter_all", "own_group", "together"]

T = TypeVar("T")


def own_group(group: dist.ProcessGroup | None, timeout: float) -> dist.ProcessGroup | None:
    """A gloo group with the ranks of ``group`` (default: all), None in a world of one (collective).

    A save in the background may not share a group with training: two threads would pair each other's
    messages.
    """
    if agreement.world_size(group) == 1:
        return None
    ranks = None if group is None else dist.get_process_group_ranks(group)
    made: dist.ProcessGroup = dist.new_group(
        ranks,
        timeout=timedelta(seconds=timeout),
        backend="gloo",
        use_local_synchronization=ranks is not None,
    )
    return made


def enter(group: dist.ProcessGroup | None, what: str, seconds: float) -> None:
    """Wait until every rank is here.

    Raises:
        LateRankError: a rank did not come within ``seconds`` (2 more on ranks that wait for rank 0).
    """
    if group is None:
        return
    rank, size = agreement.rank(group), agreement.world_size(group)
    patience = timedelta(seconds=seconds if rank == 0 else seconds + 2)
    try:
        dist.monitored_barrier(group, timeout=patience, wait_all_ranks=True)
    except RuntimeError as error:
        asking = recorder.current()
        states: list[RankState | None] = asking.ask() if asking is not None else [None] * size
        late = _missing(str(error), rank) or _elsewhere(states, rank)
        who = f"rank {', '.join(map(str, late))}" if late else "another rank"
        doing = "; ".join(
            f"rank {state.rank} is at {state.where()}"
            for state in states
            if state is not None and state.rank in late and state.where()
        )
        # The launcher repeats what stands before the colon.
        raise LateRankError(
            f"all ranks must enter {what}, and {who} did not within {seconds:g} s: call it on every rank, "
            f"outside any `if rank == 0`" + (f" ({doing})" if doing else ""),
            rank,
            late,
            states,
        ) from error


def enter_all(what: str, seconds: float = 10.0) -> None:
    """As :func:`enter`, for all ranks of a gloo world; with another backend nothing is checked."""
    if agreement.world_size() > 1 and dist.get_backend() == "gloo":
        enter(dist.group.WORLD, what, seconds)


def together(group: dist.ProcessGroup | None, folder: Path, action: Callable[[], T]) -> list[T]:
    """What ``action`` returns on each rank, known to all; if it raised on one, all raise (collective).

    Raises:
        UserError: one line with the rank's error.
    """
    cause: BaseException | None = None
    outcome: tuple[str | None, Any]
    try:
        outcome = (None, action())
    except Exception as error:
        cause = error
        line = str(error) if isinstance(error, UserError) else disk_error(error, folder)
        outcome = (line or f"{type(error).__name__}: {error}", None)
    outcomes = agreement.gather(outcome, dst=None, group=group) or []
    failed = {rank: text for rank, (text, _) in enumerate(outcomes) if text is not None}
    if failed:
        rank, text = next(iter(failed.items()))
        # Every rank found the same, or only rank 0 touches the disk: then its number explains nothing.
        alone = len(set(failed.values())) == 1 and (rank == 0 or len(failed) == len(outcomes))
        raise UserError(text if alone else f"rank {rank}: {text}") from cause
    return [value for _, value in outcomes]


def differing(values: list[Mapping[str, Any]]) -> list[str]:
    """The keys under which ranks do not all have the same."""
    keys = {key: None for value in values for key in value}
    return [key for key in keys if any(value.get(key) != values[0].get(key) for value in values)]


def _missing(message: str, rank: int) -> tuple[int, ...]:
    """Rank 0's monitored barrier names who did not come; on the other ranks the text says little."""
    found = re.search(r"[Rr]anks? ([\d, ]+) failed to pass", message)
    named = tuple(int(number) for number in re.findall(r"\d+", found[1])) if found else ()
    return tuple(number for number in named if number != rank)


def _elsewhere(states: list[Any], rank: int) -> tuple[int, ...]:
    """Ranks that are not inside :func:`enter`, as far as they could be asked."""
    return tuple(
        state.rank
        for state in states
        if state is not None
        and state.rank != rank
        and not any(frame.file == __file__ and frame.function == "enter" for frame in state.stack)
    )
