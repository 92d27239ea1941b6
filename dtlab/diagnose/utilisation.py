"""How busy ranks are, and what the figures of NVML and CloudWatch say instead (lessons 01 and 10).

- **Busy share** = 1 - data wait - exposed communication: the share of a rank's time in which it computes. It
  means the same on a CPU and on a card, and it names what is missing.
- **NVML's utilisation** (``nvidia-smi``, ``torch.cuda.utilization()``) is the share of the last sample period
  (1/6 s to 1 s) in which *any* kernel was resident, however small. It is no efficiency: one thread of one
  block gives 100 %, and so does a rank that waits inside an NCCL all-reduce, because the wait is a kernel.
  A low value is a fault; a high one proves nothing.
- **CloudWatch's GPUUtilization** of a SageMaker job is that figure *added up over the cards of a host*: 0 to
  400 % with 4 cards. "30 to 40 %" on four cards is 10 % a card.

Sources: NVIDIA, NVML API reference, nvmlUtilization_t; AWS, "Metrics for monitoring Amazon SageMaker AI",
training jobs.
"""

from __future__ import annotations

import math

from dtlab.diagnose.checks import OK, WARN, Line
from dtlab.errors import UserError

__all__ = [
    "NVML_MEANING",
    "busy_share",
    "cloudwatch_per_card",
    "nvml_line",
    "nvml_percent",
    "utilisation_lines",
]

LOW_BUSY_SHARE = 0.7
"""Below it a rank waits for 30 % of what is paid for; S4 asks for this much before a second host."""
WAIT_LIMIT = 0.1
"""The share of a step beyond which waiting for data is a fault."""
COMMUNICATION_LIMIT = 0.2
"""S0's limit for the share of communication."""
NVML_MEANING = (
    "share of time with any kernel resident, waits inside NCCL included; a high value proves nothing"
)
CLOUDWATCH_MEANING = "GPUUtilization is added up over a host's cards: divide by their number"


def busy_share(data_share: float, communication_share: float) -> float:
    """1 - data wait - exposed communication, shares of one rank's time.

    Raises:
        UserError: a share is not between 0 and 1, or they are more than the whole.

    >>> busy_share(0.25, 0.25)
    0.5
    """
    for name, value in (("data_share", data_share), ("communication_share", communication_share)):
        if not 0 <= value <= 1:
            raise UserError(f"{name} = {value!r}: give a share from 0 to 1")
    if data_share + communication_share > 1 + 1e-9:
        raise UserError(
            f"data_share + communication_share = {data_share + communication_share:g}: more than the whole "
            "step; both must be shares of the same time"
        )
    return max(0.0, 1 - data_share - communication_share)


def cloudwatch_per_card(percent: float, cards: int) -> float:
    """CloudWatch's GPUUtilization of a host, as the share of one card (0 to 1).

    Raises:
        UserError: the percentage does not fit the number of cards.

    >>> cloudwatch_per_card(40, cards=4)
    0.1
    """
    if isinstance(cards, bool) or not isinstance(cards, int) or cards < 1:
        raise UserError(f"cards = {cards!r}: give the number of cards of one host, 1 or more")
    if not 0 <= percent <= 100 * cards:
        raise UserError(f"percent = {percent!r}: {cards} card(s) give 0 to {100 * cards}")
    return percent / 100 / cards


def nvml_percent() -> int | None:
    """NVML's utilisation of the current card, 0 to 100; None without a card or without ``nvidia-ml-py``."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        value = torch.cuda.utilization()
    except Exception:  # the module pynvml is missing, or the driver refuses
        return None
    return int(value) if math.isfinite(value) else None


def utilisation_lines(data_share: float, communication_share: float, *, now: bool = True) -> list[Line]:
    """The busy share, with its verdict, and the figures that look like it.

    ``now``: also read NVML; leave it out for a run that is over.

    >>> [line.status for line in utilisation_lines(0.05, 0.1)]
    ['OK', 'OK', 'OK']
    """
    share = busy_share(data_share, communication_share)
    value = f"{share:.0%} = 1 - {data_share:.0%} data wait - {communication_share:.0%} exposed communication"
    is_low = share < LOW_BUSY_SHARE
    fix = ""
    if is_low:
        what = "the wait for data" if data_share > communication_share else "communication"
        fix = f"shorten {what} before adding ranks: they would wait as well"
    cloudwatch = Line(OK, "CloudWatch", CLOUDWATCH_MEANING)
    return [Line(WARN if is_low else OK, "busy share", value, fix), nvml_line(now=now), cloudwatch]


def nvml_line(*, now: bool = True) -> Line:
    """NVML's figure of this moment, where there is one, and what it means."""
    found = nvml_percent() if now else None
    return Line(OK, "NVML utilisation", f"{'' if found is None else f'{found} % now; '}{NVML_MEANING}")
