"""SIGTERM and Ctrl-C end a command with one line and an exit code, whenever they come.

- The handler raises, so that ``with`` blocks and ``finally`` end ranks and remove what is half written.
- Code of others may lose what is raised there: an import inside a C extension clears the error, a callback
  of the collector prints and forgets it. So a thread looks whether the exception still lives, and sends the
  signal again when it does not.
- Once the command has ended, or its end is being told, signals say nothing new and are passed over.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

__all__ = ["EndedBySignal", "Ending"]

_LOOK_SECONDS = 0.2


class EndedBySignal(KeyboardInterrupt):
    """Ends a command as Ctrl-C does: its ranks end with it, and a line says so."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell reports it."""
        return 128 + self.number

    def say(self) -> int:
        """One line, under torchrun from rank 0 alone and in the agent's own report; the exit code."""
        from dtlab.ranks.agent_errors import tell_agent

        if not tell_agent(f"ended by {self}") or os.environ.get("RANK", "0") == "0":
            word = "terminated" if self.number == signal.SIGTERM else "interrupted"
            print(f"dtlab: {word}", file=sys.stderr)
        return self.exit_code


class Ending:
    """Takes both signals from :meth:`begin` on, in the main thread and where nobody else has taken them.

    Set :attr:`is_over` before the end is told: from then on nothing is raised.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.number: int | None = None
        """The last signal that was raised."""
        self._raised: weakref.ref[EndedBySignal] | None = None
        self._before: dict[int, Any] = {}
        self._say_lost = sys.unraisablehook

    def begin(self) -> None:
        """Raise from now on, already in here."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, untouched in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            if signal.getsignal(number) == untouched:
                self._before[number] = untouched
                signal.signal(number, self._handle)
        self._say_lost, sys.unraisablehook = sys.unraisablehook, self._pass_over

    def close(self, *, process_ends: bool) -> None:
        """Give the signals back. A process that is about to end has no traceback to show for Ctrl-C."""
        self.is_over = True
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if process_ends else handler)
        if sys.unraisablehook == self._pass_over:
            sys.unraisablehook = self._say_lost

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.is_over:
            return
        error = EndedBySignal(number)
        is_first, self.number, self._raised = self.number is None, number, weakref.ref(error)
        if is_first:
            # Not threading.Thread, whose locks this thread may hold: the signal may come anywhere.
            _thread.start_new_thread(self._look, (os.getpid(),))
        try:
            raise error
        finally:
            del error  # its traceback holds this frame, and would keep it alive

    def _pass_over(self, lost: Any) -> None:
        """Say nothing of a signal that a callback forgot: it comes again."""
        if not isinstance(lost.exc_value, EndedBySignal):
            self._say_lost(lost)

    def _look(self, process: int) -> None:
        while not self.is_over:
            time.sleep(_LOOK_SECONDS)
            number, raised = self.number, self._raised
            if number is not None and raised is not None and raised() is None and not self.is_over:
                os.kill(process, number)
