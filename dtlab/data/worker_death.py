"""Say which data loader worker died, on which rank and how (lesson 04).

torch notices a dead worker in its handler of SIGCHLD, which raises wherever the main thread is: in the
loader, or in the training step. So the answer is given there too: a handler around torch's puts rank, worker
and exit code into the error. Workers that a server forked are no children of the rank: their death sends it
no signal, and torch would find out after the whole timeout. A thread watches them and calls that handler.
"""

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from dtlab.errors import UserError


class DataLoaderWorkerError(RuntimeError):
    """A data loader worker process died."""


def in_start_order(workers: Iterable[BaseProcess]) -> list[BaseProcess]:
    """Return processes in the order in which they were started, which their default names count."""
    return sorted(workers, key=lambda worker: [int(part) for part in re.findall(r"\d+", worker.name)])


class _Named:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.workers: list[BaseProcess] = []
        self._stop_watching = _nothing

    def watch(self) -> None:
        """Let a thread wait for the end of the workers, which are no children of this process."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
            return
        stopped, stop = os.pipe()
        ends = [worker.sentinel for worker in self.workers]
        thread = threading.Thread(target=_watch, args=(ends, stopped), name="dtlab-workers", daemon=True)
        thread.start()

        def stop_watching() -> None:
            os.close(stop)
            thread.join()
            os.close(stopped)

        self._stop_watching = stop_watching

    def close(self) -> None:
        """End the thread."""
        self._stop_watching()
        self._stop_watching = _nothing

    def explain(self) -> DataLoaderWorkerError | None:
        """Return the error that names a dead worker, or None if all of them live or ended well."""
        for number, worker in enumerate(self.workers):
            code = worker.exitcode
            if code:
                how = f"exited with exit code {code}" if code > 0 else f"was killed by signal {-code}"
                if code == -signal.SIGBUS:
                    how += " (bus error: /dev/shm is full; fewer workers or a larger --shm-size)"
                return DataLoaderWorkerError(
                    f"data loader worker {number} of {len(self.workers)} on rank {self.rank} of "
                    f"{self.world_size} {how}; its own last output says why, "
                    "or run with num_workers=0 to see the error in the rank itself"
                )
        return None


def _nothing() -> None:
    pass


def _watch(ends: list[int], stopped: int) -> None:
    # Only looks: whoever reads a worker's exit code here would take it from the rank.
    left: set[int] = set(ends)
    while left:
        ready = {int(end) for end in wait([*left, stopped]) if isinstance(end, int)}
        if stopped in ready:
            return
        left -= ready
        with suppress(OSError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)


_live: list[_Named] = []
_wrapped: Any = None


@contextmanager
def naming_dead_workers(rank: int, world_size: int) -> Iterator[_Named]:
    """Turn torch's "DataLoader worker exited unexpectedly" into a ``DataLoaderWorkerError`` inside.

    A ``UserError`` that a worker raised is that error again, without the worker's traceback in its line.

    Put the worker processes into ``.workers`` of what it gives. Outside the main thread, where no handler
    of signals runs, only errors raised inside the block are explained.
    """
    named = _Named(rank, world_size)
    _live.append(named)
    try:
        yield named
    except DataLoaderWorkerError:
        raise
    except UserError as error:
        if line := _line_of_worker(error):
            raise type(error)(line) from None
        raise
    except RuntimeError as error:
        if explained := named.explain():
            raise explained from error
        raise
    finally:
        _live.remove(named)
        named.close()


def _line_of_worker(error: UserError) -> str | None:
    """The message that a worker's error had before torch put "Caught ..." and a traceback before it."""
    text, kind = str(error), type(error)
    if not re.match(r"Caught \w+ in DataLoader worker process \d+\.\n", text):
        return None
    return text.rpartition(f"\n{kind.__module__}.{kind.__qualname__}: ")[2].strip() or None


def end_workers(iterators: Iterable[Any]) -> None:
    """End the workers of torch's iterators now: an error's traceback keeps them alive as long as itself.

    Not inside ``naming_dead_workers``, which would name those that are ended here.
    """
    for iterator in iterators:
        with suppress(RuntimeError):  # torch's handler tells once more of the death that ended the epoch
            getattr(iterator, "_shutdown_workers", _nothing)()


def wrap_handler() -> None:
    """Put our handler around the one that torch has set; again after torch or the user set another one."""
    global _wrapped
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return
    current = signal.getsignal(signal.SIGCHLD)
    if current is _on_child or not callable(current):
        return
    _wrapped = current
    signal.signal(signal.SIGCHLD, _on_child)


def _on_child(signum: int, frame: Any) -> None:
    cause: RuntimeError | None = None
    try:
        _wrapped(signum, frame)  # of torch: raises for a dead child
    except RuntimeError as error:
        cause = error
    for named in _live:
        if explained := named.explain():
            raise explained from cause
    if cause is not None:
        raise cause
