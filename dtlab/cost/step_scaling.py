"""Throughput and efficiency from few ranks to many, by the step model (lessons 01 and 09).

- *Strong* scaling keeps the global batch: each rank has fewer samples, the messages stay as they are.
- *Weak* scaling keeps the batch of a rank: the global batch grows, and the learning rate must follow.

Only the number of data-parallel ranks changes; tensor and pipeline parallelism stay as the strategy says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dtlab.cost.machines import Machine
from dtlab.cost.presets import Preset
from dtlab.cost.step_time import StepTime, step_time
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError


@dataclass(frozen=True)
class ScalingPoint:
    """The step on `ranks` ranks; `efficiency` is throughput a rank over that of the first point."""

    ranks: int
    step: StepTime
    efficiency: float

    @property
    def samples_per_second(self) -> float:
        return self.step.samples_per_second


def step_scaling(
    model: str | Preset,
    strategy: Strategy,
    on: str | Machine,
    ranks: Sequence[int],
    *,
    keeps: Literal["global batch", "batch of a rank"] = "global batch",
    seq_len: int | None = None,
) -> list[ScalingPoint]:
    """The step of `model` for each number of `ranks`, first to last.

    Args:
        strategy: its data-parallel ranks, micro-batch and micro-batches give the global batch to keep, or the
            batch of a rank; a micro-batch larger than what is left for a rank becomes smaller.

    Raises:
        UserError: a number of ranks that tp * pp does not divide, a global batch that it does not divide, and
            what `step_time` refuses.

    >>> points = step_scaling(
    ...     "GPT 320M", Strategy(micro_batch=8, num_micro_batches=8, precision="amp"), "p4d.24xlarge",
    ...     ranks=(1, 8, 16),
    ... )
    >>> [f"{point.ranks}: {point.efficiency:.0%}" for point in points]
    ['1: 100%', '8: 94%', '16: 82%']
    """
    if not ranks:
        raise UserError("ranks is empty: give at least one number")
    points: list[ScalingPoint] = []
    for count in ranks:
        step = step_time(model, _on(strategy, count, keeps), on, seq_len=seq_len)
        each = step.samples_per_second / count
        first = points[0].samples_per_second / points[0].ranks if points else each
        points.append(ScalingPoint(count, step, each / first))
    return points


def _on(strategy: Strategy, ranks: int, keeps: str) -> Strategy:
    cut = strategy.tp * strategy.pp
    if type(ranks) is not int or ranks < 1 or ranks % cut:
        raise UserError(f"ranks = {ranks!r}: give a multiple of tp * pp = {cut}")
    dp = ranks // cut
    shards, replicas = (dp, 1) if strategy.zero == 3 else (1, dp)
    if keeps == "batch of a rank":
        return replace(strategy, dp_shard=shards, dp_replicate=replicas)
    if keeps != "global batch":
        raise UserError(f"keeps = {keeps!r}: use 'global batch' or 'batch of a rank'")
    batch = strategy.global_batch
    if batch % dp:
        raise UserError(
            f"ranks = {ranks}: {dp} data-parallel ranks do not divide the global batch of {batch}"
        )
    local = batch // dp
    micro_batch = next(size for size in range(min(strategy.micro_batch, local), 0, -1) if local % size == 0)
    return replace(
        strategy, dp_shard=shards, dp_replicate=replicas, micro_batch=micro_batch,
        num_micro_batches=local // micro_batch,
    )  # fmt: skip
