"""What each rank reports at its end, and the error that launch raises (lessons 02 and 12).

- ``describe_exception`` runs in a rank: the exception as plain data.
- ``RankReport`` is one rank's end as the launcher saw it.
- ``RankError`` is what ``launch`` raises; ``verdict.py`` decides whom it names.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.ranks import crash
from dtlab.ranks.late import LateRankError, from_torch
from dtlab.ranks.rank_state import UNRECORDED, Frame, RankState, operation_in

_MOST_TEXT = 20_000
_MOST_FRAMES = 60
_THIS_PACKAGE = os.path.dirname(os.path.abspath(__file__))

# What gloo, NCCL and the store say to a rank whose peer is gone or does not come.
_LOST_PEER = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused)|broken pipe|timed out waiting \d+ ?ms|socket timeout"
    r"|wait timeout|caused pair closure|remote process exited|ncclRemoteError|communicator was aborted"
    r"|collective operation timeout|failed to pass monitoredBarrier|waiting for (send/recv|key)",
    re.IGNORECASE,
)
_SOURCE_FILE = re.compile(r"\[\S+\.(cc|cpp|h|hpp):\d+\] ?")
_ADDRESS = re.compile(r" ?\[\S+\]:\d+")
# Running it again would fail again: the program is wrong, not the machine.
_NOT_WORTH_A_RESTART = {"ImportError", "SyntaxError", "UserError"}


@dataclass(frozen=True)
class RankReport:
    """How one rank ended.

    Attributes:
        rank: the rank.
        outcome: ``returned``, ``raised``, ``exited`` (without an exception), ``killed`` (by a signal that the
            launcher did not send), ``stopped`` (by the launcher, while it still ran), ``starting`` (the same,
            before the function ran).
        exception_type, message: of the exception, for ``raised``.
        lost_peer: the exception only says that another rank went away or did not come.
        start_up: it failed before the function ran, or in a way that a restart cannot mend.
        frames: stack of the exception, innermost last.
        traceback: the whole text of it, causes included.
        exit_code: of the process; negative for a signal.
        time: monotonic seconds of the machine when it failed.
        last_output: end of its output, for a rank that died without a word.
        state: last operation; for survivors as they answered, for lost peers at their exception.
    """

    rank: int
    outcome: str
    exception_type: str = ""
    message: str = ""
    lost_peer: bool = False
    start_up: bool = False
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    exit_code: int | None = None
    time: float = 0.0
    last_output: tuple[str, ...] = ()
    state: RankState | None = None

    @property
    def failed(self) -> bool:
        return self.outcome in ("raised", "exited", "killed")

    def headline(self, world_size: int) -> str:
        """``rank 1 of 2 failed: ValueError: bad lr``."""
        return f"rank {self.rank} of {world_size} {self.how()}"

    def how(self) -> str:
        """The end without the rank: ``was killed by SIGKILL``."""
        if self.outcome == "killed":
            why = crash.unlike_sizes(self.last_output)
            return f"was killed by {signal_name(-(self.exit_code or 0))}{f': {why}' if why else ''}"
        if self.outcome == "exited":
            early = "" if self.exit_code else " before its function returned"
            said = f": {_shortened(self.message.splitlines()[0])}" if self.message.strip() else ""
            return f"exited with code {self.exit_code}{early}{said}"
        return f"failed: {self.exception()}"

    def exception(self) -> str:
        """``ValueError: bad lr``, without the C++ stack that torch adds."""
        text = self.message.split("\nException raised from")[0].strip()
        return f"{self.exception_type}: {text}" if text else self.exception_type

    def complaint(self) -> str:
        """What a rank that lost a peer was told: the first sentence, without source file and address."""
        text = self.message.split("\nException raised from")[0].strip() or self.exception_type
        if self.exception_type == LateRankError.__name__:
            text = text.split(": ")[0]
        text = _ADDRESS.sub("", _SOURCE_FILE.sub("", text)).splitlines()[0]
        return _shortened(text.split(". ")[0].rstrip(".").strip())

    def in_short(self) -> str:
        """One line about a rank that is not the one to blame."""
        who = f"rank {self.rank}"
        if self.outcome == "returned":
            return f"{who} had returned"
        if self.outcome == "starting":
            return f"{who} had not started yet"
        if self.outcome in ("killed", "exited"):
            return f"{who} {self.how()}"
        if self.outcome == "raised":
            if self.lost_peer:
                where = f" in {self.state.what()}" if self.state and self.state.operation else ""
                return f"{who} lost its peer{where} ({self.complaint()})"
            return f"{who} failed too: {_shortened(self.exception().splitlines()[0])}"
        return f"{who} was stopped{doing(self.state).replace(' waits in', ' while it waited in', 1)}"


class RankError(RuntimeError):
    """A launched function failed on a rank, or did not end in time.

    Attributes:
        rank: the rank to blame.
        world_size: number of ranks.
        exception_type: name of its exception's type; ``""`` when there was none, ``"TimeoutError"`` for a
        timeout. message: text of its exception, or the first line.
        cell_lines: the user's source lines around the place of the error, the line itself marked with
        ``-->``. reports: one :class:`RankReport` per rank, in rank order.
        late: ranks that the others waited for.

    Example:
        >>> try:                                             # doctest: +SKIP
        ...     launch(train, 2)
        ... except RankError as error:
        ...     print(error.rank, error.exception_type)
    """

    def __init__(
        self,
        text: str,
        *,
        rank: int,
        world_size: int,
        exception_type: str = "",
        message: str = "",
        cell_lines: Sequence[str] = (),
        reports: Sequence[RankReport] = (),
        late: Sequence[int] = (),
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.world_size = world_size
        self.exception_type = exception_type
        self.message = message
        self.cell_lines = list(cell_lines)
        self.reports = list(reports)
        self.late = tuple(late)

    def __reduce__(self) -> Any:
        return _rebuilt, (str(self), {k: v for k, v in vars(self).items() if not k.startswith("__")})

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone; the launcher's own frames help nobody."""
        return [
            f"{type(self).__name__}: {line}" if i == 0 else line
            for i, line in enumerate(str(self).split("\n"))
        ]


class RankStarterError(RuntimeError):
    """The process that starts the ranks ended, and they with it; none of them is to blame."""


def _rebuilt(text: str, values: dict[str, Any]) -> RankError:
    error = RankError(text, rank=values["rank"], world_size=values["world_size"])
    vars(error).update(values)
    return error


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def lost_peer(type_names: Sequence[str], message: str, innermost: str = "") -> bool:
    """Whether an exception only says that a peer is gone or late.

    Args:
        type_names: names of its class and the classes above it. torch raises such errors as RuntimeError; an
            error of the user's own network code is a failure of its own.
        message: its text.
        innermost: the file in which it was raised.
    """
    return _LOST_PEER.search(message) is not None and from_torch(type_names, message, innermost)


def describe_exception(error: BaseException, *, start_up: bool = False) -> dict[str, Any]:
    """An exception of this rank as plain data for :func:`report_of`."""
    when = time.monotonic()
    names = [cls.__name__ for cls in type(error).__mro__]
    try:
        message = str(error)[:_MOST_TEXT]
    except Exception:
        message = "(its text cannot be shown)"
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        message = ""  # a number, which the exit code tells; sys.exit("text") is the reason
    stack = [
        f for f in traceback.extract_tb(error.__traceback__) if os.path.dirname(f.filename) != _THIS_PACKAGE
    ]
    if isinstance(error, SyntaxError) and error.filename:
        stack.append(traceback.FrameSummary(error.filename, error.lineno or 0, "<module>", lookup_line=True))
    if len(stack) > _MOST_FRAMES:
        stack = stack[:10] + stack[10 - _MOST_FRAMES :]
    frames = [Frame(f.filename, f.lineno or 0, f.name, (f.line or "").strip()) for f in stack]
    lost = lost_peer(names, message, frames[-1].file if frames else "")
    if isinstance(error, LateRankError):  # a rank that is late itself, or left too early, is the one to blame
        lost = error.rank not in error.late
    return {
        "outcome": "exited" if isinstance(error, SystemExit) else "raised",
        "exception_type": names[0],
        "message": message,
        "lost_peer": lost,
        "start_up": start_up or bool(_NOT_WORTH_A_RESTART.intersection(names)),
        "frames": [dataclasses.asdict(frame) for frame in frames],
        "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        "time": when,
        "state": _told_state(error) or (_state_at(frames) if lost else None),
    }


def _told_state(error: BaseException) -> str | None:
    """The state that a ``LateRankError`` took down of the rank that raises it."""
    if not isinstance(error, LateRankError) or error.rank >= len(error.states):
        return None
    own = error.states[error.rank]
    return own.to_json() if own is not None else None


def _state_at(frames: list[Frame]) -> str | None:
    """The operation that just failed in this rank, with the exception's stack."""
    from dtlab.ranks.rank_state import capture

    try:
        state = capture(int(os.environ["RANK"]))
    except Exception:
        return None
    inside_now = operation_in(frames)
    if inside_now in UNRECORDED:
        state = dataclasses.replace(state, operation=inside_now, sequence=None)
    operation = state.operation
    if operation is None:
        inside = [f.function for f in frames if "/torch/distributed/" in f.file.replace(os.sep, "/")]
        operation = next((name for name in inside if name != "wrapper"), None)
    return dataclasses.replace(state, stack=tuple(frames), operation=operation, completed=False).to_json()


def report_of(rank: int, raw: dict[str, Any], exit_code: int | None) -> RankReport:
    """The report that a rank sent, as the launcher keeps it."""
    values = dict(raw)
    values["frames"] = tuple(Frame(**frame) for frame in values["frames"])
    values["state"] = RankState.from_json(values["state"]) if values["state"] else None
    return RankReport(rank=rank, exit_code=exit_code, **values)


def doing(state: RankState | None) -> str:
    """`` in all_reduce #4, at train.py:12 ...``; empty when nothing is known."""
    if state is None:
        return ""
    where = f", at {state.where()}" if state.where() else ""
    if state.waits:
        return f" waits in {state.what()}{where}"
    if state.operation is None:
        return where.replace(",", "", 1)
    return f" after {state.what()}{where}"


def _shortened(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
