"""Machines that are paid while nobody computes: forgotten, or kept warm for the next job (lesson 14).

A warm pool of SageMaker keeps a job's machines up for up to six hours; they are billed, idle as they are, and
the next job of the same type and number starts on them at once (KeepAlivePeriodInSeconds). `queueing`
answers for jobs that come at random; here the time to the next job is known.
"""

import math
from dataclasses import dataclass

from dtlab.cost.billing import BillKind, cost
from dtlab.cost.catalogue import DEFAULT_REGION
from dtlab.cost.queueing import MOST_KEEP_ALIVE
from dtlab.errors import UserError


@dataclass(frozen=True)
class WarmPool:
    """Keeping machines warm until the next job, against a cold start.

    - `idle_usd`: paid for waiting; `start_usd`: what the cold start would have cost, if it is billed.
    - `seconds_saved`: how much sooner the next job begins; 0 where the gap is beyond the keep-alive.
    """

    idle_usd: float
    start_usd: float
    seconds_saved: float

    @property
    def usd(self) -> float:
        """What keeping warm costs in the end; negative: it saves."""
        return self.idle_usd - self.start_usd

    @property
    def usd_per_hour_saved(self) -> float:
        """Dollars for each hour that somebody does not wait; infinite where nothing is saved."""
        return self.usd / (self.seconds_saved / 3600) if self.seconds_saved else math.inf


def idle_usd(
    instance: str,
    hours: float,
    count: int = 1,
    kind: BillKind = "sagemaker",
    region: str = DEFAULT_REGION,
) -> float:
    """Dollars for machines that are up and do nothing: a notebook over a weekend, a cluster at night.

    >>> round(idle_usd("ml.g5.xlarge", 62), 2)  # from Friday evening to Monday morning
    87.3
    """
    return cost(instance, 3600 * hours, count=count, kind=kind, region=region).usd


def keep_warm(
    instance: str,
    gap_seconds: float,
    start_seconds: float,
    *,
    keep_alive_seconds: float = 3600.0,
    count: int = 1,
    start_is_billed: bool = True,
    region: str = DEFAULT_REGION,
) -> WarmPool:
    """One gap of known length between two jobs on a warm pool.

    Args:
        gap_seconds: from the end of a job to the next request.
        start_seconds: of a cold start, from the request to the first step.
        keep_alive_seconds: after which the pool gives the machines back, up to 21,600.
        start_is_billed: the part of a start that is not billed (waiting for capacity) does not belong in
            `start_seconds` then.

    Raises:
        UserError: a time out of range, an unknown price.

    >>> pool = keep_warm("ml.p4d.24xlarge", gap_seconds=600, start_seconds=300)
    >>> round(pool.idle_usd, 2), round(pool.start_usd, 2), pool.seconds_saved
    (4.21, 2.1, 300)
    """
    for name, value in (("gap_seconds", gap_seconds), ("start_seconds", start_seconds)):
        if not 0 <= value < math.inf:
            raise UserError(f"{name}={value!r} is not a time: give 0 or more seconds")
    if not 0 <= keep_alive_seconds <= MOST_KEEP_ALIVE:
        raise UserError(f"keep_alive_seconds={keep_alive_seconds!r}: give 0 to {MOST_KEEP_ALIVE:,}")
    hour = cost(instance, 3600, count=count, region=region).usd
    kept = gap_seconds <= keep_alive_seconds
    idle = hour * min(gap_seconds, keep_alive_seconds) / 3600
    if not kept:
        return WarmPool(idle, 0.0, 0.0)
    return WarmPool(idle, hour * start_seconds / 3600 if start_is_billed else 0.0, start_seconds)
