"""What one epoch adds up to: over its steps, over the ranks, and over interruptions (lesson 13)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dtlab.ranks import agreement
from dtlab.train.losses import MeanLoss
from dtlab.train.meter import Meter

__all__ = ["EpochResult", "Tally"]


@dataclass(frozen=True)
class EpochResult:
    """One pass over the training rows, equal on every rank."""

    epoch: int
    steps: int
    loss: float
    """Mean loss per row (or token) over all ranks."""
    seconds: float
    samples_per_second: float
    wait_share: float
    """Share of the time spent waiting for data, the mean over the ranks."""
    communication_share: float
    """Share of the time spent in gradient all-reduces, the wait for a slower rank included. Where ranks hold
    parts of the model: in messages of all kinds, from sampled steps (``SampledClock``); nan on cards."""
    finished: bool = True
    """False when the pass was left before its end."""


_SUMS = ("loss", "rows", "samples", "steps", "seconds", "wait", "communication")


class Tally:
    """The sums of the epoch that runs; ``fold`` makes them common to all ranks, fit for a checkpoint.

    ``parts``: in how many parts the samples are shared out; by default each rank has its own. Ranks that work
    on one part all add its rows and loss.
    """

    def __init__(self, parts: int | None = None) -> None:
        self._parts = parts
        self.sums = dict.fromkeys(_SUMS, 0.0)
        """Over all ranks, up to the last fold."""
        self.losses = MeanLoss()
        self.steps = 0
        """Steps since the last fold."""
        self._meter: Meter | None = None
        self._samples = 0
        self._mark = time.perf_counter()
        self._wait = self._communication = 0.0
        self._read_loss, self._read_rows = 0.0, 0.0
        # Of steps that a fold took away and no reading has told yet: a save must not show in the readings.
        self._unread_loss, self._unread_rows = 0.0, 0.0

    def begin(self, meter: Meter) -> None:
        """Go on with the epoch under a new meter; readings start anew."""
        self._meter, self._mark = meter, time.perf_counter()
        self._wait = self._communication = 0.0
        self._unread_loss, self._unread_rows = 0.0, 0.0

    def add(self, loss_sum: Tensor, weight: float, samples: int) -> None:
        """Count one step: this rank's loss sum, its rows or tokens, and the samples of all ranks."""
        self.losses.add(loss_sum, weight)
        self._samples += samples
        self.steps += 1

    def skip(self, samples: int) -> None:
        """Count a step that was not applied, without its loss."""
        self._samples += samples
        self.steps += 1

    def loss_since_last_reading(self) -> float:
        """Mean loss over the ranks since the last call or the begin of the pass (collective)."""
        total, rows = self.losses.total(), self.losses.rows
        loss = self._unread_loss + total - self._read_loss
        weight = self._unread_rows + rows - self._read_rows
        self._read_loss, self._read_rows = total, rows
        self._unread_loss, self._unread_rows = 0.0, 0.0
        both = agreement.mean({"loss": loss, "rows": weight})
        return both["loss"] / both["rows"] if both["rows"] else float("nan")

    def fold(self) -> None:
        """Add this rank's and the others' part to the sums (collective)."""
        now, size = time.perf_counter(), self._parts or agreement.world_size()
        wait = self._meter.wait_seconds if self._meter else 0.0
        communication = self._meter.communication_seconds if self._meter else 0.0
        loss, rows = self.losses.read()
        self._unread_loss += loss - self._read_loss
        self._unread_rows += rows - self._read_rows
        own = {"loss": loss, "rows": rows, "wait": wait - self._wait}
        own["communication"] = communication - self._communication
        own["seconds"] = now - self._mark
        means = agreement.mean(own)
        for name in ("loss", "rows"):
            self.sums[name] += means[name] * size
        for name in ("wait", "communication", "seconds"):
            self.sums[name] += means[name]
        self.sums["samples"] += self._samples
        self.sums["steps"] += self.steps
        self._mark, self._wait, self._communication = now, wait, communication
        self._samples = self.steps = 0
        self._read_loss = self._read_rows = 0.0

    def result(self, epoch: int, *, finished: bool = True) -> EpochResult:
        """The epoch so far (collective); a finished one starts the sums anew. Epochs count from 1."""
        self.fold()
        sums = dict(self.sums)
        if finished:
            self.sums = dict.fromkeys(_SUMS, 0.0)
        seconds = max(1e-9, sums["seconds"])
        return EpochResult(
            epoch=epoch,
            steps=int(sums["steps"]),
            loss=sums["loss"] / sums["rows"] if sums["rows"] else 0.0,
            seconds=seconds,
            samples_per_second=sums["samples"] / seconds,
            wait_share=sums["wait"] / seconds,
            communication_share=sums["communication"] / seconds,
            finished=finished,
        )

    def state_dict(self) -> dict[str, Any]:
        """The sums up to the last fold; equal on every rank."""
        return dict(self.sums)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on adding to the saved sums."""
        self.sums = {name: float(state[name]) for name in _SUMS}
