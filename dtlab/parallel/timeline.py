"""When each gradient arrived and each bucket travelled, in one backward of ``HandDDP`` (lesson 03).

``with record_backward(model) as line: loss.backward()`` notes times and changes nothing else. On Linux and
macOS ``perf_counter`` is one clock for all processes of a machine, so the lines of several ranks can be drawn
on one axis.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.parallel.by_hand_ddp import HandDDP

__all__ = ["BackwardLine", "BucketTrip", "record_backward"]


@dataclass
class BucketTrip:
    """One all-reduce: which gradients, how many bytes, from when to when (seconds of ``perf_counter``)."""

    names: tuple[str, ...]
    bytes: int
    start: float
    end: float = float("nan")
    _arrived: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def arrive(self) -> None:
        """Note the end; called in the thread of the backend that finished the all-reduce."""
        self.end = time.perf_counter()
        self._arrived.set()

    def wait(self, timeout: float) -> None:
        """Wait until the end is noted: the thread that notes it may be behind the one that used the mean."""
        self._arrived.wait(timeout)

    def __reduce__(self) -> Any:  # an event cannot travel between processes
        return BucketTrip, (self.names, self.bytes, self.start, self.end)


@dataclass
class BackwardLine:
    """One backward on one rank. Times are seconds of ``perf_counter``."""

    rank: int
    start: float
    end: float = float("nan")
    gradients: list[tuple[str, float]] = field(default_factory=list)
    """Name of each parameter and the time when its gradient was complete, in order of arrival."""
    trips: list[BucketTrip] = field(default_factory=list)


@contextmanager
def record_backward(model: HandDDP) -> Iterator[BackwardLine]:
    """Note when gradients arrive and buckets travel while the block runs; run one backward in it.

    ``UserError`` for a model that is not a :class:`HandDDP`: torch's DDP does its buckets out of sight.

    >>> with record_backward(model) as line:  # doctest: +SKIP
    ...     loss.backward()
    >>> len(line.trips)  # doctest: +SKIP
    3
    """
    if not isinstance(model, HandDDP):
        raise UserError(f"record_backward got a {type(model).__name__}: give a HandDDP (engine='by_hand')")
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    line = BackwardLine(dist.get_rank(), start=0.0)
    # A hook on the tensor runs before the one on its accumulated gradient, which starts a bucket.
    hooks = [
        parameter.register_hook(_arrival(line, name))
        for parameter, name in names.items()
        if parameter.requires_grad
    ]
    for bucket in model._buckets:
        bucket.start = _timed(bucket, names, line)  # type: ignore[method-assign]
    line.start = time.perf_counter()
    try:
        yield line
        line.end = time.perf_counter()
        for trip in line.trips:
            trip.wait(timeout=10.0)
    finally:
        for hook in hooks:
            hook.remove()
        for bucket in model._buckets:
            del bucket.start


def _arrival(line: BackwardLine, name: str) -> Any:
    def arrived(_gradient: Any) -> None:
        line.gradients.append((name, time.perf_counter()))

    return arrived


def _timed(bucket: Any, names: Any, line: BackwardLine) -> Any:
    start = bucket.start

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        start(*arguments)
        trip = BucketTrip(tuple(names[p] for p in bucket.parameters), bucket.flat.nbytes, began)
        line.trips.append(trip)
        bucket.work.get_future().add_done_callback(lambda _future: trip.arrive())

    return timed
