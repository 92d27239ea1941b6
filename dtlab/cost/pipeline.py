"""Pipelines in closed form: bubble, micro-batches in flight, parameters of a stage (lesson 08). No torch.

Symbols: p ranks of a pipeline, m micro-batches of a step, v stages on each rank.

- The bubble is a share of ALL the time of the ranks, `(p-1)/(v*m+p-1)`. Papers that write `(p-1)/m` divide by
  the time without bubble: 37.5 % for p = 4, m = 8, where the share of all is 27.3 %.
- Forward and backward of every stage are taken as equal on all ranks, and messages as free: a real pipeline
  waits longer.

GPipe: Huang et al., arXiv 1811.06965. 1F1B and interleaving: Narayanan et al., arXiv 2104.04473, section 2.2.
Zero bubble: Qi et al., arXiv 2401.10241.
"""

from collections.abc import Sequence
from itertools import accumulate, count
from typing import Literal

from dtlab.cost.parameters import decoder_units
from dtlab.cost.presets import Preset, preset
from dtlab.errors import UserError

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]


def micro_batches_per_round(num_ranks: int, num_micro_batches: int) -> int:
    """Micro-batches that an interleaved schedule takes through one stage before the rank's next stage.

    There are `max(1, m // p)` rounds of equal size; m = p*k gives rounds of p, as in the paper.

    Raises:
        UserError: the rounds do not divide the micro-batches.

    >>> micro_batches_per_round(4, 8), micro_batches_per_round(4, 10), micro_batches_per_round(4, 3)
    (4, 5, 3)
    """
    _check(num_ranks, num_micro_batches, 1)
    rounds = max(1, num_micro_batches // num_ranks)
    if num_micro_batches % rounds:
        below, above = (
            next(m for m in count(num_micro_batches + way, way) if m % max(1, m // num_ranks) == 0)
            for way in (-1, 1)
        )
        raise UserError(
            f"num_micro_batches = {num_micro_batches} with {num_ranks} ranks: interleaved and zero-bubble "
            f"schedules take them in max(1, {num_micro_batches} // {num_ranks}) = {rounds} equal rounds, and "
            f"{rounds} does not divide {num_micro_batches}; take {below} or {above}"
        )
    return num_micro_batches // rounds


def bubble_share(num_ranks: int, num_micro_batches: int, stages_per_rank: int = 1) -> float:
    """Share of the ranks' time that is idle in GPipe, 1F1B (v = 1) and interleaved 1F1B (v > 1).

    `(p-1)/(v*m+p-1)`, at least 0 and below 1.

    Raises:
        UserError: a number below 1; interleaved, m below p or m that its rounds do not divide: there the
            formula does not hold, ask `dtlab.parallel.simulate`.

    >>> [round(bubble_share(4, m), 4) for m in (2, 8)], round(bubble_share(4, 8, 2), 4)
    ([0.6, 0.2727], 0.1579)
    """
    _check(num_ranks, num_micro_batches, stages_per_rank)
    if stages_per_rank > 1:
        if num_micro_batches < num_ranks:
            raise UserError(
                f"num_micro_batches = {num_micro_batches} is below the {num_ranks} ranks: the formula of the "
                f"interleaved bubble starts at {num_ranks}; simulate the schedule, or take more micro-batches"
            )
        micro_batches_per_round(num_ranks, num_micro_batches)
    return (num_ranks - 1) / (stages_per_rank * num_micro_batches + num_ranks - 1)


def live_activations(
    schedule: ScheduleName,
    num_ranks: int,
    num_micro_batches: int,
    rank: int = 0,
    stages_per_rank: int | None = None,
) -> int:
    """Most activations that a rank holds at once, in units of one stage and one micro-batch.

    - "gpipe": m. "1f1b": min(m, p - rank).
    - "interleaved": min(v*m, (v-1)*n + 2*(p - 1 - rank) + 1), n micro-batches a round.
    - "zero_bubble": min(v*m, (v-1)*n + p): the same on every rank, since weight gradients wait.
    - "zbv": min(2*m, 2*p, m + 1 + rank), with 2 stages on every rank.

    A rank with v stages holds 1/v of its layers in each: divide by v to compare memory.

    Raises:
        UserError: an unknown schedule, or numbers that do not fit it.

    >>> [live_activations(name, 4, 8) for name in ("gpipe", "1f1b", "zero_bubble")]
    [8, 4, 4]
    """
    chunks = stages_per_rank or {"interleaved": 2, "zbv": 2}.get(schedule, 1)
    _check(num_ranks, num_micro_batches, chunks)
    if not 0 <= rank < num_ranks:
        raise UserError(f"rank = {rank}: the pipeline has ranks 0 to {num_ranks - 1}")
    if schedule == "gpipe":
        return chunks * num_micro_batches
    if schedule == "1f1b":
        return min(num_micro_batches, num_ranks - rank)
    if schedule == "zbv":
        return min(2 * num_micro_batches, 2 * num_ranks, num_micro_batches + 1 + rank)
    if schedule not in ("interleaved", "zero_bubble"):
        raise UserError(f"schedule = {schedule!r}: choose from gpipe, 1f1b, interleaved, zero_bubble, zbv")
    ahead = (chunks - 1) * micro_batches_per_round(num_ranks, num_micro_batches)
    ahead += 2 * (num_ranks - 1 - rank) + 1 if schedule == "interleaved" else num_ranks
    return min(chunks * num_micro_batches, ahead)


def balanced_cuts(weights: Sequence[float], num_stages: int) -> list[tuple[int, int]]:
    """Cut a row of units into stages so that the heaviest stage is as light as possible.

    Returns (first unit, one past the last unit) of each stage; no stage is empty.

    Raises:
        UserError: fewer units than stages, a negative or non-finite weight.

    >>> balanced_cuts([5, 1, 1, 1, 1, 1], 2)
    [(0, 1), (1, 6)]
    """
    at_least_one(num_stages=num_stages)
    if len(weights) < num_stages:
        raise UserError(
            f"num_stages = {num_stages}, but the model has {len(weights)} units to deal out: take at most "
            f"{len(weights)} stages"
        )
    if not all(0 <= weight < float("inf") for weight in weights):
        raise UserError(f"weights = {list(weights)}: give numbers of 0 or more")
    sums = [0.0, *accumulate(weights)]
    # best[end]: heaviest stage, then squares, of the best cut of the first `end` units; and where it cuts.
    best: list[tuple[float, float, list[int]] | None] = [(0.0, 0.0, [])] + [None] * len(weights)
    for stage in range(num_stages):
        following: list[tuple[float, float, list[int]] | None] = [None]
        for end in range(1, len(weights) + 1):
            least: tuple[float, float, list[int]] | None = None
            # Backwards, the last stage only grows: beyond the heaviest found there is nothing better.
            for start in range(end - 1, stage - 1, -1) if stage else (0,):
                done, last = best[start], sums[end] - sums[start]
                if least is not None and last > least[0]:
                    break
                if done is not None:
                    option = max(done[0], last), done[1] + last**2, done[2]
                    least = option if least is None or option < least else least
            following.append(None if least is None else (least[0], least[1], [*least[2], end]))
        best = following
    found = best[-1]
    assert found is not None
    return list(zip([0, *found[2][:-1]], found[2], strict=True))


def stage_parameters(model: str | Preset, num_stages: int) -> list[int]:
    """Parameters of each stage of a decoder that is cut by parameters; the tied matrix counts in both ends.

    Units are the embedding `V*h + s*h`, the blocks, and the head: final norm and output matrix.

    Raises:
        UserError: a preset that is no decoder with equal blocks.

    >>> [round(n / 1e6, 1) for n in stage_parameters("GPT 320M", 2)]
    [168.8, 167.8]
    """
    weights = unit_parameters(model)
    return [sum(weights[start:end]) for start, end in balanced_cuts(weights, num_stages)]


def unit_parameters(model: str | Preset) -> list[int]:
    """Parameters of embedding, each block, and head of a preset of family "gpt" (`decoder_units`)."""
    found = model if isinstance(model, Preset) else preset(model)
    shape = (found.layers, found.hidden, found.vocab, found.seq_len, found.ffn)
    if found.family == "gpt":
        for biases in (False, True):
            counts = decoder_units(*shape, biases=biases)
            if sum(counts) - found.vocab * found.hidden == found.parameters:
                return counts
    raise UserError(f"preset={found.name!r}: stages are counted for tied decoders of family 'gpt'")


def _check(num_ranks: int, num_micro_batches: int, stages_per_rank: int) -> None:
    at_least_one(num_ranks=num_ranks, num_micro_batches=num_micro_batches, stages_per_rank=stages_per_rank)


def at_least_one(**given: int) -> None:
    """UserError for the first of the named values that is no whole number of 1 or more."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} = {value!r}: give a whole number of 1 or more")
