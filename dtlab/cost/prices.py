"""A price and everything that must be said with it: unit, region, date, source and kind."""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from dtlab.errors import UserError

Kind = Literal["on-demand", "estimate", "spot estimate", "retired"]
HOURS_PER_DAY = 24
HOURS_PER_MONTH = 730  # the month that cloud price lists use


@dataclass(frozen=True)
class Price:
    """One figure of a price list.

    - `usd` per `unit`, e.g. 7.09 and "USD/h".
    - `kind`: "on-demand" is a figure found in a price list, "estimate" is computed by a stated rule, "spot
      estimate" is a snapshot or a fraction and moves, "retired" is the last price of a type no longer sold.
    - `covers`: "instance", or "gpu" for a price of the card without the machine it sits in.

    >>> round(Price(3.06, "USD/h", "us-east-1", "2026-07-20", "a list", "on-demand").usd_per_second, 6)
    0.00085
    """

    usd: float
    unit: str
    region: str
    date: str
    source: str
    kind: Kind
    covers: Literal["instance", "gpu"] = "instance"
    note: str = ""

    def __post_init__(self) -> None:
        usd = self.usd
        number = isinstance(usd, int | float) and not isinstance(usd, bool) and math.isfinite(usd)
        if not number or usd < 0:
            raise UserError(
                f"usd = {usd!r}: is no price; give dollars of one {self.unit.removeprefix('USD/')}"
            )
        if usd == 0 and self.unit == "USD/h":
            raise UserError("usd = 0: no machine is free; leave out a price that is not known")

    @property
    def usd_per_hour(self) -> float:
        if self.unit != "USD/h":
            raise UserError(f"unit={self.unit!r} is not a price per hour: only USD/h can be billed by time")
        return self.usd

    @property
    def usd_per_second(self) -> float:
        return self.usd_per_hour / 3600

    @property
    def usd_per_day(self) -> float:
        return self.usd_per_hour * HOURS_PER_DAY

    @property
    def usd_per_month(self) -> float:
        """A month of 730 hours."""
        return self.usd_per_hour * HOURS_PER_MONTH

    def line(self) -> str:
        """The price in one line, with what must be known to trust it.

        >>> Price(3.06, "USD/h", "us-east-1", "2026-07-20", "price list", "on-demand").line()
        '$3.06/h, on-demand, us-east-1, 2026-07-20'
        """
        unit = self.unit.removeprefix("USD/")
        region = "region unstated" if self.region == "unstated" else self.region
        parts = [f"${self.usd:,.6g}/{unit}", self.kind, region, self.date or "undated"]
        if self.covers == "gpu":
            parts.append("GPU only, without the machine it sits in")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)


def with_machine(gpu: Price, machine: Price) -> Price:
    """The price of a card and of the machine it sits in, for clouds that list the two apart.

    >>> card = Price(0.72, "USD/h", "us-east1", "2026-07", "list", "on-demand", covers="gpu")
    >>> round(with_machine(card, Price(0.5684, "USD/h", "us-east1", "2026-07", "list", "on-demand")).usd, 4)
    1.2884
    """
    if gpu.covers != "gpu" or machine.covers != "instance":
        raise UserError(
            f"covers={gpu.covers!r} and {machine.covers!r}: give the GPU's price first, the machine's second"
        )
    if (gpu.unit, gpu.region) != (machine.unit, machine.region):
        raise UserError(
            f"unit and region differ: {gpu.unit} in {gpu.region} and {machine.unit} in {machine.region};"
            " add prices of one unit and region only"
        )
    return replace(machine, usd=gpu.usd + machine.usd, note="GPU and machine")


@dataclass(frozen=True)
class SpotRange:
    """Spot prices of one type over the zones of a region, USD per hour. None of the three is "the" price.

    >>> spot = SpotRange.of_zones([0.2377, 0.2810, 0.3278])
    >>> spot.minimum, spot.median, spot.maximum
    (0.2377, 0.281, 0.3278)
    """

    minimum: float
    median: float
    maximum: float
    region: str = "us-east-1"
    date: str = ""
    source: str = ""

    @classmethod
    def of_zones(cls, usd_per_hour: list[float], **where: str) -> "SpotRange":
        if not usd_per_hour:
            raise UserError("usd_per_hour=[] holds no zone: give the spot price of at least one")
        for usd in usd_per_hour:
            if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 < usd < math.inf:
                raise UserError(f"usd_per_hour={usd!r} of a zone is no price: leave out zones without one")
        return cls(min(usd_per_hour), median(usd_per_hour), max(usd_per_hour), **where)

    def price(self) -> Price:
        """The median, marked as an estimate, with the range beside it."""
        note = f"median of zones {self.minimum:g} to {self.maximum:g}" if self.minimum < self.maximum else ""
        return Price(self.median, "USD/h", self.region, self.date, self.source, "spot estimate", note=note)
