"""Throughput, memory and communication share, read every N steps (a checklist item of lesson 01)."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dtlab.data.stream_loader import AnyLoader


class Clock(Protocol):
    """``AllReduceClock`` or ``SampledClock``."""

    @property
    def seconds(self) -> float:
        """That this rank spent on messages until now."""

    def mark(self) -> Any:
        """This moment, for ``since``."""

    def since(self, mark: Any) -> float:
        """Seconds that the steps from ``mark`` on spent on messages; nan where that is not known."""


@dataclass(frozen=True)
class Reading:
    """One line of the run record: what this rank saw since the last reading."""

    step: int
    samples_per_second: float
    """Rows of the global batches per second."""
    memory_bytes: int
    """Most memory this rank has held so far: CUDA allocator on a card, resident set on a CPU."""
    wait_share: float
    communication_share: float
    samples: int = 0
    """Samples that all ranks have seen since the start of training."""
    loss: float | None = None
    """Mean loss over all ranks since the last reading. A single rank's would be noisier by sqrt(ranks)."""
    lr: float | None = None
    """Rate of the last step."""
    grad_norm: float | None = None
    """Norm of the last step's gradient before clipping, where it was computed."""

    def __str__(self) -> str:
        loss = "" if self.loss is None else f" loss {self.loss:.4f},"
        share = self.communication_share
        talking = "" if math.isnan(share) else f" {share:.0%} communication,"
        return (
            f"step {self.step}:{loss} {self.samples_per_second:,.0f} samples/s, peak memory "
            f"{self.memory_bytes / 1e9:.2f} GB,{talking} {self.wait_share:.0%} waiting for data"
        )


class Meter:
    """Counts rows and seconds of the loop it stands in; costs one addition per step."""

    def __init__(self, clock: Clock, loader: AnyLoader) -> None:
        self._clock, self._loader = clock, loader
        self._rows = 0
        self._all_rows = 0
        self._start = self._mark = time.perf_counter()
        self._first_wait = self._wait = loader.wait_seconds
        self._first_communication, self._communication = clock.seconds, clock.mark()

    def add(self, rows: int) -> None:
        self._rows += rows

    @property
    def samples_per_second(self) -> float:
        """Since the start of the epoch."""
        return (self._all_rows + self._rows) / max(1e-9, time.perf_counter() - self._start)

    @property
    def wait_seconds(self) -> float:
        return self._loader.wait_seconds - self._first_wait

    @property
    def communication_seconds(self) -> float:
        return self._clock.seconds - self._first_communication

    def read(self, step: int) -> Reading:
        now, wait = time.perf_counter(), self._loader.wait_seconds
        seconds = max(1e-9, now - self._mark)
        reading = Reading(
            step=step,
            samples_per_second=self._rows / seconds,
            memory_bytes=peak_memory_bytes(),
            wait_share=(wait - self._wait) / seconds,
            communication_share=self._clock.since(self._communication) / seconds,
        )
        self._all_rows += self._rows
        self._rows, self._mark, self._wait, self._communication = 0, now, wait, self._clock.mark()
        return reading


def peak_memory_bytes() -> int:
    """Peak bytes of this process: allocated by CUDA's allocator if it is in use, else the resident set."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
