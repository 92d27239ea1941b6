"""What a step is bound by, and what to try next, in the order of what it can gain (lessons 01 and 10).

The rules are those of lesson 01:

1. In each step the rank with the *least* communication came last; what it did is what the step took.
2. Of each part the median over the steps counts: one slow step does not decide. A rare stall is told apart.
3. The longest of data, computing and communication names the bound (``dtlab.cost.scaling.classify_step``).

Every gain is an upper limit by arithmetic, samples per second after over before, with all else unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtlab.cost.scaling import Bound, classify_step
from dtlab.diagnose.checks import OK, WARN, Line
from dtlab.diagnose.step_profile import PARTS, StepProfile
from dtlab.diagnose.utilisation import COMMUNICATION_LIMIT, WAIT_LIMIT, busy_share
from dtlab.errors import UserError

__all__ = ["Advice", "BoundVerdict", "bound_verdict"]

_LEAST_GAIN = 1.02
_STALL = 5.0  # times the median
_STALLED_SHARE = 0.1


@dataclass(frozen=True)
class Advice:
    """One thing to try, and how many times as many samples a second it can give at most."""

    what: str
    most: float
    part: str = "compute"
    """What it shortens: "data", "communication" or "compute"."""

    def __str__(self) -> str:
        return f"{self.what} (at most {self.most:.2f}x)"


@dataclass(frozen=True)
class BoundVerdict:
    """What bounds the typical step, why, and what to try.

    Attributes:
        bound: "compute-bound", "input-bound" or "communication-bound".
        seconds: of the typical step: "data", "compute" and "communication".
        advice: what to try, the largest possible gain first.
        notes: rare stalls and ranks that keep the others waiting.
    """

    bound: Bound
    seconds: dict[str, float]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()

    @property
    def busy_share(self) -> float:
        """Of the typical step, on the rank that came last."""
        total = sum(self.seconds.values())
        return busy_share(self.seconds["data"] / total, self.seconds["communication"] / total)

    def lines(self) -> list[Line]:
        """One line for the verdict, OK when computing takes longest, and one for each note.

        Whether the ranks compute for long enough is what the line of the busy share says.
        """
        total = sum(self.seconds.values())
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in self.seconds.items())
        is_fine = self.bound == "compute-bound"
        tries = "; then ".join(map(str, self.advice[:3]))
        value = f"{self.bound}: {shares}" + (f"; next: {tries}" if is_fine and tries else "")
        first = Line(OK if is_fine else WARN, "bound", value, "" if is_fine else tries)
        return [first, *(Line(WARN, "steps", note, "look there first") for note in self.notes)]

    def remedies(self, part: str) -> str:
        """What to try against the time of one part, in the order of ``advice``."""
        return "; then ".join(str(advice) for advice in self.advice if advice.part == part)

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        parts = ", ".join(
            f"{name} {value * 1e3:.2f} ms ({value / total:.0%})" for name, value in self.seconds.items()
        )
        rows = [f"{self.bound}: {parts}", *self.notes]
        rows += [f"{place}. {advice}" for place, advice in enumerate(self.advice, start=1)]
        return "\n".join(rows)


def bound_verdict(profiles: StepProfile | Sequence[StepProfile]) -> BoundVerdict:
    """Judge one rank's profile, or better those of all ranks (see :func:`gather_profiles`).

    Raises:
        UserError: no profile, or profiles of different numbers of steps.

    >>> verdict = bound_verdict(StepProfile.of([{"data": 0.03, "forward": 0.01}] * 3))
    >>> verdict.bound, round(verdict.advice[0].most, 2)
    ('input-bound', 4.0)
    """
    ranks = [profiles] if isinstance(profiles, StepProfile) else list(profiles)
    if not ranks:
        raise UserError("profiles is empty: give the profile of one rank, or of all")
    lengths = {len(each) for each in ranks}
    if len(lengths) > 1:
        raise UserError(
            f"profiles hold {min(lengths)} to {max(lengths)} steps: take gather_profiles(profile), which "
            "cuts them alike"
        )
    communication = np.stack([each.column("communication") for each in ranks])  # [ranks, steps]
    last = communication.argmin(axis=0)
    rows = np.stack([ranks[rank].seconds[step] for step, rank in enumerate(last)])
    typical = StepProfile(rows, device=ranks[0].device, world_size=ranks[0].world_size)
    medians = {part: typical.typical(part) for part in PARTS}
    if not sum(medians.values()):  # most steps took no time that a clock can see
        medians = {part: typical.mean(part) for part in PARTS}
    compute = sum(medians[part] for part in ("forward", "backward", "optimizer", "other"))
    seconds = {"data": medians["data"], "compute": compute, "communication": medians["communication"]}
    bound = classify_step(seconds["data"], compute, seconds["communication"])
    waited = float(np.median((communication - communication.min(axis=0)).mean(axis=0)))
    notes = [*_stalls(typical), *_late_rank(last, waited, sum(seconds.values()), len(ranks))]
    return BoundVerdict(bound, seconds, tuple(_advice(medians, bound, typical)), tuple(notes))


def _advice(medians: dict[str, float], bound: Bound, about: StepProfile) -> list[Advice]:
    """What can be tried on a step of these parts, each with its limit, the best first."""
    step = sum(medians.values())
    data, communication, backward = medians["data"], medians["communication"], medians["backward"]
    on_cuda, size = about.device == "cuda", about.world_size

    def without(seconds: float) -> float:
        return step / max(step - seconds, step / 1000)

    tries = [
        Advice("keep prepared rows in memory or on the local disk (data.cache)", without(data), "data"),
        Advice(
            "read ahead beside the step (run.prefetch, loader workers)",
            without(min(data, step - data)),
            "data",
        ),
        Advice(
            "one sync for twice the samples: a larger batch per rank, or micro-batches in no_sync()",
            without(communication / 2),
            "communication",
        ),
    ]
    if on_cuda:  # on a CPU the ranks compute and communicate on the same cores
        tries += [
            Advice(
                "let more communication hide behind backward: smaller buckets (bucket_mb)",
                without(min(communication, backward)),
                "communication",
            ),
            Advice(
                "compute in bf16 or fp16 (precision.name)",
                without((medians["forward"] + backward) / 2),
            ),
        ]
    tries += [
        Advice("update less often: a larger global batch", without(medians["optimizer"] / 2)),
        Advice("read losses, log and save less often in the loop", without(medians["other"])),
    ]
    # While those there are wait, more ranks would wait as well.
    is_busy = data <= WAIT_LIMIT * step and communication <= COMMUNICATION_LIMIT * step
    if bound == "compute-bound" and is_busy:
        tries.append(Advice("twice the ranks: at best for the same dollars per sample", 2.0))
    elif size > 1 and bound == "communication-bound":
        tries.append(
            Advice(
                f"one rank instead of {size}: it waits for nobody",
                without(communication) / size,
                "communication",
            )
        )
    found = [advice for advice in tries if advice.most >= _LEAST_GAIN]
    return sorted(found, key=lambda advice: -advice.most)


def _stalls(typical: StepProfile) -> list[str]:
    """Parts that are short in most steps, and in a few so long that they matter for the whole."""
    found = []
    for part in PARTS:
        column, median = typical.column(part), typical.typical(part)
        stalled = column > _STALL * max(median, typical.step_seconds / 100)
        lost = float((column[stalled] - median).sum() / typical.seconds.sum())
        if lost > _STALLED_SHARE:
            found.append(
                f"{stalled.sum()} of {len(column)} steps stalled in {part} for up to {column.max():.3g} s, "
                f"where {median:.3g} s is usual: {lost:.0%} of all the time"
            )
    return found


def _late_rank(last: np.ndarray, waited: float, step: float, ranks: int) -> list[str]:
    if ranks < 2 or waited < 0.1 * step:
        return []
    counts = np.bincount(last, minlength=ranks)
    rank, times = int(counts.argmax()), int(counts.max())
    if times < 0.75 * len(last):
        return []
    return [
        f"rank {rank} came last in {times} of {len(last)} steps, and the ranks waited {waited * 1e3:.3g} ms "
        "on average: shorten what that rank does"
    ]
