"""A time budget around a cell: shown to the reader, never compared by CI (machines differ)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dtlab.course.running import running


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Print the time that the block took beside its budget. Tag the cell `varies`.

    >>> with time_budget(5):
    ...     pass
    this cell took 0.0 s; the lesson allows it 5 s
    """
    start = time.perf_counter()
    try:
        with running("this cell"):
            yield
    finally:
        used = time.perf_counter() - start
        over = "" if used <= seconds else ": over, because the machine is busy or you gave it more work"
        print(f"this cell took {used:.1f} s; the lesson allows it {seconds:g} s{over}")
