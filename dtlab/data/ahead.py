"""Run an iterator in a thread, a few items ahead of who consumes it (lesson 11).

- Stopping early ends the thread: by ``close()``, or by dropping the object.
- An error in the thread is raised where the next item is asked for.
"""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Run ``items`` in a thread, ``depth`` items ahead of the consumer; ``close()`` ends the thread.

    >>> list(Ahead(iter(range(3)), depth=2))
    [0, 1, 2]
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._slots = threading.Semaphore(depth)
        self._stop = threading.Event()
        # The thread knows the queue and not this object, so that dropping the object can end the thread. It
        # is a daemon because a process must not wait for it; the finalizer ends it in order, at exit too.
        self._thread = threading.Thread(
            target=_produce,
            args=(items, self._ready, self._slots, self._stop),
            name="dtlab-loader",
            daemon=True,
        )
        self._thread.start()
        self.close = weakref.finalize(self, _end, self._thread, self._slots, self._stop)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        kind, value = self._ready.get()
        if kind == "item":
            self._slots.release()
            return value
        self._ready.put((kind, value))  # asked again, the answer is the same
        if kind == "error":
            raise value
        raise StopIteration


def _produce(
    items: Iterator[T],
    ready: "queue.SimpleQueue[tuple[str, Any]]",
    slots: threading.Semaphore,
    stop: threading.Event,
) -> None:
    try:
        while True:
            slots.acquire()
            if stop.is_set():
                return
            item = next(items, None)
            if item is None:
                ready.put(("end", None))
                return
            ready.put(("item", item))
    except BaseException as error:
        ready.put(("error", error))


def _end(thread: threading.Thread, slots: threading.Semaphore, stop: threading.Event) -> None:
    stop.set()
    slots.release()
    if thread is not threading.current_thread():
        thread.join()
