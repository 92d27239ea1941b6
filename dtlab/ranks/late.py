"""Turning a collective's error into one that says which rank was late and in which operation (lesson 12).

The texts of gloo and NCCL name neither. When a collective fails, the rank that noticed asks all the others
through the recorder and raises ``LateRankError`` with the answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dtlab.ranks import recorder
from dtlab.ranks.explain import explain
from dtlab.ranks.rank_state import UNRECORDED, Frame, RankState, capture, operation_in

_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|likely closed)|broken pipe|socket closed|remote process exited",
    re.IGNORECASE,
)
# Marks that gloo, NCCL and the store put into their texts; much of it comes as a plain RuntimeError.
_SPOKEN_BY_TORCH = re.compile(
    r"\[\S+\.(cc|cpp|h|hpp):\d+\]|\[enforce fail at |\[c10d\]|\[PG ID |TCPStore"
    r"|ProcessGroup(Gloo|NCCL|MPI|UCC)|\bNCCL\b|\bnccl[A-Z]|\bmonitoredBarrier\b"
)
_TORCH_ERRORS = {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}


class LateRankError(RuntimeError):
    """A collective could not end because other ranks did not come to it.

    Attributes:
        rank: the rank that gave up.
        late: the ranks that it waited for; empty when that could not be told.
        states: what each rank was doing; None for one that did not answer.
    """

    def __init__(
        self, message: str, rank: int, late: tuple[int, ...], states: list[RankState | None]
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.late = late
        self.states = states

    def __reduce__(self) -> Any:
        return (type(self), (str(self), self.rank, self.late, self.states))


def from_torch(type_names: Sequence[str], message: str, innermost: str = "") -> bool:
    """Whether an error is torch.distributed's own, and not one of the user's code that reads like it.

    Args:
        type_names: names of its class and the classes above it.
        message: its text.
        innermost: the file in which it was raised.
    """
    if "RuntimeError" not in type_names:
        return False
    return (
        not _TORCH_ERRORS.isdisjoint(type_names)
        or _SPOKEN_BY_TORCH.search(message) is not None
        or "/torch/distributed/" in innermost.replace(os.sep, "/")
    )


def _says(error: BaseException, words: re.Pattern[str]) -> bool:
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    names = [cls.__name__ for cls in type(error).__mro__]
    return bool(words.search(message)) and from_torch(names, message, frames[-1].filename if frames else "")


def timed_out(error: BaseException) -> bool:
    """Whether an error is a collective that ran out of time."""
    return _says(error, _TIMED_OUT)


def lost_peer(error: BaseException) -> bool:
    """Whether an error says that the other end of a connection went away."""
    return _says(error, _LOST_PEER)


def explained(error: BaseException, asking: recorder.Recorder) -> LateRankError | None:
    """Ask every rank and describe a failed collective; None when the error is not about one."""
    if isinstance(error, LateRankError) or not (timed_out(error) or lost_peer(error)):
        return None
    own = _as_it_failed(capture(asking.rank), error)
    states = asking.ask()
    states[asking.rank] = own
    story = explain(states)
    verb = "ran out of time" if timed_out(error) else "lost a peer"
    message = f"rank {asking.rank} of {asking.world_size} {verb} in {own.what()}: {story}"
    return LateRankError(message, asking.rank, story.late, states)


def _as_it_failed(own: RankState, error: BaseException) -> RankState:
    """This rank's state as it was when the collective failed: by now it is elsewhere."""
    frames = tuple(
        Frame(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
    )
    inside = operation_in(frames)
    if own.operation is None or inside in UNRECORDED:
        # Not in torch's record: the stack knows the name
        own = replace(own, operation=inside or "a collective", sequence=None)
    return replace(own, completed=False, stack=frames or own.stack)


def is_about_a_closed_connection(message: str) -> bool:
    """Whether an error that only lost a peer says that the peer closed its end, not that it was late."""
    return _LOST_PEER.search(message) is not None


@contextlib.contextmanager
def naming_late_ranks() -> Iterator[None]:
    """Errors of collectives inside this block name the late rank, if a recorder runs in this process."""
    try:
        yield
    except RuntimeError as error:
        asking = recorder.current()
        told = explained(error, asking) if asking is not None else None
        if told is None:
            raise
        raise told from error
