"""A signal becomes a flag: the step is finished, and a checkpoint is written before the end (lesson 13).

SIGTERM is what schedulers, SageMaker and spot hosts send before they take the machine away; SIGINT is Ctrl-C;
SIGUSR1 asks for a checkpoint without an end (Slurm sends it with ``--signal=USR1@120``). A signal may reach
one rank only, and at another step on each: so it only sets a mark here, and ``flags`` makes it common.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from dtlab.ranks.stop_requests import take_held

__all__ = ["StopSignals"]

_STOP = (signal.SIGTERM, signal.SIGINT)
_SAVE = signal.SIGUSR1


class StopSignals:
    """Notes signals while the block runs; only in the main thread, elsewhere nothing is installed.

    A second SIGINT ends the block at once with KeyboardInterrupt.

    >>> with StopSignals() as signals:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     print(signals.received)
    SIGTERM
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the first signal that asks to stop, or what else did."""
        self.received_at: float | None = None
        """``time.monotonic()`` of it."""
        self.wants_checkpoint = False
        self._before: dict[int, Any] = {}

    def stop(self, reason: str) -> None:
        """Ask to stop for another reason, for example the notice of a spot host."""
        if self.received is None:
            self.received, self.received_at = reason, time.monotonic()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == _SAVE:
            self.wants_checkpoint = True
        elif number == signal.SIGINT and self.received == "SIGINT":
            raise KeyboardInterrupt
        else:
            self.stop(signal.Signals(number).name)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (*_STOP, _SAVE):
                self._before[number] = signal.signal(number, self._handle)
            for held in take_held():  # by a launched rank, while it was starting
                self._handle(held, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: the handler was not set from Python, so it cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
