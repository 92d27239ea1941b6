"""A time budget around a cell: shown to the reader, never compared by CI (machines differ)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Print the time that the block took beside its budget. Tag the cell `varies`.

    >>> with time_budget(5):
    ...     pass
    0.0 s of a budget of 5 s
    """
    start = time.perf_counter()
    try:
        yield
    finally:
        used = time.perf_counter() - start
        over = "" if used <= seconds else " (over: a busy machine, or more work than the lesson planned)"
        print(f"{used:.1f} s of a budget of {seconds:g} s{over}")
