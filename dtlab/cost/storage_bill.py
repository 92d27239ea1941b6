"""What data costs: volumes, buckets, file systems, requests, and bytes that leave (lesson 14).

The "GB" of AWS's storage and transfer prices is 2**30 bytes (usage is metered in byte-hours divided by
1024**3), so sizes here are in GiB. A month is 730 hours. Prices come from the catalogue: a region without one
is an error, not a guess. Not in it: snapshots, S3 tiers above the first, retrieval fees.
"""

import math
from typing import Literal

from dtlab.cost.catalogue import DEFAULT_REGION, instance, storage
from dtlab.cost.prices import HOURS_PER_MONTH, Price
from dtlab.errors import UserError

Volume = Literal["gp3", "gp2", "io1", "io2", "st1", "sc1", "s3", "s3-ia", "fsx-scratch", "fsx-125"]
Destination = Literal["internet", "region", "zone", "same region"]

_ITEMS: dict[str, str] = {
    **{name: f"EBS {name} storage" for name in ("gp3", "gp2", "io1", "io2", "st1", "sc1")},
    "s3": "S3 Standard storage (first tier)",
    "s3-ia": "S3 Standard-IA storage",
    "fsx-scratch": "FSx for Lustre SCRATCH_2",
    "fsx-125": "FSx for Lustre persistent SSD 125 MB/s/TiB",
}
GP3_IOPS, GP3_MB_PER_SECOND = 3000, 125  # in gp3's price; more is paid for
IO2_FIRST_TIER = 32_000
FSX_LEAST_GIB = 1200
_TIERS = (
    ("0 to 10 TB", 10 * 1024), ("10 to 50 TB", 40 * 1024), ("50 to 150 TB", 100 * 1024),
    ("above 150 TB", math.inf),
)  # fmt: skip


def storage_usd(
    volume: Volume,
    gib: float,
    hours: float = HOURS_PER_MONTH,
    *,
    iops: int | None = None,
    mb_per_second: float | None = None,
    region: str = DEFAULT_REGION,
) -> float:
    """Dollars for keeping `gib` GiB for so many hours; a volume is paid while it exists, used or not.

    Args:
        iops: provisioned, for io1 and io2 (there they must be given) and gp3 (3,000 are in its price).
        mb_per_second: throughput of a gp3 volume (125 are in its price).

    Raises:
        UserError: an unknown kind, a value that does not belong to it, or no price for the region.

    >>> storage_usd("gp3", 500), storage_usd("io1", 500, iops=3000)
    (40.0, 257.5)
    """
    if volume not in _ITEMS:
        raise UserError(f"volume={volume!r} is unknown: use {', '.join(map(repr, _ITEMS))}")
    _check(gib=gib, hours=hours)
    if volume.startswith("fsx") and 0 < gib < FSX_LEAST_GIB:
        raise UserError(f"gib={gib:g} is below the smallest FSx for Lustre file system: {FSX_LEAST_GIB} GiB")
    usd = gib * storage(_ITEMS[volume], region).usd
    if volume in ("io1", "io2"):
        if iops is None:
            raise UserError(f"iops is needed for {volume}: it is paid by provisioned IOPS too")
        _check(iops=iops)
        if volume == "io2" and iops > IO2_FIRST_TIER:
            raise UserError(f"iops={iops} of io2: no source was found for the tiers above {IO2_FIRST_TIER:,}")
        tier = " (first tier)" if volume == "io2" else ""
        usd += iops * storage(f"EBS {volume} provisioned IOPS{tier}", region).usd
    elif iops is not None:
        if volume != "gp3":
            raise UserError(f"iops={iops} goes with gp3, io1 or io2: those of {volume} cannot be chosen")
        _check(iops=iops)
        usd += max(0, iops - GP3_IOPS) * storage("EBS gp3 IOPS above 3000", region).usd
    if mb_per_second is not None:
        if volume != "gp3":
            raise UserError(
                f"mb_per_second={mb_per_second:g} goes with gp3: that of {volume} cannot be chosen"
            )
        _check(mb_per_second=mb_per_second)
        above = max(0.0, mb_per_second - GP3_MB_PER_SECOND)
        usd += above * storage("EBS gp3 throughput above 125 MB/s", region).usd
    return usd * hours / HOURS_PER_MONTH


def requests_usd(puts: int = 0, gets: int = 0, region: str = DEFAULT_REGION) -> float:
    """Dollars for S3 requests: PUT, COPY, POST and LIST, and GET and others.

    >>> round(requests_usd(puts=1_000_000, gets=1_000_000), 2)  # a million small files, written and read once
    5.4
    """
    _check(puts=puts, gets=gets)
    put, get = storage("S3 Standard PUT/COPY/POST/LIST", region), storage("S3 Standard GET/other", region)
    return puts / 1000 * put.usd + gets / 1000 * get.usd


def egress_usd(gib: float, to: Destination = "internet", region: str = DEFAULT_REGION) -> float:
    """Dollars for bytes that leave: to the internet in tiers of a month, to another region, zone, or none.

    The allowance of the free tier is not deducted.

    >>> round(egress_usd(100), 2), round(egress_usd(100, to="region"), 2), egress_usd(100, to="same region")
    (9.0, 2.0, 0.0)
    >>> round(egress_usd(20 * 1024), 2)  # 10 TiB at 0.09, 10 TiB at 0.085
    1792.0
    """
    _check(gib=gib)
    if to == "same region":
        return gib * storage("Same-region data transfer S3 <-> training instance", region).usd
    if to == "region":
        return gib * storage("Egress to another region", region).usd
    if to == "zone":
        return 2 * gib * storage("Egress to another zone", region).usd  # both directions
    if to != "internet":
        raise UserError(f"to={to!r}: use 'internet', 'region', 'zone' or 'same region'")
    usd, left = 0.0, gib
    for name, size in _TIERS:
        if left <= 0:
            break
        part = min(left, size)
        usd += part * storage(f"Internet egress {name} of a month", region).usd
        left -= part
    return usd


def training_volume_price(name: str, region: str = DEFAULT_REGION) -> Price | None:
    """Price of a GB-month of the volume that SageMaker adds to a training job; None where there is none.

    Types with their own NVMe disks get no volume: nothing is billed. Else it is gp2, at SageMaker's rate;
    where no source states it, EBS's gp2 rate stands in, marked as an estimate.

    >>> training_volume_price("ml.g5.12xlarge") is None
    True
    >>> training_volume_price("ml.p3.8xlarge").kind
    'estimate'
    """
    if instance(name).nvme_gb:
        return None
    try:
        return storage("SageMaker Training Job ML storage (gp2)", region)
    except UserError:
        gp2 = storage("EBS gp2 storage", region)
        note = "EBS's gp2 rate; SageMaker's own may be higher"
        return Price(gp2.usd, gp2.unit, gp2.region, gp2.date, gp2.source, "estimate", note=note)


def _check(**given: float) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UserError(f"{name}={value!r} is not an amount: give 0 or more")
