"""A signal to a rank's whole process group must not end its loader workers (lessons 11 and 12).

torchrun's agent sends SIGTERM and Ctrl-C to the group of each rank. The rank finishes its step and saves;
its workers, and the server that forks them, would be dead by then, and the rank would fail instead. So both
signals stay blocked in them, and a worker ends on SIGTERM only when its own rank sent it. SIGKILL ends them
as ever, and so does the end of the rank.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# macOS cannot tell who sent a signal; there workers take signals as before.
_CAN_TELL = hasattr(signal, "sigwaitinfo") and hasattr(signal, "pthread_sigmask")


@contextmanager
def signals_held(method: str) -> Iterator[None]:
    """Block SIGTERM and SIGINT in this thread: what starts inside begins so. They arrive at the end.

    ``method`` is how processes are started: "fork", "forkserver" or "spawn".
    """
    if not _CAN_TELL:
        yield
        return
    if method != "fork":
        # Python's own helper unblocks both signals when it starts, so it must run before.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EndedByRankOnly:
    """``worker_init_fn`` of the workers of this process; calls ``inner`` too."""

    def __init__(self, inner: Callable[[int], Any] | None = None) -> None:
        self.rank, self.inner = os.getpid(), inner

    def __call__(self, worker: int) -> None:
        if _CAN_TELL:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            threading.Thread(target=self._wait, name="dtlab-signals", daemon=True).start()
        if self.inner is not None:
            self.inner(worker)

    def _wait(self) -> None:
        while True:
            found = signal.sigwaitinfo(_SIGNALS)
            if found.si_signo == signal.SIGTERM and found.si_pid == self.rank:
                os._exit(0)
