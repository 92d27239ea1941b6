"""SIGTERM and Ctrl-C at the launcher reach the ranks, which get time to save their work (lesson 13).

Without a grace time the launcher ends its ranks at once. With one, the first signal is handed on and the
ranks decide together where to stop; a second Ctrl-C, or the end of the grace time, ends them.

The launcher hands it on as soon as every rank runs its function, which is before the function's first line
has run. So a rank holds it back for a function that says that it listens, until that does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

__all__ = ["StopRequests", "hold_for", "listens_for_stop", "take_held"]

_STOP = (signal.SIGTERM, signal.SIGINT)
_LISTENS = "listens_for_stop"

_held: list[int] = []

F = TypeVar("F", bound=Callable[..., Any])


def listens_for_stop(fn: F) -> F:
    """Mark a function for ranks that takes SIGTERM and SIGINT itself and then asks :func:`take_held`."""
    vars(fn)[_LISTENS] = True
    return fn


def hold_for(fn: Callable[..., Any]) -> None:
    """In a rank, before ``fn`` runs: note both signals for it if it listens for them."""
    if getattr(fn, _LISTENS, False):
        for number in _STOP:
            signal.signal(number, lambda number, _: _held.append(number))


def take_held() -> list[int]:
    """The signals that came before anybody listened, once."""
    taken, _held[:] = _held[:], []
    return taken


class StopRequests:
    """Notes a stop signal of this process while the block runs; only in the main thread, and with a grace.

    ``fileno()`` becomes readable with the signal, so that a selector wakes up.
    """

    def __init__(self, grace: float | None) -> None:
        self.grace = grace
        self.received: signal.Signals | None = None
        self.deadline = float("inf")
        """``time.monotonic()`` when the grace time is over."""
        self._read, self._write = -1, -1
        self._before: dict[int, Any] = {}

    @property
    def is_armed(self) -> bool:
        """Whether signals are being noted."""
        return bool(self._before)

    def fileno(self) -> int:
        return self._read

    def drain(self, *_: object) -> None:
        """Take the wake-up off the selector."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 64)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # schedulers repeat SIGTERM
        assert self.grace is not None
        self.received, self.deadline = signal.Signals(number), time.monotonic() + self.grace
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def __enter__(self) -> StopRequests:
        if self.grace is not None and threading.current_thread() is threading.main_thread():
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
            for number in _STOP:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._before:
            os.close(self._read)
            os.close(self._write)
        self._before.clear()
