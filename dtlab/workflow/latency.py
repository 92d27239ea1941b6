"""How long a packaged model takes to answer: percentiles over requests, after a warm-up.

One process answers one request after the other, so this is the time of the work alone: a server adds the
network, and under load the waiting (``dtlab.cost.queueing``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Latency", "measure", "of_threads"]


@dataclass(frozen=True)
class Latency:
    """Attributes:
    rows: of a request.
    requests: that were timed.
    warmup: requests before them, not timed.
    p50_ms, p95_ms: half of the requests, and 95 in 100, took no longer than this, in milliseconds.
    mean_ms: of all timed requests.
    rows_per_second: of one process without a pause.
    """

    rows: int
    requests: int
    warmup: int
    p50_ms: float
    p95_ms: float
    mean_ms: float
    rows_per_second: float


def measure(answer: Callable[[Any], object], bodies: Sequence[Any], *, rows: int, warmup: int) -> Latency:
    """Time ``answer`` on the bodies after the first ``warmup``; each has ``rows`` rows.

    >>> measure(len, ["[]"] * 30, rows=1, warmup=10).requests
    20
    """
    for body in bodies[:warmup]:
        answer(body)
    seconds = []
    for body in bodies[warmup:]:
        began = time.perf_counter()
        answer(body)
        seconds.append(time.perf_counter() - began)
    taken = np.array(seconds) * 1e3
    # "Higher": a time that was measured, and no mean of two.
    half, most = (float(np.percentile(taken, share, method="higher")) for share in (50, 95))
    mean = float(taken.mean())
    return Latency(rows, len(seconds), warmup, half, most, mean, rows / (mean / 1e3))


@contextmanager
def of_threads(count: int) -> Iterator[None]:
    """Inside, torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
