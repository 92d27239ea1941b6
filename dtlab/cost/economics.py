"""From samples per second to dollars per epoch, per sample and to a target, for 1 to N cards (lesson 14).

The bill of a run is price x time x whole machines; a row here divides it. Dollars per epoch and per sample
are shares of a longer run, so the minimum of 60 s is in `usd_to_target` alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtlab.cost.billing import BillKind, cost, gpus_to_instances
from dtlab.cost.catalogue import DEFAULT_REGION
from dtlab.cost.presets import Preset
from dtlab.cost.step_time import step_time
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError


@dataclass(frozen=True)
class Measured:
    """Samples per second of one setup: so many cards on `instances` machines of a type."""

    instance: str
    instances: int
    gpus: int
    samples_per_second: float


@dataclass(frozen=True)
class Economics:
    """One setup in money.

    - `speedup` is over the setup with the fewest cards, `efficiency` that speed-up over the ratio of cards.
    - `seconds_to_target`, `usd_to_target`: of `epochs` epochs, billed by the second with the minimum.
    """

    setup: Measured
    speedup: float
    efficiency: float
    epoch_seconds: float
    usd_per_epoch: float
    usd_per_sample: float
    seconds_to_target: float
    usd_to_target: float
    price_line: str


def measured_on(instance: str, samples_per_second: Mapping[int, float]) -> list[Measured]:
    """Setups of one machine type from cards -> samples per second; machines are whole.

    >>> measured_on("ml.g5.12xlarge", {6: 100.0})
    [Measured(instance='ml.g5.12xlarge', instances=2, gpus=6, samples_per_second=100.0)]
    """
    return [
        Measured(instance, gpus_to_instances(instance, gpus).instances, gpus, speed)
        for gpus, speed in sorted(samples_per_second.items())
    ]


def predicted_on(
    instance: str, model: str | Preset, batch_per_gpu: int, gpus: Sequence[int]
) -> list[Measured]:
    """Setups of one machine type with the samples per second that `step_time` predicts for plain DDP.

    For other ways to cut the model, and for the best of them, see `planner`.

    Args:
        model: a preset or its name; its samples are images, rows or sequences.
        batch_per_gpu: samples of a step on each card, so that the global batch grows with the cards.

    >>> setups = predicted_on("ml.g5.12xlarge", "ResNet-50", 64, [1, 4])
    >>> [setup.gpus for setup in setups], setups[1].samples_per_second > setups[0].samples_per_second
    ([1, 4], True)
    """
    found = {}
    for ranks in gpus:
        strategy = Strategy(dp_replicate=ranks, micro_batch=batch_per_gpu, precision="amp")
        found[ranks] = step_time(model, strategy, instance).samples_per_second
    return measured_on(instance, found)


def economics(
    setups: Sequence[Measured],
    samples_per_epoch: float,
    epochs: float = 1.0,
    kind: BillKind = "sagemaker",
    region: str = DEFAULT_REGION,
) -> list[Economics]:
    """Every setup in money, in order of cards.

    Args:
        samples_per_epoch: samples of one pass.
        epochs: passes until the target is reached. It is taken as the same for every setup: with a larger
            global batch that has to be checked, not assumed.

    Raises:
        UserError: no setup, a number that cannot be, an unknown price.

    >>> rows = economics(measured_on("ml.g5.12xlarge", {1: 100.0, 4: 360.0}), samples_per_epoch=360_000)
    >>> [(row.setup.gpus, row.efficiency, round(row.usd_per_epoch, 3)) for row in rows]
    [(1, 1.0, 7.09), (4, 0.9, 1.969)]
    """
    if not setups:
        raise UserError("setups is empty: give at least one measured setup")
    _check(samples_per_epoch=samples_per_epoch, epochs=epochs)
    for setup in setups:
        _check(samples_per_second=setup.samples_per_second)
        if isinstance(setup.gpus, bool) or not isinstance(setup.gpus, int) or setup.gpus < 1:
            raise UserError(f"gpus={setup.gpus!r} is not a number of GPUs: give a whole number of 1 or more")
    ordered = sorted(setups, key=lambda setup: setup.gpus)
    base = ordered[0]
    rows = []
    for setup in ordered:
        speedup = setup.samples_per_second / base.samples_per_second
        seconds = samples_per_epoch / setup.samples_per_second
        hour = cost(setup.instance, 3600, count=setup.instances, kind=kind, region=region)
        whole = cost(setup.instance, seconds * epochs, count=setup.instances, kind=kind, region=region)
        usd = hour.usd * seconds / 3600
        rows.append(
            Economics(
                setup=setup,
                speedup=speedup,
                efficiency=speedup / (setup.gpus / base.gpus),
                epoch_seconds=seconds,
                usd_per_epoch=usd,
                usd_per_sample=usd / samples_per_epoch,
                seconds_to_target=seconds * epochs,
                usd_to_target=whole.usd,
                price_line=hour.price.line(),
            )
        )
    return rows


def cheapest(rows: Sequence[Economics], deadline_seconds: float = math.inf) -> Economics:
    """The setup that reaches the target with the fewest dollars and in time; of equals the faster.

    Raises:
        UserError: no setup is in time; the message says what the fastest needs.
    """
    in_time = [row for row in rows if row.seconds_to_target <= deadline_seconds]
    if not in_time:
        best = min(rows, key=lambda row: row.seconds_to_target)
        raise UserError(
            f"deadline_seconds={deadline_seconds:g}: the fastest setup, {best.setup.gpus} GPUs, needs "
            f"{best.seconds_to_target:,.0f} s; give more time or more cards"
        )
    return min(in_time, key=lambda row: (row.usd_to_target, row.seconds_to_target))


def fastest(rows: Sequence[Economics], budget_usd: float = math.inf) -> Economics:
    """The setup that reaches the target soonest within a budget; of equals the cheaper.

    Raises:
        UserError: no setup is within the budget; the message says what the cheapest costs.
    """
    within = [row for row in rows if row.usd_to_target <= budget_usd]
    if not within:
        best = min(rows, key=lambda row: row.usd_to_target)
        raise UserError(
            f"budget_usd={budget_usd:g}: the cheapest setup, {best.setup.gpus} GPUs, costs "
            f"${best.usd_to_target:,.2f}; give more money or fewer epochs"
        )
    return min(within, key=lambda row: (row.seconds_to_target, row.usd_to_target))


def _check(**given: float) -> None:
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise UserError(f"{name}={value!r} is not an amount: give a number above 0")
