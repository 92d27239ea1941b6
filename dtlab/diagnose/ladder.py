"""The ladder before more hosts: six rungs, each with a figure, a limit and a fix (lessons 01 and 12).

The method of two practitioners: processes on one host that talk, 1 % of the data from end to end, one rank
against several, communication under 20 % of the step, the batch doubled from 256 under 90 % of the memory,
utilisation over 70 %; only then more hosts. The climb ends at the first rung that fails, since a later figure
means nothing without the earlier ones.

This file only judges: figures in, rungs out. :mod:`dtlab.diagnose.climb` measures the figures of a
configuration; ``figures_file.py`` reads those that somebody else measured.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from dtlab.diagnose.digits import beside, percent, percent_beside
from dtlab.diagnose.parity import ROUNDING
from dtlab.diagnose.utilisation import COMMUNICATION_LIMIT, LOW_BUSY_SHARE
from dtlab.errors import UserError

__all__ = ["RUNGS", "Broken", "Figures", "Ladder", "Limits", "Rung", "judge", "rung"]

Verdict = Literal["passed", "failed", "not given", "not reached"]
RUNGS = ("ranks talk", "1 % end to end", "ranks agree", "communication", "memory", "utilisation")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where each rung ends. Shares lie between 0 and 1."""

    data_share: float = 0.01
    loss_difference: float = ROUNDING
    """Largest relative difference of the losses at equal global batch and order: what rounding explains. The
    practitioners' 5 % passes runs without any gradient sync."""
    communication_share: float = COMMUNICATION_LIMIT
    memory_share: float = 0.90
    busy_share: float = LOW_BUSY_SHARE


class Broken(NamedTuple):
    """Why a rung gave no figure, or failed for a reason that no figure tells."""

    reason: str
    fix: str = ""
    """Better than the rung's usual one."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is known of a job; None is not known.

    Raises:
        UserError: a value out of its range.

    >>> Figures(ranks=8, communication_share=0.22).communication_share
    0.22
    """

    source: str = ""
    """Where the figures come from."""
    ranks: int | None = None
    """Ranks of the job."""
    ranks_answered: int | None = None
    """Ranks that took part in a sum over all ranks and got it right."""
    data_share: float | None = None
    """Share of the training rows that went from reading to a saved and tested model."""
    loss_difference: float | None = None
    """Largest relative difference between the losses of one rank and of several."""
    communication_share: float | None = None
    """Share of the step that gradients take to travel and that computing does not hide."""
    batch: int | None = None
    """Rows per rank that the job trains with."""
    largest_batch: int | None = None
    """Rows per rank that fit, found by doubling."""
    memory_share: float | None = None
    """Share of its memory that a rank uses."""
    busy_share: float | None = None
    """Share of the time in which a rank computes."""
    broken: Mapping[str, Broken] = field(default_factory=dict)
    """By rung: what broke there. Such a rung fails whatever its figure is."""
    fixes: Mapping[str, str] = field(default_factory=dict)
    """By rung: what the measurement proposes, should the rung fail."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise UserError(f"source = {self.source!r}: give a text that says where the figures come from")
        for name in ("ranks", "batch"):
            _within(name, getattr(self, name), 1, _MOST_COUNT, "a whole number from 1 to 1e15")
        for name in ("ranks_answered", "largest_batch"):
            _within(name, getattr(self, name), 0, _MOST_COUNT, "a whole number from 0 to 1e15")
        for name in ("data_share", "communication_share", "memory_share", "busy_share"):
            _within(name, getattr(self, name), 0, 1, "a share from 0 to 1, for example 0.22")
        _within("loss_difference", self.loss_difference, 0, math.inf, "a relative difference, 0 or more")
        if self.ranks is not None and self.ranks_answered is not None and self.ranks_answered > self.ranks:
            raise UserError(f"ranks_answered = {self.ranks_answered}: more than ranks = {self.ranks}")
        for name in (*self.broken, *self.fixes):
            if name not in RUNGS:
                raise UserError(f"there is no rung {name!r}; there are {', '.join(RUNGS)}")


_MOST_COUNT = 10**15
_COUNTS = ("ranks", "ranks_answered", "batch", "largest_batch")


def _within(name: str, value: float | None, least: float, most: float, what: str) -> None:
    if value is None:
        return
    kinds: Any = int if name in _COUNTS else int | float
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    # An infinite difference is that of a loss that is not finite; a NaN lies between no bounds.
    fits = is_number and least <= value <= most and (abs(value) < 1e300 or value == math.inf)
    if not fits:
        shown = "far too large" if isinstance(value, int) and abs(value) > 1e300 else reprlib.repr(value)
        raise UserError(f"{name} = {shown}: give {what}")


@dataclass(frozen=True)
class Rung:
    """One rung: what was found, what is asked for, and what to do when it fails."""

    name: str
    verdict: Verdict
    value: str
    limit: str
    fix: str = ""


@dataclass(frozen=True)
class Ladder:
    """The rungs of one job. Printing it gives the table.

    >>> print(judge(Figures(ranks=8, ranks_answered=8, data_share=1.0, communication_share=0.22)).verdict())
    stopped at rung 4 of 6, communication: 22.0 % of the step, limit: under 20 %
    """

    rungs: tuple[Rung, ...]
    source: str = ""

    @property
    def ready(self) -> bool:
        """Whether every rung was passed: more hosts may follow."""
        return all(one.verdict == "passed" for one in self.rungs)

    @property
    def stopped_at(self) -> Rung | None:
        """The first rung that failed."""
        return next((one for one in self.rungs if one.verdict == "failed"), None)

    def verdict(self) -> str:
        """The last line in words."""
        stopped = self.stopped_at
        if stopped is not None:
            place = f"rung {self.rungs.index(stopped) + 1} of {len(self.rungs)}"
            return f"stopped at {place}, {stopped.name}: {stopped.value}, limit: {stopped.limit}"
        if self.ready:
            return f"all {len(self.rungs)} rungs passed: ready for more hosts"
        unknown = ", ".join(one.name for one in self.rungs if one.verdict == "not given")
        return f"not ready: no figure for {unknown}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        stopped = self.stopped_at
        return {
            "ready": self.ready,
            "stopped_at": None if stopped is None else stopped.name,
            "verdict": self.verdict(),
            "source": self.source,
            "rungs": [asdict(one) for one in self.rungs],
        }

    def __str__(self) -> str:
        return "\n".join([*(line(one) for one in self.rungs), self.verdict()])


def line(one: Rung) -> str:
    """A rung as a line of the table, with its fix below when it failed."""
    limit = f"({one.limit})" if one.limit else ""
    text = f"{one.verdict:<11}  {one.name:<15}  {one.value}  {limit}".rstrip()
    return f"{text}\n{'':<13}fix: {one.fix}" if one.fix else text


def judge(figures: Figures, limits: Limits = Limits()) -> Ladder:
    """All rungs of a job; those above the first failed one are not reached.

    A rung without a figure neither passes nor ends the climb: the rungs above it are still judged, but
    without it the job is not ready.
    """
    rungs: list[Rung] = []
    for name in RUNGS:
        one = rung(name, figures, limits)
        if any(earlier.verdict == "failed" for earlier in rungs):
            one = Rung(name, "not reached", "", one.limit)
        rungs.append(one)
    return Ladder(tuple(rungs), figures.source)


def rung(name: str, figures: Figures, limits: Limits = Limits()) -> Rung:
    """Judge one rung.

    >>> rung("memory", Figures(memory_share=0.98)).verdict
    'failed'
    """
    value, is_fine, limit = _FOUND[name](figures, limits)
    fix = figures.fixes.get(name) or _FIXES[name]
    broken = figures.broken.get(name)
    if broken is not None:
        return Rung(name, "failed", broken.reason, limit, broken.fix or fix)
    if is_fine is None:
        return Rung(name, "not given", "no figure", limit)
    if is_fine:
        return Rung(name, "passed", value, limit)
    return Rung(name, "failed", value, limit, fix)


Found = tuple[str, bool | None, str]
"""The figure in words, whether it passes (None: not known), and the limit in words."""


def _talk(f: Figures, _: Limits) -> Found:
    if f.ranks_answered is None or f.ranks is None:
        return "", None, "every rank"
    return f"{f.ranks_answered} of {f.ranks} ranks added up", f.ranks_answered == f.ranks, "every rank"


def _end_to_end(f: Figures, limits: Limits) -> Found:
    limit = f"at least {percent(limits.data_share)}"
    if f.data_share is None:
        return "", None, limit
    fine = f.data_share >= limits.data_share
    share = percent_beside(f.data_share, limits.data_share)
    return f"{share} of the rows, from reading to a saved model", fine, limit


def _agree(f: Figures, limits: Limits) -> Found:
    limit = f"at most {limits.loss_difference:g}"
    if f.loss_difference is None:
        return "", None, limit
    fine = f.loss_difference <= limits.loss_difference
    shown = beside(f.loss_difference, limits.loss_difference)
    return f"the losses differ by {shown} of their value", fine, limit


def _communication(f: Figures, limits: Limits) -> Found:
    limit = f"under {percent(limits.communication_share)}"
    if f.communication_share is None:
        return "", None, limit
    fine = f.communication_share < limits.communication_share
    return f"{percent_beside(f.communication_share, limits.communication_share)} of the step", fine, limit


def _memory(f: Figures, limits: Limits) -> Found:
    limit = f"under {percent(limits.memory_share)}"
    is_too_large = f.batch is not None and f.largest_batch is not None and f.batch > f.largest_batch
    if is_too_large:
        return f"{f.largest_batch:,} rows per rank fit, the job has {f.batch:,}", False, limit
    if f.memory_share is None:
        return "", None, limit
    value = f"{percent_beside(f.memory_share, limits.memory_share)} of the memory"
    if f.largest_batch is not None:
        value += f", up to {f.largest_batch:,} rows per rank fit"
    return value, f.memory_share < limits.memory_share, limit


def _utilisation(f: Figures, limits: Limits) -> Found:
    limit = f"over {percent(limits.busy_share)}"
    if f.busy_share is None:
        return "", None, limit
    share = percent_beside(f.busy_share, limits.busy_share)
    return f"{share} of the time", f.busy_share > limits.busy_share, limit


_FOUND = dict(zip(RUNGS, (_talk, _end_to_end, _agree, _communication, _memory, _utilisation), strict=True))
_FIXES = {
    "ranks talk": "run dtlab doctor: it names what keeps ranks on this machine from meeting",
    "1 % end to end": "read the first line of the error; dtlab train with --run.max-steps 1 repeats the run",
    "ranks agree": (
        "wrap the model in dtlab.data_parallel, give each rank its own rows of one global batch "
        "(GlobalBatchSampler), and divide by the rows of all ranks"
    ),
    "communication": (
        "make a step longer: raise optim.global_batch (then look at the rate again) or accumulate with "
        "optim.micro_batch; else take fewer ranks or a faster link between them"
    ),
    "memory": (
        "set optim.micro_batch to what fits, then precision.name = 'bf16' or "
        "precision.checkpoint_activations; if weights and optimizer alone do not fit, shard them"
    ),
    "utilisation": (
        "a rank waits, mostly for data: set data.cache, raise run.prefetch or the batch, and look at the "
        "profile of a step"
    ),
}
