"""What ranks started in sessions of their own, found and ended when their launcher is gone (lesson 02).

A rank's process group ends with the rank. A child that made a session of its own (``start_new_session=True``,
a daemon) is in another group, and when the launcher is killed with -9 nobody is left who knows it.

- The fork server adopts orphans (Linux: child subreaper), so it finds all that ranks started and ends it.
- For ranks that are direct children of the launcher (spawn, fork) a small guard process waits for the
  launcher's end, then ends every process of this user that carries the launcher's mark in its environment.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import Any

__all__ = ["MARK", "adopt_orphans", "end_descendants", "guard", "mark"]

MARK = "DTLAB_LAUNCHER"
_PR_SET_CHILD_SUBREAPER = 36
_SECONDS = 5.0  # until whoever still starts new processes is left alone

_mark = ""
_mark_owner = 0
_guard: subprocess.Popen[bytes] | None = None
_guarded = ""


def mark() -> str:
    """The name of this process in the environment of all that it launches; a forked copy has its own."""
    global _mark, _mark_owner
    if _mark_owner != os.getpid():
        _mark, _mark_owner = uuid.uuid4().hex, os.getpid()
    return _mark


def adopt_orphans() -> bool:
    """Make this process the parent of orphans below it; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(Exception):
        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    return False


def end_descendants() -> None:
    """Kill everything below this process, and what that started meanwhile."""
    import psutil

    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        below = [child for child in psutil.Process().children(recursive=True) if _lives(child)]
        if not below:
            return
        _kill(below)
        time.sleep(0.01)


def end_marked(name: str) -> None:
    """Kill this user's processes whose environment holds the mark ``name``."""
    import psutil

    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == name and _lives(process):
                    marked.append(process)
        if not marked:
            return
        _kill(marked)
        time.sleep(0.01)


def _lives(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _kill(processes: list[Any]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def guard() -> int | None:
    """Start the guard of this process, once; returns the descriptor that keeps it waiting when it is new."""
    global _guard, _guarded
    name = mark()
    if _guard is not None and _guarded == name and _guard.poll() is None:
        return None
    far, near = os.pipe()
    code = f"import sys; sys.path[:] = {sys.path!r}; from dtlab.ranks.strays import main; main()"
    environ = {key: value for key, value in os.environ.items() if key != MARK}
    try:
        _guard = subprocess.Popen(
            [sys.executable, "-c", code, str(far), name],
            env=environ,
            pass_fds=[far],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(far)
    _guarded = name
    return near


def main() -> None:
    """Entry of the guard: ``python -c ... DESCRIPTOR MARK``."""
    for number in (signal.SIGINT, signal.SIGTERM):  # it outlives the launcher, also where all are signalled
        signal.signal(number, signal.SIG_IGN)
    import psutil  # noqa: F401  now, so that the end needs no time

    os.read(int(sys.argv[1]), 1)  # returns when the launcher's end is closed
    end_marked(sys.argv[2])


@atexit.register
def _let_go() -> None:
    """The guard outlives this process on purpose, which Popen would warn about."""
    if _guard is not None:
        _guard.returncode = 0
