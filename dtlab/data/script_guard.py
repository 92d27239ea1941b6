"""What keeps loader workers from starting, found before they start (lesson 11): a script, no shared locks.

A worker that is spawned, or started by a fork server, imports the script that is running as its main module.
Without ``if __name__ == "__main__":`` it does everything again, and torch then fails in a worker's own words.
Workers also share locks, which on Linux lie in /dev/shm.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
from pathlib import Path
from types import FrameType, ModuleType

from dtlab.errors import UserError

__all__ = ["refuse_unguarded_script", "refuse_without_locks"]


def refuse_without_locks(num_workers: int) -> None:
    """Do nothing where processes can share a lock, as loader workers do.

    Raises:
        UserError: the system gives none: on Linux, when /dev/shm cannot be written.
    """
    if not num_workers:
        return
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        where = "/dev/shm, which must be writable" if sys.platform == "linux" else "the system's semaphores"
        raise UserError(
            f"num_workers = {num_workers}: workers share locks through {where} ({error.strerror}). "
            "Fix: mount a tmpfs there, or use num_workers = 0"
        ) from None


def refuse_unguarded_script(num_workers: int, method: str) -> None:
    """Do nothing where workers can be started from here.

    Raises:
        UserError: each worker would run the running script again, or cannot read it.
    """
    if not num_workers or method == "fork":
        return
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    name = getattr(getattr(main, "__spec__", None), "name", "")
    if main is None or file is None or name.endswith("__main__"):
        return  # a notebook; `python -m package`, which is not run again
    workers = f"num_workers = {num_workers}: each worker, started by {method},"
    if not os.path.isfile(file):
        raise UserError(
            f"{workers} reads the script, and {file} is no file. Fix: write it to one, or use num_workers = 0"
        )
    line = _unguarded_line(main, file)
    if line is not None:
        raise UserError(
            f"{workers} would run {os.path.basename(file)} again, as line {line} is not guarded. Fix: put it "
            'under `if __name__ == "__main__":`, or use num_workers = 0'
        )


def _unguarded_line(main: ModuleType, file: str) -> int | None:
    """Line of the running script that started what runs now, if a worker would run it too."""
    frame: FrameType | None = sys._getframe()
    line = None
    while frame is not None:
        if frame.f_globals is main.__dict__ and frame.f_code.co_name == "<module>":
            line = frame.f_lineno
        frame = frame.f_back
    if line is None:
        return None
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    return None if any(_guards(node, line) for node in ast.walk(tree)) else line


def _guards(node: ast.AST, line: int) -> bool:
    """Whether ``node`` is an ``if`` about ``__name__`` around this line."""
    if not isinstance(node, ast.If) or not node.lineno <= line <= (node.end_lineno or node.lineno):
        return False
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
