"""Say which data loader worker died, on which rank and how (lesson 04).

torch notices a dead worker in its handler of SIGCHLD, which raises wherever the main thread is: in the
loader, or in the training step. So the answer is given there too: a handler around torch's puts rank, worker
and exit code into the error.
"""

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any


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


_live: list[_Named] = []
_wrapped: Any = None


@contextmanager
def naming_dead_workers(rank: int, world_size: int) -> Iterator[_Named]:
    """Turn torch's "DataLoader worker exited unexpectedly" into a ``DataLoaderWorkerError`` inside.

    Put the worker processes into ``.workers`` of what it gives. Outside the main thread, where no handler
    of signals runs, only errors raised inside the block are explained.
    """
    named = _Named(rank, world_size)
    _live.append(named)
    try:
        yield named
    except DataLoaderWorkerError:
        raise
    except RuntimeError as error:
        if explained := named.explain():
            raise explained from error
        raise
    finally:
        _live.remove(named)


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
    try:
        _wrapped(signum, frame)
    except RuntimeError as error:
        for named in _live:
            if explained := named.explain():
                raise explained from error
        raise
