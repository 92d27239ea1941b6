"""A bill is the price of whole machines, per second, with the minimum that the cloud has."""

from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from dtlab.cost.billing import compare_spot, cost, gpus_to_instances
from dtlab.cost.catalogue import Instance, check_region
from dtlab.cost.memory import state_bytes_per_rank
from dtlab.cost.parameters import with_embedding
from dtlab.cost.prices import Price, SpotRange
from dtlab.cost.units import describe_bytes
from dtlab.errors import UserError


def machine(usd_per_hour: float, gpus: int = 1) -> Instance:
    price = Price(usd_per_hour, "USD/h", "us-east-1", "2026-07", "made up", "on-demand")
    return Instance("test.large", gpus=gpus, gpu="T4", prices=(("ec2", price), ("sagemaker", price)))


def test_price_of_a_machine_is_not_the_price_of_a_gpu() -> None:
    four = machine(4.00, gpus=4)
    two_hours = 2 * 3600
    assert gpus_to_instances(four, 4).instances == 1
    assert cost(four, two_hours).usd == pytest.approx(8.00)
    assert gpus_to_instances(four, 8).instances == 2
    assert cost(four, two_hours, count=2).usd == pytest.approx(16.00)
    assert cost(four, two_hours, count=2).usd_per_gpu_hour == pytest.approx(1.00)


def test_machines_are_whole_and_idle_gpus_are_reported() -> None:
    four = machine(4.00, gpus=4)
    allocation = gpus_to_instances(four, 6)
    assert (allocation.instances, allocation.gpus_used, allocation.gpus_idle) == (2, 6, 2)
    assert cost(four, 2 * 3600, count=allocation.instances).usd == pytest.approx(16.00)


def test_units_of_time_do_not_mix() -> None:
    price = machine(3.06).price("ec2")
    assert price.usd_per_second == pytest.approx(0.00085)
    assert price.usd_per_day == pytest.approx(73.44)
    assert price.usd_per_month == pytest.approx(2233.80)
    with pytest.raises(UserError, match="GB-month"):
        _ = Price(0.08, "USD/GB-month", "us-east-1", "", "", "on-demand").usd_per_second


@pytest.mark.parametrize(
    ("seconds", "billed", "usd"),
    [(90, 90, 0.0765), (60, 60, 0.051), (30, 60, 0.051), (0.5, 60, 0.051), (0, 0, 0.0)],
)
def test_seconds_are_billed_with_a_minimum_of_a_minute(seconds: float, billed: float, usd: float) -> None:
    bill = cost(machine(3.06), seconds)
    assert bill.billed_seconds == billed
    assert bill.usd == pytest.approx(usd)
    assert ("minimum of 60 s" in bill.line()) == (0 < seconds < 60)


def test_cents_round_half_up() -> None:
    assert cost(machine(1.515), 3600).cents == 152
    assert cost(machine(1.515), 3600).line().startswith("$1.52 = ")
    assert cost(machine(3.06), 90).cents == 8


def test_line_says_everything_needed_to_check_it() -> None:
    line = cost("ml.g4dn.12xlarge", 5 * 3600, count=2).line()
    assert line == (
        "$48.90 = 2 x ml.g4dn.12xlarge (4 T4) x 5.00 h at $4.89/h, on-demand, us-east-1, 2025-01-26"
    )
    assert "m5.xlarge x 90 s" in cost("m5.xlarge", 90, kind="ec2").line()


def test_spot_is_an_estimate_with_its_rule() -> None:
    median = cost("g5.12xlarge", 3600, kind="spot")
    assert median.price.kind == "spot estimate"
    assert median.usd == pytest.approx(2.4575)
    share = cost("g5.12xlarge", 3600, kind="spot", spot_fraction=0.5)
    assert share.usd == pytest.approx(5.672 / 2)
    assert "0.5 of on-demand" in share.line()
    unknown_spot = cost("g6.12xlarge", 3600, kind="spot")
    assert unknown_spot.usd == pytest.approx(4.6016 * 0.35)
    assert "0.35 of on-demand" in unknown_spot.line()


def test_spot_that_is_dearer_shows_a_negative_saving() -> None:
    comparison = compare_spot(1.00, 1.20, hours=10)
    assert comparison.saving_usd == pytest.approx(-2.00)
    assert comparison.saving_share == pytest.approx(-0.20)
    assert comparison.recommendation == "on-demand"
    assert compare_spot(1.00, 1.00, hours=10).recommendation == "on-demand"
    cheaper = compare_spot(1.00, 0.35, hours=10)
    assert (cheaper.saving_usd, cheaper.recommendation) == (pytest.approx(6.5), "spot")
    with pytest.raises(UserError, match="hours"):
        compare_spot(1.0, 0.5, hours=0)


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({"seconds": -1}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": float("inf")}, "seconds"),
        ({"seconds": "60"}, "seconds"),
        ({"seconds": 60, "count": 0}, "count"),
        ({"seconds": 60, "count": 1.5}, "count"),
        ({"seconds": 60, "kind": "lease"}, "kind"),
        ({"seconds": 60, "kind": "ec2", "spot_fraction": 0.3}, "spot_fraction"),
        ({"seconds": 60, "kind": "spot", "spot_fraction": 0.0}, "spot_fraction"),
        ({"seconds": 60, "instance": 7}, "instance"),
    ],
)
def test_bad_values_are_refused_by_name(kwargs: dict, field: str) -> None:
    with pytest.raises(UserError, match=rf"^{field}="):
        cost(**{"instance": "g5.12xlarge", **kwargs})


def test_gpus_are_asked_of_machines_that_have_them() -> None:
    with pytest.raises(UserError, match="no GPU"):
        gpus_to_instances("m5.xlarge", 1)
    with pytest.raises(UserError, match="gpus=0"):
        gpus_to_instances("g5.12xlarge", 0)
    with pytest.raises(UserError, match="no GPU"):
        _ = cost("m5.xlarge", 60).usd_per_gpu_hour


@pytest.mark.parametrize(("kind", "prices"), [("sagemaker", (9.05, 7.59, 8.45)), ("ec2", (7.24, 6.32, 7.34))])
def test_epoch_of_142_31_and_18_minutes_on_1_4_and_8_v100(kind: str, prices: tuple[float, ...]) -> None:
    runs = (("p3.2xlarge", 142), ("p3.8xlarge", 31), ("p3.16xlarge", 18))
    usd = [cost(name, minutes * 60, kind=kind).usd for name, minutes in runs]  # type: ignore[arg-type]
    assert usd == pytest.approx(prices, abs=0.005)
    assert min(usd) == usd[1], "four cards are the cheapest, eight are not half the price of one"


def test_an_afternoon_on_eight_t4_is_not_200_dollars() -> None:
    assert cost("ml.g4dn.12xlarge", 3600, count=2).usd == pytest.approx(9.78)
    assert cost("ml.g4dn.12xlarge", 5 * 3600, count=2).cents == 4890


def test_four_days_on_one_host_against_18_hours_on_two() -> None:
    before = cost("ml.p3.16xlarge", 96 * 3600)
    after = cost("ml.p3.16xlarge", 18 * 3600, count=2)
    assert (round(before.usd), round(after.usd)) == (2703, 1013)
    assert 1 - after.usd / before.usd == pytest.approx(0.625, abs=0.001)


def test_a_grid_of_dozens_of_trials_for_800_dollars_has_trials_of_about_an_hour() -> None:
    an_hour = cost("ml.p4d.24xlarge", 3600).usd
    few, many = (800 / trials / an_hour for trials in (24, 60))
    assert 0.4 < many < few < 1.5  # to choose a rate for runs of twelve hours


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: compare_spot("1", 1, 1), "on_demand_usd_per_hour='1'"),
        (lambda: compare_spot(1, 1, True), "hours=True"),
        (lambda: SpotRange.of_zones([0.1, "x"]), "usd_per_hour='x'"),
        (lambda: SpotRange.of_zones([0.1, None]), "usd_per_hour=None"),
        (lambda: check_region(None), "region=None"),
        (lambda: with_embedding("1000", 100, 8, tied=True), "body = '1000'"),
        (lambda: with_embedding(1000, 100.5, 8, tied=True), r"vocab = 100\.5"),
        (lambda: state_bytes_per_rank(nan, 8), "model=nan"),
    ],
)
def test_what_is_no_figure_is_refused_by_name(ask: Callable[[], Any], named: str) -> None:
    with pytest.raises(UserError, match=f"^{named}"):
        ask()


def test_few_bytes_are_not_shown_as_none() -> None:
    assert describe_bytes(999) == "1.0 kB = 1.0 KiB"
    assert describe_bytes(60_000) == "0.1 MB = 0.1 MiB"
    assert describe_bytes(0) == "0.0 MB = 0.0 MiB"
