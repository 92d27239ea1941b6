"""When does each action of a schedule run, how long do ranks idle, what do they hold meanwhile? (lesson 08)

``simulate`` gives a ``PipelineTimeline``. A run on ranks records the same kind of object, so one figure draws
both, and their bubbles stand beside each other. No torch in this file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule
from dtlab.parallel.legality import check_schedule, execution_order, needs

__all__ = ["PipelineTimeline", "Span", "mean_durations", "replay", "simulate"]


class Span(NamedTuple):
    """One action with its start and end, in seconds (or in whatever unit the durations were given)."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class PipelineTimeline:
    """The spans of every rank, in the order in which the rank ran them; one step.

    Attributes:
        name: of the schedule, or of the run.
        ranks: for each rank its spans.
    """

    name: str
    ranks: tuple[tuple[Span, ...], ...]

    @property
    def start(self) -> float:
        """When the first action of all starts."""
        return min(spans[0].start for spans in self.ranks if spans)

    @property
    def makespan(self) -> float:
        """From the first start to the last end of all ranks."""
        return max(spans[-1].end for spans in self.ranks if spans) - self.start

    @property
    def busy(self) -> list[float]:
        """For each rank, how long it computes."""
        return [sum(span.end - span.start for span in spans) for spans in self.ranks]

    @property
    def bubble_share(self) -> float:
        """Share of the time of all ranks in which they do not compute."""
        return 1 - sum(self.busy) / (len(self.ranks) * self.makespan)

    def live(self, rank: int) -> list[tuple[float, int]]:
        """(time, activations alive from then on): a stage and a micro-batch count 1 from forward to backward.

        A backward in two parts ends with W: the gradients of the weights still need the activations.
        """
        changes: list[tuple[float, int]] = []
        for action, start, end in self.ranks[rank]:
            if action.kind is Kind.FORWARD:
                changes.append((start, 1))
            elif action.kind is not Kind.BACKWARD_INPUT:
                changes.append((end, -1))
        alive, steps = 0, [(self.start, 0)]
        for time, change in changes:
            alive += change
            steps.append((time, alive))
        return steps

    @property
    def peak_live(self) -> list[int]:
        """For each rank, the most activations alive at once."""
        return [max(alive for _, alive in self.live(rank)) for rank in range(len(self.ranks))]


def simulate(
    schedule: Schedule,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    *,
    backward_input: float | Sequence[float] | None = None,
    transfer: float = 0.0,
) -> PipelineTimeline:
    """Run ``schedule`` on paper: an action starts when its rank is free and what it needs has arrived.

    Args:
        forward, backward: duration of one stage and one micro-batch; a number, or one for each stage.
        backward_input: the part of ``backward`` that I takes, W takes the rest; default: half.
        transfer: time of a message between two ranks; ranks compute meanwhile.

    Raises:
        UserError: an illegal schedule, a negative duration, or not one duration for each stage.

    >>> from dtlab.parallel.schedules import gpipe
    >>> timeline = simulate(gpipe(2, 4))
    >>> timeline.makespan, round(timeline.bubble_share, 3), timeline.peak_live
    (15.0, 0.2, [4, 4])
    """
    check_schedule(schedule)
    durations = _durations(schedule.num_stages, forward, backward, backward_input)
    if not transfer >= 0:
        raise UserError(f"transfer = {transfer}: give a time of 0 or more")
    return _timed(schedule, lambda action: durations[action.kind][action.stage], transfer)


def replay(schedule: Schedule, measured: PipelineTimeline) -> PipelineTimeline:
    """``schedule`` with the *measured* duration of each action, and nothing waiting but for what it needs.

    For ranks that outnumber the cores: measure with ``pipeline(..., clock=time.thread_time)``, which leaves
    out the time in which another rank had the core. What is left is a run on as many cards as ranks with
    messages that cost nothing.

    Args:
        measured: a step of ``schedule``; only the lengths of its spans count.

    Raises:
        UserError: an illegal schedule, or actions that are not its own.

    >>> from dtlab.parallel.schedules import gpipe, one_f_one_b
    >>> simulated = simulate(gpipe(2, 4), [1, 2], [2, 3])
    >>> replay(gpipe(2, 4), simulated) == simulated
    True
    >>> replay(one_f_one_b(2, 4), simulated).peak_live  # the same actions in another order
    [2, 1]
    """
    check_schedule(schedule)
    durations = {span.action: span.end - span.start for spans in measured.ranks for span in spans}
    if durations.keys() != {action for actions in schedule.ranks for action in actions}:
        raise UserError(f"measured: {measured.name!r} did not run the actions of {schedule.name!r}")
    return _timed(schedule, durations.__getitem__, 0.0)


def _timed(schedule: Schedule, duration: Callable[[Action], float], transfer: float) -> PipelineTimeline:
    ended: dict[Action, float] = {}
    free = [0.0] * schedule.num_ranks
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    for rank, action in execution_order(schedule):
        start = free[rank]
        for group in needs(action, schedule.num_stages):
            needed = next(one for one in group if one in ended)
            away = schedule.rank_of(needed.stage) != rank
            start = max(start, ended[needed] + (transfer if away else 0.0))
        free[rank] = ended[action] = start + duration(action)
        spans[rank].append(Span(action, start, free[rank]))
    return PipelineTimeline(schedule.name, tuple(map(tuple, spans)))


def mean_durations(timeline: PipelineTimeline) -> dict[str, list[float]]:
    """Mean duration of each stage, by kind, as arguments of ``simulate``: a run with the waiting taken out.

    >>> from dtlab.parallel.schedules import gpipe
    >>> mean_durations(simulate(gpipe(2, 4), [1, 2], [2, 3]))
    {'forward': [1.0, 2.0], 'backward': [2.0, 3.0]}
    """
    found: dict[Kind, dict[int, list[float]]] = {kind: {} for kind in Kind}
    for spans in timeline.ranks:
        for action, start, end in spans:
            found[action.kind].setdefault(action.stage, []).append(end - start)

    def means(kind: Kind) -> list[float]:
        return [sum(times) / len(times) for _, times in sorted(found[kind].items())]

    if found[Kind.BACKWARD]:
        return {"forward": means(Kind.FORWARD), "backward": means(Kind.BACKWARD)}
    first, second = means(Kind.BACKWARD_INPUT), means(Kind.BACKWARD_WEIGHT)
    whole = [a + b for a, b in zip(first, second, strict=True)]
    return {"forward": means(Kind.FORWARD), "backward": whole, "backward_input": first}


def _durations(
    num_stages: int,
    forward: float | Sequence[float],
    backward: float | Sequence[float],
    backward_input: float | Sequence[float] | None,
) -> Mapping[Kind, list[float]]:
    def each(name: str, given: float | Sequence[float]) -> list[float]:
        values = [float(given)] * num_stages if isinstance(given, int | float) else [float(v) for v in given]
        if len(values) != num_stages:
            raise UserError(f"{name}: {len(values)} durations for {num_stages} stages; give one for each")
        if not all(0 <= value < float("inf") for value in values):
            raise UserError(f"{name} = {given}: give durations of 0 or more")
        return values

    whole = each("backward", backward)
    part = [v / 2 for v in whole] if backward_input is None else each("backward_input", backward_input)
    if any(i > b for i, b in zip(part, whole, strict=True)):
        raise UserError(f"backward_input = {backward_input}: it is a part of backward = {backward}")
    return {
        Kind.FORWARD: each("forward", forward),
        Kind.BACKWARD: whole,
        Kind.BACKWARD_INPUT: part,
        Kind.BACKWARD_WEIGHT: [b - i for b, i in zip(whole, part, strict=True)],
    }
