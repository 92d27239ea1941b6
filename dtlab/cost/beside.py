"""What a run costs beside the hours that it computes: data and checkpoints kept, bytes out, idle hours.

`Beside` says how much of each; `Rates` are its dollars in one region, worked out once for a whole search.
`Rates.items` is the bill of one run, each item rounded to the cent as it is billed: they add up to the total.

- A bucket or a file system holds the data once; an EBS volume is one a machine.
- Sizes are in GiB (2**30 bytes), which AWS's price lists call GB.
- Prices are those of `storage_bill`: a region without one is an error. Lesson 14 works with them.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, get_args

from dtlab.cost.storage_bill import FSX_LEAST_GIB, Destination, Volume, egress_usd, storage_usd
from dtlab.errors import UserError

EBS = ("gp3", "gp2", "io1", "io2", "st1", "sc1")
EBS_LEAST_GIB = 1
_MOST_GIB, _MOST_HOURS = 1e9, 1e6  # an exbibyte, a century: beyond is a slip of the unit


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is kept, sent and left idle.

    - `data_gib` lie in `storage` ("s3", "gp3", "io1", "fsx-scratch" ...); `iops` go with io1, io2 and gp3.
    - `checkpoint_gib` lie in S3 Standard, all that are kept together.
    - `stored_hours`: how long both are kept; None: as long as the run takes.
    - `egress_gib` leave: to the internet, another region or another zone.
    - `idle_hours`: for which the machines stay up and nobody computes.

    >>> Beside(data_gib=500, storage="gp3", egress_gib=100).storage
    'gp3'
    >>> Beside(data_gib=500, storage="fsx-scratch")
    Traceback (most recent call last):
    dtlab.errors.UserError: data_gib = 500 in fsx-scratch: the smallest file system has 1200 GiB; ...
    """

    data_gib: float = 0.0
    storage: Volume = "s3"
    iops: int | None = None
    checkpoint_gib: float = 0.0
    stored_hours: float | None = None
    egress_gib: float = 0.0
    egress_to: Destination = "internet"
    idle_hours: float = 0.0

    def __post_init__(self) -> None:
        for name in ("data_gib", "checkpoint_gib", "stored_hours", "egress_gib", "idle_hours"):
            value: Any = getattr(self, name)
            if value is None and name == "stored_hours":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            what, most = (
                ("hours", _MOST_HOURS) if name.endswith("hours") else ("GiB (2**30 bytes)", _MOST_GIB)
            )
            if not number or not 0 <= value <= most:
                raise UserError(f"{name} = {value!r}: give 0 or more {what}, at most {most:g}")
        for name, words in (("storage", get_args(Volume)), ("egress_to", get_args(Destination))):
            if getattr(self, name) not in words:
                raise UserError(f"{name} = {getattr(self, name)!r}: use one of {', '.join(words)}")
        if self.iops is not None and self.storage not in ("io1", "io2", "gp3"):
            raise UserError(f"iops = {self.iops}: goes with storage io1, io2 or gp3, not with {self.storage}")
        if self.iops is None and self.storage in ("io1", "io2"):
            raise UserError(f"iops is needed: {self.storage} is paid by provisioned IOPS too; give some 3000")
        if self.stored_hours is not None and not self.data_gib and not self.checkpoint_gib:
            raise UserError(f"stored_hours = {self.stored_hours:g}: of what? give data_gib or checkpoint_gib")
        if not self.data_gib and (self.storage != "s3" or self.iops is not None):
            raise UserError(f"storage = {self.storage!r}: goes with data_gib, the GiB that lie in it")
        if self.storage.startswith("fsx") and self.data_gib < FSX_LEAST_GIB:
            raise UserError(
                f"data_gib = {self.data_gib:g} in {self.storage}: the smallest file system has "
                f"{FSX_LEAST_GIB} GiB; give {FSX_LEAST_GIB} or more, or another storage"
            )
        if self.storage in EBS and self.data_gib < EBS_LEAST_GIB:
            raise UserError(
                f"data_gib = {self.data_gib:g} in {self.storage}: a volume has whole GiB; give 1 or more"
            )

    @property
    def is_nothing(self) -> bool:
        return not (self.data_gib or self.checkpoint_gib or self.egress_gib or self.idle_hours)

    def words(self, count: int) -> dict[str, str]:
        """How much of each item was asked for, on `count` machines.

        >>> Beside(data_gib=500, storage="io1", iops=3000).words(count=2)["storage"]
        '500 GiB in io1 with 3,000 IOPS on each of 2 machines while the run lasts'
        """
        kept = "while the run lasts" if self.stored_hours is None else f"for {self.stored_hours:,.6g} h"
        volume = f"{self.data_gib:,.6g} GiB in {self.storage}"
        volume += "" if self.iops is None else f" with {self.iops:,} IOPS"
        volume += f" on each of {count} machines" if self.storage in EBS and count > 1 else ""
        places = {"internet": "the internet", "region": "another region", "zone": "another zone"}
        return {
            "storage": f"{volume} {kept}",
            "checkpoints": f"{self.checkpoint_gib:,.6g} GiB in s3 {kept}",
            "egress": f"{self.egress_gib:,.6g} GiB to {places.get(self.egress_to, 'the same region')}",
            "idle": f"{self.idle_hours:,.6g} h with nobody computing",
        }


class Rates:
    """Dollars of a `Beside` in one region.

    Raises:
        UserError: no price is known there; the message says where one is.

    >>> rates = Rates(Beside(data_gib=500, storage="gp3", stored_hours=73, egress_gib=100), "us-east-1")
    >>> rates.items(machines_usd=14.18, usd_per_hour=7.09, count=2, hours=1.0)
    {'compute': 14.18, 'storage': 8.0, 'egress': 9.0}
    """

    def __init__(self, beside: Beside, region: str) -> None:
        self.beside = beside
        self.data_per_hour = self.checkpoints_per_hour = self.egress = 0.0
        if beside.data_gib:
            self.data_per_hour = storage_usd(
                beside.storage, beside.data_gib, 1.0, iops=beside.iops, region=region
            )
        if beside.checkpoint_gib:
            self.checkpoints_per_hour = storage_usd("s3", beside.checkpoint_gib, 1.0, region=region)
        if beside.egress_gib:
            self.egress = egress_usd(beside.egress_gib, beside.egress_to, region)
        self.one_a_machine = beside.storage in EBS

    def usd(self, machines_usd: float, usd_per_hour: float, count: int, hours: float) -> float:
        """The total of `items`: exact where there is nothing beside the machines."""
        if self.beside.is_nothing:
            return machines_usd
        return round(math.fsum(self.items(machines_usd, usd_per_hour, count, hours).values()), 2)

    def items(self, machines_usd: float, usd_per_hour: float, count: int, hours: float) -> dict[str, float]:
        """Dollars by item, each to the cent; items that were not asked for are left out, and compute alone
        is not rounded.

        Args:
            machines_usd: of the hours that are computed, on all machines.
            usd_per_hour: of all machines together.
            count: machines, each with a volume of its own where the data lie on EBS.
            hours: of the run, for which things are kept unless `stored_hours` says otherwise.
        """
        asked = self.beside
        if asked.is_nothing:
            return {"compute": machines_usd}
        kept = hours if asked.stored_hours is None else asked.stored_hours
        found = {"compute": cents(machines_usd)}
        if asked.data_gib:
            found["storage"] = cents(self.data_per_hour * kept * (count if self.one_a_machine else 1))
        if asked.checkpoint_gib:
            found["checkpoints"] = cents(self.checkpoints_per_hour * kept)
        if asked.egress_gib:
            found["egress"] = cents(self.egress)
        if asked.idle_hours:
            found["idle"] = cents(usd_per_hour * asked.idle_hours)
        return found


def cents(usd: float) -> float:
    """Dollars as they are billed: to the cent, half a cent up.

    >>> cents(1.515), cents(0.0049)
    (1.52, 0.0)
    """
    return float(Decimal(f"{usd:.12g}").quantize(Decimal("0.01"), ROUND_HALF_UP))
