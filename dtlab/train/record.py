"""The run record: one JSON object a line, written as the run goes, so that a killed run leaves its story.

The first line says what was run (configuration, seed, commit, data version, environment), the lines
after it what happened, the last one how it ended. Only rank 0 writes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from dtlab.errors import DtlabWarning, UserError
from dtlab.files import appears_whole

RECORD = "record.jsonl"


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """``{"commit": str | None, "dirty": bool | None}`` of the working tree; None outside a repository."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    status = git("status", "--porcelain") if commit else None
    return {"commit": commit, "dirty": bool(status) if status is not None else None}


def environment() -> dict[str, Any]:
    """Versions and machine, without names of hosts or users.

    ``memory_bytes`` is that of this rank's card, else of the host (or its container), which its ranks share.
    """
    import torch

    from dtlab.ranks.host_memory import total_bytes

    on_card = torch.cuda.is_available() and torch.cuda.is_initialized()
    card = torch.cuda.get_device_properties(torch.cuda.current_device()) if on_card else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "card": None if card is None else card.name,
        "memory_bytes": total_bytes() if card is None else card.total_memory,
    }


def new_run_folder(output: Path) -> Path:
    """Make ``output/<time>-<number>``; two runs that start together get two folders.

    Raises:
        UserError: the folder cannot be made.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            folder = output / f"{stamp}-{number}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(
            f"run.output = {str(output)!r}: {error.strerror}; name a folder that can be written"
        ) from None
    raise UserError(f"run.output = {str(output)!r}: too many runs in one second; name another folder")


class Record:
    """Appends events to ``folder/record.jsonl``; without a folder it keeps quiet. ``also`` gets each, too.

    >>> record = Record(None)
    >>> record.write("epoch", epoch=1, auc=0.73)
    """

    def __init__(self, folder: Path | None, also: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.folder, self._also = folder, also
        self._start = time.monotonic()
        self._has_warned = False
        self._file = None if folder is None else _opened(folder / RECORD)

    def write(self, event: str, **values: Any) -> None:
        if self._file is None:
            return
        line = _finite({"event": event, "seconds": round(time.monotonic() - self._start, 3), **values})
        if self._also is not None:
            self._also(line)
        try:
            self._file.write(json.dumps(line, default=str) + "\n")
            self._file.flush()  # what a full disk did not take is kept, and tried again with the next event
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._warn(error)
            self._file = None

    def _warn(self, error: OSError) -> None:
        """A record that cannot be written must not end the training that it is about."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"run record {str(self.folder)!r}: {error.strerror or error}; training goes on, events may "
                "be missing: free space",
                DtlabWarning,
                stacklevel=3,
            )


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append one event to a record whose own process has ended; a torn last line is cut off first."""
    with _opened(path) as file:
        file.write(json.dumps(_finite(values), default=str) + "\n")


def _opened(path: Path) -> TextIO:
    try:
        _drop_torn_line(path)
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"run record {str(path)!r}: {error.strerror or error}; give run.folder or run.output a place "
            "that can be written"
        ) from None


def _drop_torn_line(path: Path) -> None:
    """Cut what follows the last line end: a killed run was writing it, and it would spoil the next line."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _finite(value: Any) -> Any:
    """``value`` with None for nan and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, values: dict[str, Any], field: str = "report") -> None:
    """Write ``values`` to ``path`` whole or not at all; a figure that is not finite becomes null.

    Raises:
        UserError: the place cannot be written.
    """
    with appears_whole(path, field) as beside:
        beside.write_text(json.dumps(_finite(values), indent=2, default=str) + "\n", encoding="utf-8")
