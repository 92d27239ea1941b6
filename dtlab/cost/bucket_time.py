"""Buckets of gradients on a link: all-reduces of a step, and how much of their time shows (lesson 10).

A small simulation with a clock of its own:

- gradients join buckets in order of arrival; one that would make a bucket too large begins the next;
- a bucket leaves when its last gradient is there and the link is free: one all-reduce at a time, in order;
- *exposed* is what is left after the last gradient, when there is nothing to compute that could hide it.

Computing is not slowed down by what travels beside it, which holds for a card with a network adapter and not
for ranks on the cores of one CPU.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtlab.errors import UserError


@dataclass(frozen=True)
class BucketTime:
    """All-reduces of a step, and when the last gradient came and the last bucket had travelled."""

    all_reduces: int
    last_gradient: float
    end: float

    @property
    def exposed(self) -> float:
        """Time after the last gradient."""
        return self.end - self.last_gradient


def buckets_in_time(
    gradients: Iterable[tuple[float, int]], bucket_bytes: int, time_of: Callable[[int], float]
) -> BucketTime:
    """The buckets of one backward.

    - `gradients`: (time of arrival, bytes), in order of arrival; `bucket_bytes`: most bytes of a bucket.
    - `time_of(bytes)`: of one all-reduce, in the unit of the arrivals.

    >>> buckets_in_time([(10, 4), (20, 4), (30, 4)], 8, lambda size: size)
    BucketTime(all_reduces=2, last_gradient=30, end=34)

    Raises:
        UserError: no gradient, arrivals out of order, or a bucket of no size.
    """
    found = list(gradients)
    if not found or found != sorted(found, key=lambda one: one[0]):
        raise UserError("gradients: give (arrival, bytes) of one or more, in order of arrival")
    if not bucket_bytes > 0:
        raise UserError(f"bucket_bytes = {bucket_bytes!r}: give bytes above 0")
    free, count, filled, ready = 0.0, 0, 0, 0.0
    for arrives, size in found:
        if filled and filled + size > bucket_bytes:
            free, count, filled = max(free, ready) + time_of(filled), count + 1, 0
        filled, ready = filled + size, arrives
    return BucketTime(count + 1, ready, max(free, ready) + time_of(filled))


def best_bucket_bytes(
    gradients: Iterable[tuple[float, int]], sizes: Sequence[int], time_of: Callable[[int], float]
) -> int:
    """The size among `sizes` that exposes least; the first of equals.

    >>> best_bucket_bytes([(10, 4), (20, 4), (30, 4)], [4, 8, 12], lambda size: 5 + size)
    4

    Raises:
        UserError: no size to choose from; see `buckets_in_time`.
    """
    if not sizes:
        raise UserError("sizes is empty: give one bucket size or more, in bytes")
    found = list(gradients)
    return min(sizes, key=lambda size: buckets_in_time(found, size, time_of).exposed)
