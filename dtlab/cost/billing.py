"""Price x time as the cloud bills it: whole instances, per second, at least 60 s. The bill of every lesson.

SageMaker's own statement: cost = billable seconds x instances x rate. EC2 bills Linux machines per second
with a minimum of 60 s. Not in the bill: storage, transfer, idle notebooks and restarts (lesson 14).
"""

import math
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from dtlab.cost import catalogue
from dtlab.cost.catalogue import DEFAULT_REGION, Instance, Service
from dtlab.cost.prices import Price
from dtlab.errors import UserError

MINIMUM_SECONDS = 60.0
MOST_SECONDS = 1000 * 365 * 86400.0
MOST_INSTANCES = 1_000_000
# SageMaker publishes no spot price; savings of 54 to 78 % were logged, so the fraction is the user's to set.
DEFAULT_SPOT_FRACTION = 0.35
BillKind = Literal["sagemaker", "ec2", "spot"]


@dataclass(frozen=True)
class Bill:
    """What a run costs. `usd` is exact; `cents` is what would be charged.

    `usd_per_gpu_hour` divides by the cards of the instance: the price is that of the whole machine.
    """

    instance: Instance
    count: int
    seconds: float
    billed_seconds: float
    kind: BillKind
    price: Price

    @property
    def usd(self) -> float:
        return self.price.usd_per_second * self.billed_seconds * self.count

    @property
    def cents(self) -> int:
        return int(_rounded(self.usd, 2) * 100)

    @property
    def usd_per_gpu_hour(self) -> float:
        if self.instance.gpus == 0:
            raise UserError(f"instance={self.instance.name!r} has no GPU: there is no price per GPU-hour")
        return self.price.usd_per_hour / self.instance.gpus

    def line(self) -> str:
        """The bill in one line, with the price's region and date.

        >>> cost("ml.g5.12xlarge", 90).line()
        '$0.18 = 1 x ml.g5.12xlarge (4 A10G) x 90 s at $7.09/h, on-demand, us-east-1, 2026-08'
        """
        name = self.instance.sagemaker_name if self.kind == "sagemaker" else self.instance.name
        cards = f" ({self.instance.gpus} {self.instance.gpu or 'GPU'})" if self.instance.gpus else ""
        use = f"{self.count} x {name}{cards} x {_duration(self.billed_seconds)}"
        text = f"{_usd(self.usd)} = {use} at {self.price.line()}"
        if self.seconds and self.billed_seconds > self.seconds:
            text += f"; {self.seconds:.4g} s of use, billed for the minimum of {MINIMUM_SECONDS:g} s"
        if self.instance.retired:
            text += f"; no longer sold, today {' or '.join(self.instance.successors)}"
        return text


def cost(
    instance: str | Instance,
    seconds: float,
    count: int = 1,
    kind: BillKind = "sagemaker",
    region: str = DEFAULT_REGION,
    *,
    spot_fraction: float | None = None,
) -> Bill:
    """The bill for `count` machines that each run for `seconds`.

    Args:
        instance: a name from the catalogue ("ml.g5.12xlarge", "g5.12xlarge"), or an `Instance` of your own.
        seconds: use in seconds; 0 costs nothing, anything shorter than 60 s is billed as 60 s.
        kind: "sagemaker" and "ec2" are on-demand; "spot" is EC2 spot: the median over zones of your price
            file or the catalogue's snapshot, or `spot_fraction` (default 0.35) of on-demand. Interruptions
            and redone work are not in it.

    Raises:
        UserError: a value is out of range, or no price is known; an unknown price is never taken as 0.

    >>> round(cost("ml.g4dn.12xlarge", 3600, count=2).usd, 2)
    9.78
    """
    found = _instance(instance)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UserError(f"seconds={seconds!r} is not a number: give the seconds of use")
    if not seconds >= 0 or seconds == math.inf:  # a whole number may be too large to be a float
        raise UserError(f"seconds={seconds!r} is not a time: give 0 or more")
    if seconds > MOST_SECONDS:
        raise UserError(f"seconds={str(seconds)[:20]} is more than a thousand years: give the seconds of use")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UserError(f"count={count!r} is not a number of instances: give a whole number of 1 or more")
    if count > MOST_INSTANCES:
        raise UserError(f"count={str(count)[:20]} is too many instances: give {MOST_INSTANCES:,} or fewer")
    billed = 0.0 if seconds == 0 else max(float(seconds), MINIMUM_SECONDS)
    price = _hourly_price(found, kind, region, spot_fraction)
    if price.covers == "gpu":
        raise UserError(
            f"instance={found.name!r} has a price for its GPU only: add the machine with prices.with_machine"
        )
    return Bill(found, count, float(seconds), billed, kind, price)


@dataclass(frozen=True)
class Allocation:
    """Whole instances for a number of GPUs, and how many cards stay idle."""

    instances: int
    gpus_used: int
    gpus_idle: int


def gpus_to_instances(instance: str | Instance, gpus: int) -> Allocation:
    """How many whole machines hold `gpus` cards. A price is that of a machine, so idle cards are paid for.

    >>> gpus_to_instances("g5.12xlarge", 6)
    Allocation(instances=2, gpus_used=6, gpus_idle=2)
    """
    found = _instance(instance)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise UserError(f"gpus={gpus!r} is not a number of GPUs: give a whole number of 1 or more")
    if found.gpus == 0:
        raise UserError(f"instance={found.name!r} has no GPU: name a type with GPUs")
    whole = math.ceil(gpus / found.gpus)
    return Allocation(whole, gpus, whole * found.gpus - gpus)


@dataclass(frozen=True)
class SpotComparison:
    """Spot beside on-demand. `saving_usd` and `saving_share` are negative where spot is dearer."""

    on_demand_usd: float
    spot_usd: float
    recommendation: Literal["spot", "on-demand"]

    @property
    def saving_usd(self) -> float:
        return self.on_demand_usd - self.spot_usd

    @property
    def saving_share(self) -> float:
        return self.saving_usd / self.on_demand_usd


def compare_spot(on_demand_usd_per_hour: float, spot_usd_per_hour: float, hours: float) -> SpotComparison:
    """Compare the two for a run that is not interrupted. Spot must be cheaper to be recommended.

    >>> round(compare_spot(1.00, 1.20, hours=10).saving_usd, 2)
    -2.0
    """
    given = {
        "on_demand_usd_per_hour": on_demand_usd_per_hour,
        "spot_usd_per_hour": spot_usd_per_hour,
        "hours": hours,
    }
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value <= 0:
            raise UserError(f"{name}={value!r} cannot be compared: give a number above 0")
    on_demand, spot = on_demand_usd_per_hour * hours, spot_usd_per_hour * hours
    return SpotComparison(on_demand, spot, "spot" if spot < on_demand else "on-demand")


def _instance(given: str | Instance) -> Instance:
    return given if isinstance(given, Instance) else catalogue.instance(given)


def _hourly_price(found: Instance, kind: str, region: str, spot_fraction: float | None) -> Price:
    if kind in ("sagemaker", "ec2"):
        if spot_fraction is not None:
            raise UserError(f"spot_fraction={spot_fraction!r} goes with kind='spot', not with kind={kind!r}")
        service: Service = "sagemaker" if kind == "sagemaker" else "ec2"
        return found.price(service, region)
    if kind != "spot":
        raise UserError(f"kind={kind!r} is unknown: use 'sagemaker', 'ec2' or 'spot'")
    if spot_fraction is None and (known := found.spot_in(region)) is not None:
        return known.price()
    fraction = DEFAULT_SPOT_FRACTION if spot_fraction is None else spot_fraction
    if not 0 < fraction <= 2:
        raise UserError(
            f"spot_fraction={fraction!r} is out of range: give a share of on-demand above 0 and up to 2"
        )
    base = found.price("ec2", region)
    return replace(
        base,
        usd=base.usd * fraction,
        kind="spot estimate",
        note=f"{fraction:g} of on-demand, interruptions not counted",
    )


def _usd(usd: float) -> str:
    return f"${_rounded(usd, 2):,}" if usd >= 0.1 or usd == 0 else f"${_rounded(usd, 4)}"


def _rounded(usd: float, places: int) -> Decimal:
    # Twelve digits first, so that 1.515, which binary holds as 1.51499..., rounds as a bill does.
    return Decimal(f"{usd:.12g}").quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.4g} s"
    return f"{seconds / 60:,.1f} min" if seconds < 3600 else f"{seconds / 3600:,.2f} h"
