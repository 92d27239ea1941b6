"""The state of one rank, and how it is read in a process (lesson 12).

``capture(rank)`` reads the running process: torch's flight recorder (which also works on gloo) and the Python
stack of the main thread. Without a flight recorder the stack alone still tells waiting from working. What the
states of all ranks say together is ``explain.py``.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_GROUP = "0"

# Frames of these places are how a rank got where it is, not what its author wrote.
_PLUMBING = (
    "/torch/",
    "/dtlab/ranks/",
    "/threading.py",
    "/contextlib.py",
    "/runpy.py",
    "/multiprocessing/",
    "<frozen ",
)
# Where torch's own collective functions live; other files below torch/distributed may merely be on the way.
_OPERATIONS = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/_functional_collectives.py")
_NOT_AN_OPERATION = {"wrapper", "wait"}
# The flight recorder does not see these on gloo: only the stack tells that a rank is in one.
UNRECORDED = ("send", "recv", "isend", "irecv", "monitored_barrier")


@dataclass(frozen=True)
class Frame:
    """One level of a Python stack."""

    file: str
    line: int
    function: str
    source: str = ""


@dataclass(frozen=True)
class RankState:
    """What one rank was doing when it was asked.

    Attributes:
        rank: who answered.
        operation: the operation that it waits in, else the last one that it started (``all_reduce``); None
            when there was none.
        sequence: number of that collective on its group; None for send and recv, or without a flight
            recorder.
        completed: whether the operation is over; None when not known.
        group: process group of the operation, ``"0"`` is the default group.
        members: ranks of that group; empty when not known.
        groups: for each group the number of the last collective started.
        sizes: input sizes of the operation.
        stack: Python stack of the main thread, innermost frame last.
        seconds: how long ago the operation started; None when not known.
    """

    rank: int
    operation: str | None = None
    sequence: int | None = None
    completed: bool | None = None
    group: str = DEFAULT_GROUP
    members: tuple[int, ...] = ()
    groups: dict[str, int] = field(default_factory=dict)
    sizes: tuple[tuple[int, ...], ...] = ()
    stack: tuple[Frame, ...] = ()
    seconds: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the rank is inside an operation that has not ended."""
        return self.operation is not None and self.completed is False

    def what(self) -> str:
        """The operation in words: ``all_reduce #4``."""
        if self.operation is None:
            return "no collective yet"
        number = "" if self.sequence is None else f" #{self.sequence}"
        group = "" if self.group == DEFAULT_GROUP else f" of group {self.group}"
        return f"{self.operation}{number}{group}"

    def where(self) -> str:
        """Where the user's code stands: ``train.py:12 in step: loss.backward()``; empty when not known."""
        frame = own_frame(self.stack)
        if frame is None:
            return ""
        place = f"{short_file(frame.file)}:{frame.line} in {frame.function}"
        return f"{place}: {frame.source}" if frame.source else place

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankState:
        raw = json.loads(text)
        raw["stack"] = tuple(Frame(**frame) for frame in raw["stack"])
        raw["sizes"] = tuple(tuple(size) for size in raw["sizes"])
        raw["members"] = tuple(raw["members"])
        return cls(**raw)


def short_file(file: str) -> str:
    """A short name: the execution count for a notebook cell, whose own file name means nothing."""
    shell_module = sys.modules.get("IPython")
    shell = shell_module.get_ipython() if shell_module is not None else None
    if shell is not None:
        try:
            kind, label = shell.compile.format_code_name(file)
            return f"{kind} {label}" if kind == "Cell" else Path(file).name
        except Exception:
            pass
    return Path(file).name


def own_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame that belongs to the user rather than to torch or dtlab."""
    for frame in reversed(stack):
        if not any(part in frame.file.replace(os.sep, "/") for part in _PLUMBING):
            return frame
    return stack[-1] if stack else None


def capture(rank: int) -> RankState:
    """The state of this process; called from another thread than the main one."""
    stack = main_stack()
    waiting_in = operation_in(stack)
    entries = _flight_entries()
    groups: dict[str, int] = {}
    for one in entries:
        if not one.get("is_p2p"):
            name = _group_of(one)
            groups[name] = max(groups.get(name, 0), int(one["collective_seq_id"]))
    open_entries = [entry for entry in entries if not entry.get("retired", True)]
    # The oldest unfinished one is what the rank is held up by; without one, the last that it finished.
    entry: dict[str, Any] | None = open_entries[0] if open_entries else (entries[-1] if entries else None)
    if entry is None or (waiting_in and not open_entries):
        # Not in the record: send and recv on gloo, or a torch without a flight recorder.
        return RankState(rank, waiting_in, None, False if waiting_in else None, groups=groups, stack=stack)
    name = _group_of(entry)
    started = entry.get("time_created_ns")
    return RankState(
        rank,
        operation=str(entry["profiling_name"]).split(":")[-1],
        sequence=int(entry["collective_seq_id"]),
        completed=not open_entries,
        group=name,
        members=_members(name),
        groups=groups,
        sizes=tuple(tuple(size) for size in entry.get("input_sizes", ())),
        stack=stack,
        seconds=round(time.time() - started / 1e9, 3) if started else None,
    )


def main_stack(limit: int = 40) -> tuple[Frame, ...]:
    """Python stack of the main thread, innermost frame last."""
    top = sys._current_frames().get(threading.main_thread().ident or 0)
    if top is None:
        return ()
    linecache.checkcache()
    summary = traceback.StackSummary.extract(traceback.walk_stack(top), limit=limit)
    return tuple(Frame(f.filename, f.lineno or 0, f.name, f.line or "") for f in reversed(summary))


def operation_in(stack: Sequence[Frame]) -> str | None:
    """Name of the torch.distributed function that the stack stands in, or of the backward pass."""
    for frame in stack:
        file = frame.file.replace(os.sep, "/")
        named = not frame.function.startswith(("_", "<")) and frame.function not in _NOT_AN_OPERATION
        if named and file.endswith(_OPERATIONS):
            return frame.function
    if stack and "/torch/autograd/" in stack[-1].file.replace(os.sep, "/"):
        return "backward"
    return None


def _flight_entries() -> list[dict[str, Any]]:
    """What torch's flight recorder holds, oldest first; empty where this torch has none."""
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

        entries: list[dict[str, Any]] = json.loads(_dump_fr_trace_json()).get("entries", [])
        return entries
    except Exception:
        return []


def _group_of(entry: dict[str, Any]) -> str:
    group = entry.get("process_group") or [DEFAULT_GROUP]
    return str(group[0])


def _members(name: str) -> tuple[int, ...]:
    """Global ranks of a group by its name; empty when this torch does not tell."""
    try:
        from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks

        return tuple(get_process_group_ranks(_resolve_process_group(name)))  # type: ignore[arg-type]
    except Exception:
        return ()
