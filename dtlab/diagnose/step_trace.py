"""One step as spans of computing and of communication, and what of the latter nothing hides (lesson 10).

- ``record_trace(step)`` runs ``step()`` once under ``torch.profiler``. Communication is what a backend names
  ``gloo:...`` or ``nccl...``; computing is every other operation that is not inside another one. On CUDA
  the kernels count instead (tried with made-up events only).
- *Exposed* is communication while nothing computes on this rank. A wait for a slower rank is in it.
- The profiler makes every operation slower: look at where things lie, and measure times without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.errors import UserError

__all__ = ["Span", "StepTrace", "merged", "record_trace", "trace_of_events", "without"]

_BACKENDS = ("gloo:", "nccl")
_NO_WORK = ("c10d::", "record_param_comms", "PythonDispatchMode", "DistributedDataParallel", "Optimizer.")
_SYNCHRONISES = ("cudaDeviceSynchronize", "cudaStreamSynchronize")


class Span(NamedTuple):
    """From when to when something ran, in whole microseconds from the begin of the step."""

    start: int
    end: int


def merged(spans: Iterable[tuple[int, int]], gap: int = 0) -> list[Span]:
    """The same time as spans in order that neither touch nor overlap; gaps up to ``gap`` are closed.

    >>> merged([(5, 9), (0, 3), (2, 4)])
    [Span(start=0, end=4), Span(start=5, end=9)]
    """
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1].end + gap:
            found[-1] = Span(found[-1].start, max(found[-1].end, end))
        elif end > start:
            found.append(Span(start, end))
    return found


def without(spans: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> list[Span]:
    """What of ``spans`` lies outside of ``taken``.

    >>> without([(0, 10)], [(2, 4), (9, 12)])
    [Span(start=0, end=2), Span(start=4, end=9)]
    """
    found, busy = [], merged(taken)
    for start, end in merged(spans):
        for begin, stop in busy:
            if stop > start and begin < end:
                if begin > start:
                    found.append(Span(start, begin))
                start = max(start, stop)
        if start < end:
            found.append(Span(start, end))
    return found


@dataclass(frozen=True)
class StepTrace:
    """One step of one rank: spans in which it computed, and spans in which something travelled.

    Spans may overlap: several buckets travel at a time.

    >>> trace = StepTrace([(0, 60), (90, 100)], [(50, 70), (65, 95)])
    >>> trace.exposed_us, trace.step_us, trace.exposed_share
    (30, 100, 0.3)
    """

    compute: Sequence[tuple[int, int]]
    communication: Sequence[tuple[int, int]]
    rank: int = 0

    def __post_init__(self) -> None:
        if not self.compute:
            raise UserError("compute is empty: a step computes; give (start, end) in microseconds")
        for name in ("compute", "communication"):
            for start, end in getattr(self, name):
                if end < start:
                    raise UserError(f"{name} holds ({start}, {end}), which ends before it starts")

    @property
    def exposed(self) -> list[Span]:
        """Communication behind which nothing computes, in order."""
        return without(self.communication, self.compute)

    @property
    def exposed_us(self) -> int:
        """Microseconds of ``exposed``."""
        return sum(end - start for start, end in self.exposed)

    @property
    def step_us(self) -> int:
        """From the begin of the first span to the end of the last."""
        every = [*self.compute, *self.communication]
        return max(end for _, end in every) - min(start for start, _ in every)

    @property
    def exposed_share(self) -> float:
        """``exposed_us`` of the step."""
        return self.exposed_us / self.step_us


def record_trace(step: Callable[[], Any], rank: int | None = None) -> StepTrace:
    """Run ``step()`` once under ``torch.profiler`` and return its trace.

    ``rank`` is that of the default group, where there is one. Run a step or two before: the first one
    allocates. ``UserError`` when the step computes nothing.

    >>> import torch
    >>> trace = record_trace(lambda: torch.ones(8).square().sum())
    >>> len(trace.communication), trace.exposed_us
    (0, 0)
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from dtlab.ranks import agreement

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch prints when it starts and stops
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as watched:
        step()
    return trace_of_events(watched.events(), agreement.rank() if rank is None else rank)


def trace_of_events(events: Iterable[Any], rank: int = 0) -> StepTrace:
    """The trace in the events of a profile (``profile.events()``).

    Read are ``name``, ``time_range``, ``cpu_parent`` and ``device_type``. Gaps of up to 20 us between two
    operations are Python's and count as computing.
    """
    every = list(events)
    kernels = [event for event in every if str(event.device_type).endswith("CUDA")]
    compute, communication = [], []
    for event in kernels or every:
        span = (round(event.time_range.start), round(event.time_range.end))
        if event.name.startswith(_BACKENDS):
            communication.append(span)
        elif kernels or (event.cpu_parent is None and not event.name.startswith(_NO_WORK + _SYNCHRONISES)):
            compute.append(span)
    if not compute:
        raise UserError("the profile holds no computing: let the step run inside of it")
    zero = min(start for start, _ in [*compute, *communication])
    return StepTrace(
        merged(((start - zero, end - zero) for start, end in compute), gap=20),
        sorted(Span(start - zero, end - zero) for start, end in communication),
        rank,
    )
