"""The folder of a run's checkpoints: names, which one is newest, what is kept, one job at a time (lesson 13).

::

    checkpoints/
        .lock                                   who writes here; the system frees it when the writer dies
        save-000012-step-0000006000/            complete: it took this name after all its bytes reached the
        disk
            state.json                          what is not a tensor, and size and checksum of every file
            tensors.safetensors                 model, optimizer, generators ... of replicated training
            sharded/                            only with sharded tensors: one file per rank
        .save-000013-step-0000006500.writing/   a save that goes on, or did when its job was killed

Saves are numbered, so the newest is the last one made, also after a run went back to an earlier step.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.train.checkpoint_files import disk_error, read_description, sync, write_description

__all__ = ["CheckpointInfo", "Store"]

DESCRIPTION, TENSORS, SHARDED = "state.json", "tensors.safetensors", "sharded"
_NAME = re.compile(r"save-(\d{6,})-step-(\d{10,})")
_LEFT = re.compile(r"\.(save-\d{6,}-step-\d{10,})\.(writing|removing)")
# A predecessor that was killed a moment ago still holds the lock until it is gone.
_LOCK_PATIENCE = 5.0

_held: set[Path] = set()


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint."""

    path: Path
    number: int
    """Saves in this folder up to this one."""
    step: int
    samples: int
    """Samples over all ranks that the run had seen."""
    reason: str
    world_size: int
    """Number of ranks that saved it."""
    saved_at: str
    """UTC."""
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path.name} ({self.reason})"


class Store:
    """What one process does with the folder; only rank 0 of a run makes one and so holds the lock.

    Args:
        folder: made if needed.
        keep: how many complete checkpoints stay.

    Raises:
        UserError: the folder cannot be written, or another job writes to it.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder.resolve(), keep
        with clear_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = _take_lock(self.folder)
        self.unfinished = self._clean()

    def begin(self, step: int) -> tuple[str, str]:
        """Make the folder of the next save; returns its final name and the name that it has until then."""
        number = 1 + max((int(m[1]) for p in self.folder.iterdir() if (m := _NAME.search(p.name))), default=0)
        name = f"save-{number:06d}-step-{step:010d}"
        beside = self.folder / f".{name}.writing"
        beside.mkdir()
        return name, beside.name

    def commit(self, name: str, beside: Path, description: dict[str, Any]) -> Path:
        """Write the description and give the save its name: from here on it counts."""
        write_description(beside / DESCRIPTION, description)
        for path in (beside / SHARDED, beside):
            if path.is_dir():
                sync(path)
        final = self.folder / name
        os.rename(beside, final)
        sync(self.folder)
        return final

    def discard(self, beside: Path) -> None:
        """Remove a save that failed."""
        shutil.rmtree(beside, ignore_errors=True)

    def prune(self) -> None:
        """Remove complete checkpoints beyond the newest ``keep``; damaged ones do not count and stay."""
        complete = [path for path in candidates(self.folder) if _looks_complete(path)]
        for path in complete[self.keep :]:
            doomed = self.folder / f".{path.name}.removing"
            os.rename(path, doomed)  # a reader finds all of it or nothing
            shutil.rmtree(doomed, ignore_errors=True)

    def close(self) -> None:
        """Free the lock."""
        if self._lock is not None:
            _held.discard(self.folder)
            os.close(self._lock)
            self._lock = None

    def _clean(self) -> list[str]:
        """Remove what killed jobs left; a line for each save that was never finished."""
        lines = []
        for path in sorted(self.folder.iterdir()):
            found = _LEFT.fullmatch(path.name)
            if found is None:
                continue
            if found[2] == "writing":
                lines.append(f"{found[1]} was never finished (its job ended while writing); removed")
            shutil.rmtree(path, ignore_errors=True)
        return lines


def candidates(folder: Path) -> list[Path]:
    """Folders under a final name, newest first."""
    try:
        found = [(int(m[1]), path) for path in folder.iterdir() if (m := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def newest_complete(folder: Path) -> CheckpointInfo | None:
    """The newest checkpoint whose files have the sizes that were saved; None when there is none.

    For words about a run that has ended: the checksums are compared when it is loaded.
    """
    return next((describe(path)[0] for path in candidates(folder) if _looks_complete(path)), None)


def describe(path: Path) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Read ``state.json`` of one checkpoint.

    Raises:
        UserError: it is missing or damaged.
    """
    content = read_description(path / DESCRIPTION)
    found = _NAME.fullmatch(path.name)
    try:
        info = CheckpointInfo(
            path=path,
            number=int(found[1]) if found else 0,
            step=int(content["step"]),
            samples=int(content["samples"]),
            reason=str(content["reason"]),
            world_size=int(content["world_size"]),
            saved_at=str(content["saved_at"]),
            parts=tuple(content["parts"]),
        )
        sizes = [int(file["bytes"]) + int(file["crc32"]) for file in content["files"].values()]
        if not all(isinstance(part, dict) for part in (content["parts"], *content["ranks"])):
            raise TypeError("parts")
        if not all(isinstance(name, str) for name in content["sharded"]):
            raise TypeError("sharded")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UserError(f"{DESCRIPTION} does not describe a checkpoint") from None
    del sizes
    return info, content


def _looks_complete(path: Path) -> bool:
    try:
        _, content = describe(path)
        return all((path / name).stat().st_size == file["bytes"] for name, file in content["files"].items())
    except (UserError, OSError):
        return False


@contextmanager
def clear_errors(folder: Path) -> Iterator[None]:
    """Errors of the disk inside the block become one line for the user."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line = disk_error(error, folder)
        if line is None:
            raise
        raise UserError(line) from error


def _take_lock(folder: Path) -> int:
    """Lock the folder for this process.

    A POSIX record lock belongs to the process: a loader worker forked from rank 0 that outlives it does not
    keep it, as it would keep ``flock``. Record locks do not hold between threads of one process, hence
    ``_held``.
    """
    if folder in _held:
        raise UserError(
            f"checkpoint folder {str(folder)!r}: this process writes to it already; close() that Checkpointer"
        )
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                owner = _owner(handle)
                os.close(handle)
                raise UserError(
                    f"checkpoint folder {str(folder)!r}: another job ({owner}) writes to it; give each job a "
                    "folder of its own, or wait for the other to end"
                ) from None
            time.sleep(0.1)
    me = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(handle, 0)
    with suppress(OSError):  # the words are for the next job's message only
        os.pwrite(handle, json.dumps(me).encode(), 0)
    _held.add(folder)
    return handle


def _owner(handle: int) -> str:
    try:
        me = json.loads(os.pread(handle, 4096, 0))
        return f"process {me['pid']} on {me['host']} since {me['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
