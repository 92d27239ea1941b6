"""Spot beside on demand with everything in the bill, and the cases in which it loses."""

import math

import pytest

from dtlab.cost import spot
from dtlab.cost.spot_plan import plan_spot
from dtlab.errors import DtlabWarning, UserError

HOUR = 3600.0
USUAL = {"on_demand_usd_per_hour": 10.0, "spot_usd_per_hour": 3.5, "interruptions_per_hour": 0.15}
STATE = 320e6 * 12  # bytes of a checkpoint of 320M parameters


def test_long_job_without_checkpoints_is_refused_with_what_it_would_take():
    with pytest.raises(UserError, match=r"48\.5 h of work are expected to take 9,618 h; save checkpoints"):
        plan_spot(48.5 * HOUR, **USUAL, checkpoints=False, start_seconds=0)


def test_the_same_job_with_free_saves_every_half_hour_takes_50_hours():
    plan = plan_spot(48.5 * HOUR, **USUAL, interval_seconds=HOUR / 2, start_seconds=0)
    assert plan.billed_hours == pytest.approx(50.4, abs=0.05)
    calm = plan_spot(48.5 * HOUR, **{**USUAL, "interruptions_per_hour": 0.0}, checkpoints=False)
    assert calm.billed_hours == 48.5


def test_shorter_job_without_checkpoints_is_warned_of():
    with pytest.warns(DtlabWarning, match="save checkpoints"):
        plan = plan_spot(2 * HOUR, **USUAL, checkpoints=False)
    assert plan.interval_seconds is None
    assert "without checkpoints" in plan.line()


def test_saves_come_at_dalys_interval_and_saving_counts_restarts():
    plan = plan_spot(48.5 * HOUR, **USUAL, state_bytes=STATE)
    mtbf = spot.mtbf_seconds(0.15)
    assert plan.interval_seconds == pytest.approx(spot.daly_interval(19.2, mtbf))
    assert plan.restart_seconds == pytest.approx(300 + 19.2)
    overhead = plan.billed_hours / 48.5 - 1
    assert plan.saving_share == pytest.approx(spot.true_saving(0.65, overhead))
    assert plan.saving_share < 0.65
    assert plan.recommendation == "spot"


def test_spot_that_is_dearer_loses_and_its_saving_is_negative():
    plan = plan_spot(10 * HOUR, **{**USUAL, "on_demand_usd_per_hour": 1.0, "spot_usd_per_hour": 1.2,
                                   "interruptions_per_hour": 0.0})  # fmt: skip
    assert plan.saving_usd == pytest.approx(-2.0)
    assert plan.saving_share == pytest.approx(-0.2)
    assert plan.recommendation == "on-demand"
    assert plan.break_even_rate == 0.0


def test_small_discount_is_eaten_by_interruptions_of_many_hosts():
    dear = {**USUAL, "spot_usd_per_hour": 9.5, "state_bytes": STATE}
    assert plan_spot(48 * HOUR, **dear).recommendation == "on-demand"
    cheap = {**USUAL, "state_bytes": 16 * 70e9, "hosts": 64}
    plan = plan_spot(48 * HOUR, **{**cheap, "interruptions_per_hour": 0.5})
    assert plan.recommendation == "on-demand"
    assert "more than the discount" in plan.reason


def test_break_even_rate_is_where_the_two_cost_the_same():
    plan = plan_spot(48 * HOUR, **USUAL, state_bytes=STATE)
    at = plan_spot(48 * HOUR, **{**USUAL, "interruptions_per_hour": plan.break_even_rate}, state_bytes=STATE)
    assert at.spot_usd == pytest.approx(at.on_demand_usd, rel=1e-6)
    beyond = {**USUAL, "interruptions_per_hour": 1.1 * plan.break_even_rate}
    assert plan_spot(48 * HOUR, **beyond, state_bytes=STATE).recommendation == "on-demand"


def test_waiting_for_capacity_is_not_billed_but_can_miss_a_deadline():
    ready = plan_spot(48 * HOUR, **USUAL, state_bytes=STATE)
    waits = plan_spot(48 * HOUR, **USUAL, state_bytes=STATE, wait_seconds=HOUR, deadline_seconds=52 * HOUR)
    assert waits.spot_usd == ready.spot_usd
    assert waits.hours == pytest.approx(ready.hours + waits.interruptions)
    assert (ready.recommendation, waits.recommendation) == ("spot", "on-demand")
    assert "deadline of 52.0 h" in waits.reason


def test_calm_market_needs_no_interval_and_never_breaks_even_by_itself():
    plan = plan_spot(HOUR, **{**USUAL, "interruptions_per_hour": 0.0}, state_bytes=0.0)
    assert plan.interval_seconds == HOUR
    assert plan.billed_hours == pytest.approx(1.0)
    assert math.isfinite(plan.break_even_rate)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"work_seconds": 0}, "work_seconds=0"),
        ({"on_demand_usd_per_hour": -1.0}, "on_demand_usd_per_hour=-1"),
        ({"spot_usd_per_hour": 0.0}, "spot_usd_per_hour=0"),
        ({"interruptions_per_hour": -0.1}, "interruptions_per_hour=-0.1"),
        ({"hosts": 0}, "hosts=0"),
        ({"wait_seconds": -1.0}, "wait_seconds=-1"),
        ({"wait_seconds": "60"}, "wait_seconds='60'"),
        ({"write_bytes_per_second": 0.0}, "bytes_per_second=0"),
        ({"checkpoints": False, "interval_seconds": 60.0}, "interval_seconds=60"),
        ({"deadline_seconds": 0.0}, "deadline_seconds=0"),
    ],
)
def test_bad_values_are_named(change, said):
    with pytest.raises(UserError) as error:
        plan_spot(**{"work_seconds": HOUR, **USUAL, **change})
    assert said in str(error.value)
