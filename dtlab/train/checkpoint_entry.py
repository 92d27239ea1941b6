"""Around each step of a save or load all ranks come together, and fail together (lesson 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks import agreement, recorder
from dtlab.ranks.late import LateRankError
from dtlab.ranks.rank_state import RankState
from dtlab.train.checkpoint_files import disk_error

__all__ = ["differing", "enter", "enter_all", "on_rank_0", "own_group", "together"]

T = TypeVar("T")

_TAG = 0x656E74  # "ent": none that a program gives its own messages


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
    missing: list[int] = []
    try:
        _meet(group, rank, size, seconds if rank == 0 else seconds + 2, missing)
    except RuntimeError as error:
        asking = recorder.current()
        states: list[RankState | None] = asking.ask() if asking is not None else [None] * size
        late = tuple(missing) or _elsewhere(states, rank)
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


def on_rank_0(action: Callable[[], T]) -> T:
    """What ``action`` returns on rank 0, which alone calls it, known to all (collective).

    Raises:
        UserError: on every rank, where it raises one, or an OSError, on rank 0: no rank waits in vain.

    >>> on_rank_0(lambda: 7)  # a world of one
    7
    """
    told: tuple[str, Any] = ("", None)
    if agreement.rank() == 0:
        try:
            told = ("", action())
        except (UserError, OSError) as error:
            told = (str(error), None)
    line, value = agreement.broadcast(told)
    if line:
        raise UserError(line)
    return value  # type: ignore[no-any-return]


def differing(values: list[Mapping[str, Any]]) -> list[str]:
    """The keys under which ranks do not all have the same."""
    keys = {key: None for value in values for key in value}
    return [key for key in keys if any(value.get(key) != values[0].get(key) for value in values)]


def _meet(group: dist.ProcessGroup, rank: int, size: int, seconds: float, missing: list[int]) -> None:
    """Every rank tells rank 0 that it is here, and rank 0 answers when all are.

    ``monitored_barrier`` keeps to its timeout on rank 0 alone: on the others it waits for rank 0 as long as
    the group's own timeout lasts.

    Raises:
        RuntimeError: not all came in time; rank 0 adds those to ``missing``.
    """
    deadline = time.monotonic() + seconds
    word = torch.zeros(1, dtype=torch.uint8)

    def done(work: dist.Work | None) -> None:
        assert work is not None  # this rank is in the group
        work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.01)))

    if rank != 0:
        answer = dist.irecv(torch.zeros_like(word), group=group, group_src=0, tag=_TAG)
        done(dist.isend(word, group=group, group_dst=0, tag=_TAG))
        return done(answer)
    words = {
        peer: dist.irecv(torch.zeros_like(word), group=group, group_src=peer, tag=_TAG)
        for peer in range(1, size)
    }
    failed: RuntimeError | None = None
    for peer, work in words.items():
        try:
            done(work)
        except RuntimeError as error:
            missing.append(peer)
            failed = error
    if failed is not None:
        raise failed
    for work in [dist.isend(word, group=group, group_dst=peer, tag=_TAG) for peer in words]:
        done(work)


def _elsewhere(states: list[Any], rank: int) -> tuple[int, ...]:
    """Ranks that are not inside :func:`enter`, as far as they could be asked."""
    return tuple(
        state.rank
        for state in states
        if state is not None
        and state.rank != rank
        and not any(frame.file == __file__ and frame.function == "enter" for frame in state.stack)
    )
