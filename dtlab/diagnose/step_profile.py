"""Where the seconds of a step go: data, forward, backward, exposed communication, optimizer (lesson 10).

A :class:`StepProfile` holds the seconds of each part of each step on one rank; ``profiler.py`` measures them.
Every moment of a step belongs to one part, so the parts add up to the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np

from dtlab.diagnose.utilisation import busy_share
from dtlab.errors import UserError
from dtlab.ranks import agreement

__all__ = ["PARTS", "StepProfile", "gather_profiles"]

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")


@dataclass(frozen=True, eq=False)
class StepProfile:
    """The parts of the steps of one rank: ``seconds`` [steps, 6], columns in the order of ``PARTS``.

    - ``data``: the step waited for its batch. Reading that runs beside the step does not count.
    - ``forward``: from the batch to the backward, clearing gradients included.
    - ``backward``: until the last gradient was computed, communication that hides behind it included.
    - ``communication``: *exposed*: from the last gradient until the mean over the ranks was there. It holds
      the wait for a slower rank. 0 with one rank.
    - ``optimizer``: clipping and the update.
    - ``other``: the rest of the loop's body, such as reading the loss or saving.

    >>> profile = StepProfile.of([{"data": 3, "forward": 1}, {"data": 1, "forward": 2, "communication": 1}])
    >>> profile.step_seconds, profile.share("data"), profile.busy_share
    (4.0, 0.5, 0.375)
    """

    seconds: np.ndarray
    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    """Where the model is: "cpu" or "cuda"."""

    def __post_init__(self) -> None:
        shape = self.seconds.shape
        if len(shape) != 2 or shape[1] != len(PARTS) or not shape[0]:
            raise UserError(
                f"seconds has the shape {shape}: give [steps, {len(PARTS)}] with at least one step; the "
                f"columns are {', '.join(PARTS)}"
            )
        if not (np.isfinite(self.seconds).all() and (self.seconds >= 0).all() and self.seconds.sum() > 0):
            raise UserError("seconds holds a value that is no time, or only zeros: give 0 or more seconds")

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, float]], **about: Any) -> StepProfile:
        """From one mapping of part to seconds for each step; a part left out took no time.

        Raises:
            UserError: a part has another name, or there is no step.
        """
        unknown = {name for step in steps for name in step} - set(PARTS)
        if unknown:
            raise UserError(f"{sorted(unknown)[0]!r} is no part of a step: there are {', '.join(PARTS)}")
        rows = [[float(step.get(part, 0.0)) for part in PARTS] for step in steps]
        return cls(np.asarray(rows, dtype=np.float64).reshape(len(rows), len(PARTS)), **about)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return float(self.seconds.sum(axis=1).mean())

    def column(self, part: str) -> np.ndarray:
        """[steps]: the seconds of one part."""
        if part not in PARTS:
            raise UserError(f"{part!r} is no part of a step: there are {', '.join(PARTS)}")
        return self.seconds[:, PARTS.index(part)]

    def mean(self, part: str) -> float:
        """Mean seconds of a part; the means add up to ``step_seconds``."""
        return float(self.column(part).mean())

    def typical(self, part: str) -> float:
        """Median (low) seconds of a part: one slow step does not move it."""
        return float(median_low(self.column(part).tolist()))

    def share(self, part: str) -> float:
        """Share of all the time; the shares add up to 1."""
        return float(self.column(part).sum() / self.seconds.sum())

    @property
    def busy_share(self) -> float:
        """See :func:`dtlab.diagnose.utilisation.busy_share`."""
        return busy_share(self.share("data"), self.share("communication"))

    def without_first(self, steps: int = 1) -> StepProfile:
        """The profile without its first steps, which allocate and warm up; one step is always left."""
        return replace(self, seconds=self.seconds[min(steps, len(self) - 1) :])

    def to_dict(self) -> dict[str, Any]:
        """As JSON values: steps, mean seconds and share of each part, busy share."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "device": self.device,
            "steps": len(self),
            "step_seconds": self.step_seconds,
            "seconds": {part: self.mean(part) for part in PARTS},
            "shares": {part: self.share(part) for part in PARTS},
            "busy_share": self.busy_share,
        }

    def __str__(self) -> str:
        rows = [
            f"rank {self.rank} of {self.world_size}, {len(self)} steps on {self.device}",
            f"{'part':<22}{'ms':>10}{'share':>8}",
        ]
        for part in PARTS:
            name = "exposed communication" if part == "communication" else part
            rows.append(f"{name:<22}{self.mean(part) * 1e3:>10.2f}{self.share(part):>8.1%}")
        rows.append(f"{'step':<22}{self.step_seconds * 1e3:>10.2f}{1:>8.0%}")
        rows.append(f"{'busy share':<30}{self.busy_share:>10.1%}")
        return "\n".join(rows)


def gather_profiles(profile: StepProfile) -> list[StepProfile]:
    """The profiles of all ranks, on every rank (collective), cut to the steps that all of them have.

    >>> len(gather_profiles(StepProfile.of([{"forward": 1.0}])))
    1
    """
    everybody = agreement.gather(profile, dst=None) or []
    least = min(len(each) for each in everybody)
    return [replace(each, seconds=each.seconds[-least:]) for each in everybody]
