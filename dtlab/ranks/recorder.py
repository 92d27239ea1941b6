"""What each rank was last doing, so that a timeout names the late rank and its operation (lesson 12).

Every rank runs a daemon thread with its own connection to the rendezvous store. When somebody asks, the
thread answers with the state of its rank (``rank_state.py``). Waiting inside gloo or inside DDP's backward
releases the interpreter lock, so the thread can answer then too; for code that holds the lock,
``dump_on_signal`` lets the main thread's stack be written from C.

- ``start(store, rank, world_size)`` in each rank, ``stop()`` at its end.
- ``ask_all(store, world_size, timeout)`` by anyone who has the same store, also a launcher that is no rank.
- ``explain(states)`` (in ``explain.py``, named here too) says who is late.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from dtlab.ranks.explain import Explanation, explain
from dtlab.ranks.rank_state import Frame, RankState, capture

__all__ = [
    "Explanation",
    "Frame",
    "RankState",
    "Recorder",
    "ask_all",
    "current",
    "dump_on_signal",
    "explain",
    "start",
    "stop",
]

_ASK = "dtlab/ask"
_STATE = "dtlab/state"
_FOREVER = timedelta(days=365)

_current: Recorder | None = None
_dump_file: IO[str] | None = None


class Recorder:
    """The answering thread of one rank.

    Attributes:
        rank: this process's rank.
        world_size: number of ranks.
        store: the store as it was given; ``ask`` uses it.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        # A wait blocks its whole connection, so the thread needs one of its own.
        self._line = store.clone()
        self._thread = threading.Thread(target=self._serve, name="dtlab-recorder", daemon=True)
        self._stopped = False
        self._lost = False
        self._thread.start()

    def _serve(self) -> None:
        count = 0
        while not self._stopped:
            count += 1
            try:
                self._line.wait([f"{_ASK}/{self.rank}/{count}"], _FOREVER)
                if self._stopped:
                    return
                self._line.set(f"{_STATE}/{self.rank}/{count}", capture(self.rank).to_json())
            except Exception:
                # The store went away with its host: nobody can ask any more, and asking others is in vain.
                self._lost = True
                return

    def ask(self, timeout: float = 2.0) -> list[RankState | None]:
        """Ask every rank of this world, this one included."""
        if self._lost or self._stopped:
            return [None] * self.world_size
        return ask_all(self.store, self.world_size, timeout)

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread. Call it while the store is still up.

        A thread that wakes inside torch while the interpreter ends aborts the process ("terminate called
        without an active exception"), so it is waited for also where the machine is slow.
        """
        if self._stopped:
            return
        self._stopped = True
        if not self._lost:
            with contextlib.suppress(Exception):
                _request(self.store, self.rank)
        self._thread.join(timeout)


def start(store: Any, rank: int, world_size: int) -> Recorder:
    """Start the recorder of this process, or return the one that runs.

    Args:
        store: a torch ``Store`` that all ranks share (prefix included). It must support ``clone``.
        rank: this process's rank.
        world_size: number of ranks.

    Example:
        >>> recorder = start(store, rank=0, world_size=2)       # doctest: +SKIP
        >>> print(explain(recorder.ask()))                      # doctest: +SKIP
    """
    global _current
    if _current is None or _current._stopped or not _current._thread.is_alive():
        _current = Recorder(store, rank, world_size)
    return _current


def current() -> Recorder | None:
    """The recorder that runs in this process, or None."""
    return None if _current is None or _current._stopped else _current


def stop() -> None:
    """Stop this process's recorder if it runs."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None


def _request(store: Any, rank: int) -> str:
    """Ask one rank; returns the key under which it will answer."""
    count = store.add(f"{_ASK}/{rank}/count", 1)
    store.set(f"{_ASK}/{rank}/{count}", b"1")
    return f"{_STATE}/{rank}/{count}"


def ask_all(
    store: Any, world_size: int, timeout: float = 2.0, ranks: Sequence[int] | None = None
) -> list[RankState | None]:
    """Ask every rank what it is doing.

    Args:
        store: the store given to ``start`` in the ranks, prefix included.
        world_size: number of ranks.
        timeout: seconds to wait for all answers together.
        ranks: whom to ask; default: all. One that is known to have ended would only cost the whole timeout.

    Returns:
        One state per rank in rank order; None for a rank that did not answer: it has ended, or it holds the
        interpreter lock.
    """
    states: list[RankState | None] = [None] * world_size
    with contextlib.suppress(Exception):  # the store may go away while we ask: what we have is what we return
        waiting = {rank: _request(store, rank) for rank in (range(world_size) if ranks is None else ranks)}
        deadline = time.monotonic() + timeout
        pause = 0.001
        while waiting:
            for rank, key in list(waiting.items()):
                # check, not wait: a wait that runs out prints C++ warnings to the user's screen
                if store.check([key]):
                    states[rank] = RankState.from_json(store.get(key).decode())
                    del waiting[rank]
            if not waiting or time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
    return states


def dump_on_signal(path: str | Path, number: int | None = None) -> int | None:
    """Write the stacks of all threads to a file whenever a signal arrives, even while the lock is held.

    Args:
        path: file to append to; made now, so that it exists when the signal comes.
        number: signal number; default SIGUSR2.

    Returns:
        The signal to send, or None where the platform has none.
    """
    global _dump_file
    if not hasattr(faulthandler, "register"):
        return None
    if number is None:
        number = int(signal.SIGUSR2)
    file = open(os.fspath(path), "a")  # noqa: SIM115  faulthandler keeps the descriptor
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    if _dump_file is not None:
        _dump_file.close()
    _dump_file = file
    return number
