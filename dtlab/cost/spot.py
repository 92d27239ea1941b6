"""Interruptions in closed form: how often to save, and what a run on spot hosts takes in the end (lesson 13).

Interruptions come as a Poisson process: the job is lost every `mtbf_seconds` on average, whatever happened
before. An interruption throws away what was done since the last save, and the restart takes
`restart_seconds` before work goes on. All times are in seconds. Symbols: work T, interval tau (work between
two saves), save delta, restart R, mean time between interruptions M.

- Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
- Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.

Time without capacity (waiting for the next spot host) is not billed and is not in these formulas.
"""

import math

from dtlab.errors import UserError

__all__ = [
    "chance_of_finishing",
    "checkpoint_seconds",
    "daly_interval",
    "expected_wall_seconds",
    "mtbf_seconds",
    "restart_seconds",
    "stretches",
    "true_saving",
    "waste",
    "young_interval",
]


def mtbf_seconds(interruptions_per_hour: float, hosts: int = 1) -> float:
    """Mean time between interruptions of a job that stands still when any one of its `hosts` is lost.

    `M = 3600 / (rate * hosts)`; infinite for a rate of 0.

    >>> mtbf_seconds(0.15), mtbf_seconds(0.15, hosts=4)
    (24000.0, 6000.0)
    """
    _check(least=0.0, interruptions_per_hour=interruptions_per_hour)
    if isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1:
        raise UserError(f"hosts={hosts!r} is not a number of hosts: give a whole number of 1 or more")
    rate = interruptions_per_hour * hosts
    return 3600 / rate if rate else math.inf


def checkpoint_seconds(state_bytes: float, bytes_per_second: float) -> float:
    """How long training stands still for one save: `delta = bytes / bandwidth`.

    A full state has 12 to 16 bytes a parameter (`cost.memory`), not the 2 or 4 of the weights. For a save in
    the background give the bandwidth of the copy that training waits for, not that of the disk.

    >>> checkpoint_seconds(320e6 * 12, 0.2e9)
    19.2
    """
    _check(least=0.0, state_bytes=state_bytes)
    _check(above=0.0, bytes_per_second=bytes_per_second)
    return state_bytes / bytes_per_second


def restart_seconds(state_bytes: float, bytes_per_second: float, start_seconds: float) -> float:
    """From the start of a new host to the first new step: `R = start + bytes / bandwidth`.

    `start_seconds`: boot, image, data, process group, compile; measured, there is no formula for it.

    >>> restart_seconds(320e6 * 12, 0.4e9, start_seconds=180)
    189.6
    """
    _check(least=0.0, start_seconds=start_seconds)
    return start_seconds + checkpoint_seconds(state_bytes, bytes_per_second)


def young_interval(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between two saves that waste least, to first order: `sqrt(2 delta M)` (Young 1974).

    The length of the run does not enter. Infinite when nothing interrupts.

    >>> round(young_interval(19.2, 24_000) / 60, 1)
    16.0
    """
    _check(least=0.0, save_seconds=save_seconds)
    _check_mtbf(mtbf_seconds)
    return math.sqrt(2 * save_seconds * mtbf_seconds) if save_seconds else 0.0


def daly_interval(save_seconds: float, mtbf_seconds: float) -> float:
    """The same to higher order, for saves that are not short against M (Daly 2006, equation 37).

    `sqrt(2 delta M) [1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9] - delta` for delta < 2M, else M.

    >>> [round(daly_interval(300, hours * 3600) / 60, 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    young = young_interval(save_seconds, mtbf_seconds)
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    share = save_seconds / (2 * mtbf_seconds)
    return young * (1 + math.sqrt(share) / 3 + share / 9) - save_seconds


def waste(
    interval_seconds: float, save_seconds: float, mtbf_seconds: float, restart_seconds: float = 0.0
) -> float:
    """Time lost as a share of the work, to first order: `delta / tau + (tau / 2 + R) / M` (Young 1974).

    Saving, then redone work (half an interval on average), then restarts. Good while tau + delta + R is short
    against M; :func:`expected_wall_seconds` has no such limit.

    >>> [round(waste(60 * minutes, 19.2, 24_000), 3) for minutes in (16, 30)]
    [0.04, 0.048]
    """
    _check(above=0.0, interval_seconds=interval_seconds)
    _check(least=0.0, save_seconds=save_seconds, restart_seconds=restart_seconds)
    _check_mtbf(mtbf_seconds)
    return save_seconds / interval_seconds + (interval_seconds / 2 + restart_seconds) / mtbf_seconds


def expected_wall_seconds(
    work_seconds: float,
    mtbf_seconds: float,
    *,
    interval_seconds: float | None = None,
    save_seconds: float = 0.0,
    restart_seconds: float = 0.0,
) -> float:
    """Expected seconds on the machine until `work_seconds` of work are done, saves and restarts included.

    One stretch of `L = tau + delta` takes `M e^(R/M) (e^(L/M) - 1)` on average (Daly 2006, equation 20): it
    must be got through in one go, and so must a restart. The run is a row of such stretches, the last one
    shorter. Without an interval it is one stretch without a save. The expected number of interruptions is
    this time over M. `math.inf` when the result is too large for a float.

    >>> hour = 3600
    >>> round(expected_wall_seconds(48.5 * hour, hour / 0.15) / hour)  # no checkpoint: not in a year
    9618
    >>> round(expected_wall_seconds(48.5 * hour, hour / 0.15, interval_seconds=hour / 2) / hour, 1)
    50.4
    """
    lengths = stretches(work_seconds, mtbf_seconds, interval_seconds, save_seconds, restart_seconds)
    if math.isinf(mtbf_seconds):
        return sum(count * length for length, count in lengths)
    try:
        again = mtbf_seconds * math.exp(restart_seconds / mtbf_seconds)
        return sum(count * again * math.expm1(length / mtbf_seconds) for length, count in lengths)
    except OverflowError:
        return math.inf


def chance_of_finishing(
    work_seconds: float,
    mtbf_seconds: float,
    most_interruptions: int,
    *,
    interval_seconds: float | None = None,
    save_seconds: float = 0.0,
    restart_seconds: float = 0.0,
) -> float:
    """The probability that the work is done before interruption number `most_interruptions + 1`.

    So a limit on restarts ("at most 3 retries") is a limit on this. A stretch L passes at once with
    `p = e^(-L/M)`, and after an interruption with `e^(-(R+L)/M)` at each try; the interruptions of the
    stretches add up.

    >>> hour = 3600
    >>> round(chance_of_finishing(48.5 * hour, hour / 0.15, 3, interval_seconds=hour / 2), 2)
    0.06
    """
    if isinstance(most_interruptions, bool) or not isinstance(most_interruptions, int):
        raise UserError(f"most_interruptions={most_interruptions!r} is not a count: give a whole number")
    _check(least=0.0, most_interruptions=most_interruptions)
    lengths = stretches(work_seconds, mtbf_seconds, interval_seconds, save_seconds, restart_seconds)
    chances = [1.0] + [0.0] * most_interruptions  # of exactly so many interruptions up to here
    for length, count in lengths:
        first = math.exp(-length / mtbf_seconds)
        later = math.exp(-(restart_seconds + length) / mtbf_seconds)
        single = [first] + [
            (1 - first) * (1 - later) ** (number - 1) * later for number in range(1, most_interruptions + 1)
        ]
        chances = _added(chances, _times(single, count))
    return min(1.0, sum(chances))


def true_saving(discount: float, spot_overhead: float, on_demand_overhead: float = 0.0) -> float:
    """What spot saves against on-demand when redone work and restarts are paid too; negative: it costs more.

    `1 - (1 - discount) (1 + w_spot) / (1 + w_on_demand)`, with w the wall time over the work, minus 1.

    >>> round(true_saving(0.65, spot_overhead=0.04), 3)
    0.636
    """
    _check(discount=discount)
    if discount > 1:
        raise UserError(f"discount={discount!r} is more than the price: give a share of 1 or less")
    _check(least=0.0, spot_overhead=spot_overhead, on_demand_overhead=on_demand_overhead)
    return 1 - (1 - discount) * (1 + spot_overhead) / (1 + on_demand_overhead)


def stretches(
    work: float, mtbf: float, interval: float | None, save: float, restart: float
) -> list[tuple[float, int]]:
    """The stretches that must be got through in one go, as (seconds, how many of them).

    >>> stretches(100.0, 1000.0, 40.0, 1.0, 0.0)
    [(41.0, 2), (21.0, 1)]
    """
    _check(above=0.0, work_seconds=work)
    _check(least=0.0, save_seconds=save, restart_seconds=restart)
    _check_mtbf(mtbf)
    if interval is None:
        return [(work, 1)]
    _check(above=0.0, interval_seconds=interval)
    whole = int(work / interval)
    rest = work - whole * interval
    lengths = [(interval + save, whole)] if whole else []
    return lengths + ([(rest + save, 1)] if rest > 1e-9 * work else [])


def _added(one: list[float], other: list[float]) -> list[float]:
    """The chances of a sum of two independent counts, up to the same most."""
    return [sum(one[i] * other[n - i] for i in range(n + 1)) for n in range(len(one))]


def _times(chances: list[float], count: int) -> list[float]:
    """The chances of the sum of `count` such counts, by repeated doubling."""
    total = [1.0] + [0.0] * (len(chances) - 1)
    while count:
        if count % 2:
            total = _added(total, chances)
        chances, count = _added(chances, chances), count // 2
    return total


def _check_mtbf(mtbf_seconds: float) -> None:
    if not mtbf_seconds > 0:  # infinity is fine: nothing interrupts
        raise UserError(f"mtbf_seconds={mtbf_seconds!r} is not a mean time: give seconds above 0")


def _check(*, least: float | None = None, above: float | None = None, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{name}={value!r} is not a number: give a finite number")
        if least is not None and value < least:
            raise UserError(f"{name}={value!r} is out of range: give a number of {least:g} or more")
        if above is not None and not value > above:
            raise UserError(f"{name}={value!r} is out of range: give a number above {above:g}")
