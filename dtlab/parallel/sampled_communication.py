"""How long ranks talk where a model is cut over them: a sample, as messages go inside each layer (lesson 09).

Under FSDP, tensor parallelism and pipelines no hook sees all messages. So in one step of many torch's
profiler notes when each collective of gloo began and ended. Its share of that step counts for the others too.

- The time of a message runs from its call to its end, the wait for a slower rank (a pipeline's bubble too)
  included; messages at the same time count once. A send counts on the rank that receives.
- The ranks enter the sampled step together. It costs some tenths of a second; the others cost nothing.
- NCCL's messages run on the card, where this does not look: the seconds are nan there, not measured.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dtlab.ranks import agreement

__all__ = ["SampledClock", "covered"]

FIRST, EVERY = 2, 1000
"""The first step of a process warms up; the second is sampled, then one of so many."""


class SampledClock:
    """Seconds that this rank's messages took, estimated from sampled steps; every rank makes one.

    ``device``: of the model.

    >>> clock = SampledClock(torch.device("cpu"))
    >>> with clock.step():
    ...     pass
    >>> clock.seconds
    0.0
    """

    def __init__(self, device: torch.device) -> None:
        self._sees = device.type == "cpu"
        self._steps = 0
        self._share: float | None = None
        self._unrated = self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Until now; 0 before the first sample, nan where messages are not seen."""
        return self._seconds if self._sees else math.nan

    def mark(self) -> tuple[float, float]:
        """This moment, for ``since``."""
        return self._seconds, self._unrated

    def since(self, mark: tuple[float, float]) -> float:
        """Seconds of the steps from ``mark`` on; nan before the first sample.

        A sample rates the steps before it too. What it adds for those before ``mark`` is not counted.
        """
        if not self._sees or self._share is None:
            return math.nan
        seconds, unrated = mark
        return self._seconds - seconds - self._share * unrated

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step, on every rank."""
        self._steps += 1
        is_sampled = self._sees and self._steps % EVERY == FIRST and agreement.world_size() > 1
        if is_sampled:
            with self._sampled():
                yield
            return
        begun = time.perf_counter()
        yield
        self._count(time.perf_counter() - begun)

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch prints when it starts and stops
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            agreement.barrier()  # a rank whose profiler started later would pass for a slow one
            begun = time.perf_counter()
            with torch.profiler.record_function(_STEP):
                yield
            seconds = time.perf_counter() - begun
        # As the profiler noted them: `profiler.events()` makes a tree of them first, twelve times slower.
        noted: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        events = [(e.name(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in noted.events()]
        (start, end), *_ = [(start, end) for name, start, end in events if name == _STEP]
        messages = [(max(a, start), min(b, end)) for name, a, b in events if _is_message(name)]
        self._share = covered(messages) / max(1e-9, end - start)
        self._count(seconds)

    def _count(self, seconds: float) -> None:
        self._unrated += seconds
        if self._share is not None:
            self._seconds += self._share * self._unrated
            self._unrated = 0.0


_STEP = "dtlab: sampled step"


def _is_message(name: str) -> bool:
    return name.startswith("gloo:") and name != "gloo:send"


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length that spans (begin, end) cover together.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4
    """
    total: float = 0
    reached = -math.inf
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
