"""A run on spot hosts beside the same run on demand: interval, time, dollars, when spot loses (lesson 13).

Puts the formulas of `cost.spot` and prices together. Without checkpoints an interruption sends the run back
to its first step; that is refused when it doubles the bill, and said loudly before that.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

from dtlab.cost import spot
from dtlab.errors import DtlabWarning, UserError

REFUSED_FROM = 2.0  # expected time over work without interruption
WARNED_FROM = 1.05


@dataclass(frozen=True)
class SpotPlan:
    """Expected figures. Hours on the machine are billed; waiting for capacity is not, but is in `hours`.

    - `interval_seconds`: work between two saves; None without checkpoints.
    - `break_even_rate`: interruptions per hour and host at which spot costs what on demand does; infinite
      when spot is cheaper at any rate that was searched (up to one a minute), 0 when it never is.
    """

    work_hours: float
    billed_hours: float
    hours: float
    interruptions: float
    interval_seconds: float | None
    save_seconds: float
    restart_seconds: float
    spot_usd: float
    on_demand_usd: float
    break_even_rate: float
    recommendation: Literal["spot", "on-demand"]
    reason: str

    @property
    def saving_usd(self) -> float:
        return self.on_demand_usd - self.spot_usd

    @property
    def saving_share(self) -> float:
        return self.saving_usd / self.on_demand_usd

    def line(self) -> str:
        """One line: time, dollars, saving, and what to take."""
        saves = (
            "without checkpoints"
            if self.interval_seconds is None
            else f"saving every {self.interval_seconds / 60:,.1f} min"
        )
        return (
            f"spot: {self.hours:,.1f} h for {self.work_hours:,.1f} h of work, {saves}, "
            f"{self.interruptions:,.1f} interruptions; ${self.spot_usd:,.2f} against "
            f"${self.on_demand_usd:,.2f} on demand ({self.saving_share:+.0%} saved): "
            f"take {self.recommendation}, {self.reason}"
        )


def plan_spot(
    work_seconds: float,
    *,
    on_demand_usd_per_hour: float,
    spot_usd_per_hour: float,
    interruptions_per_hour: float,
    hosts: int = 1,
    state_bytes: float = 0.0,
    write_bytes_per_second: float = 0.2e9,
    read_bytes_per_second: float | None = None,
    start_seconds: float = 300.0,
    wait_seconds: float = 0.0,
    interval_seconds: float | None = None,
    checkpoints: bool = True,
    deadline_seconds: float = math.inf,
    break_even: bool = True,
) -> SpotPlan:
    """Expected wall time and cost of a run on spot hosts, with the best interval unless one is given.

    Args:
        work_seconds: what the run takes without saves or interruptions.
        on_demand_usd_per_hour, spot_usd_per_hour: of one host.
        interruptions_per_hour: of one host; losing one stops all (`spot.mtbf_seconds`).
        state_bytes: of a checkpoint over all ranks, 12 to 16 bytes a parameter.
        wait_seconds: mean wait for the next spot host after an interruption, not billed.
        interval_seconds: work between two saves; by default Daly's optimum (2006, equation 37).
        break_even: False leaves `break_even_rate` out (nan): it takes most of the time of this function.
        checkpoints: False: there are none, and every interruption starts the run anew.

    Raises:
        UserError: a value out of range, or a run without checkpoints that is expected to take twice its work.

    >>> plan = plan_spot(48.5 * 3600, on_demand_usd_per_hour=10, spot_usd_per_hour=3.5,
    ...                  interruptions_per_hour=0.15, state_bytes=320e6 * 12)
    >>> round(plan.interval_seconds / 60, 1), round(plan.billed_hours, 1), plan.recommendation
    (15.8, 51.2, 'spot')
    """
    for name, value in (
        ("on_demand_usd_per_hour", on_demand_usd_per_hour), ("spot_usd_per_hour", spot_usd_per_hour),
        ("work_seconds", work_seconds), ("deadline_seconds", deadline_seconds),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f"{name}={value!r} is out of range: give a number above 0")
    wait = (
        wait_seconds if isinstance(wait_seconds, int | float) and not isinstance(wait_seconds, bool) else -1
    )
    if not 0 <= wait < math.inf:
        raise UserError(f"wait_seconds={wait_seconds!r} is not a time: give 0 or more seconds")
    read = write_bytes_per_second if read_bytes_per_second is None else read_bytes_per_second
    mtbf = spot.mtbf_seconds(interruptions_per_hour, hosts)
    save = spot.checkpoint_seconds(state_bytes, write_bytes_per_second) if checkpoints else 0.0
    restart = spot.restart_seconds(state_bytes if checkpoints else 0.0, read, start_seconds)
    if not checkpoints and interval_seconds is not None:
        raise UserError(f"interval_seconds={interval_seconds:g} goes with checkpoints=True")
    interval = _interval(work_seconds, mtbf, save, interval_seconds) if checkpoints else None
    wall = spot.expected_wall_seconds(
        work_seconds, mtbf, interval_seconds=interval, save_seconds=save, restart_seconds=restart
    )
    if not checkpoints:
        _without_checkpoints(work_seconds, wall, mtbf)
    interruptions = wall / mtbf
    total = wall + interruptions * wait_seconds
    spot_usd = spot_usd_per_hour * hosts * wall / 3600
    on_demand_usd = on_demand_usd_per_hour * hosts * work_seconds / 3600

    def cost_at(rate: float) -> float:
        every = spot.mtbf_seconds(rate, hosts)
        tau = _interval(work_seconds, every, save, interval_seconds) if checkpoints else None
        seconds = spot.expected_wall_seconds(
            work_seconds, every, interval_seconds=tau, save_seconds=save, restart_seconds=restart
        )
        return spot_usd_per_hour * hosts * seconds / 3600

    recommendation: Literal["spot", "on-demand"] = "spot"
    reason = "it is cheaper with redone work and restarts in the bill"
    if spot_usd >= on_demand_usd:
        recommendation = "on-demand"
        reason = (
            "the spot price is not below it"
            if spot_usd_per_hour >= on_demand_usd_per_hour
            else "saves, redone work and restarts cost more than the discount"
        )
    elif total > deadline_seconds:
        recommendation = "on-demand"
        reason = f"spot is expected after the deadline of {deadline_seconds / 3600:,.1f} h"
    return SpotPlan(
        work_seconds / 3600, wall / 3600, total / 3600, interruptions, interval, save, restart, spot_usd,
        on_demand_usd, _break_even(cost_at, on_demand_usd) if break_even else math.nan, recommendation,
        reason,
    )  # fmt: skip


def _interval(work: float, mtbf: float, save: float, given: float | None) -> float:
    """The interval given, or Daly's; at most the whole work, at least a second (a save may cost nothing)."""
    if given is not None:
        return given
    best = spot.daly_interval(save, mtbf) if math.isfinite(mtbf) else work
    return min(work, max(1.0, best))


def _without_checkpoints(work: float, wall: float, mtbf: float) -> None:
    said = (
        f"checkpoints=False with an interruption every {mtbf / 3600:,.1f} h: {work / 3600:,.1f} h of work "
        f"are expected to take {wall / 3600:,.{1 if wall < 360_000 else 0}f} h"
    )
    if wall >= REFUSED_FROM * work:
        raise UserError(f"{said}; save checkpoints, or run on demand")
    if wall >= WARNED_FROM * work:
        warnings.warn(f"{said}; save checkpoints", DtlabWarning, stacklevel=3)


def _break_even(cost_at, on_demand_usd: float) -> float:
    """The rate at which the two cost the same, by halving; the cost grows with the rate."""
    low, high = 0.0, 60.0
    if cost_at(low) >= on_demand_usd:
        return 0.0
    if cost_at(high) < on_demand_usd:
        return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if cost_at(middle) < on_demand_usd else (low, middle)
    return (low + high) / 2
