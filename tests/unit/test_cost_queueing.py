"""A queue of jobs: the formula, jobs drawn one by one, and what keeping hosts warm costs."""

import math

import pytest

from dtlab.cost.queueing import erlang_c, mean_wait_seconds, simulate_queue
from dtlab.errors import UserError

HOUR = 3600.0


def test_erlang_c_of_one_host_is_its_load_and_of_three_is_by_hand():
    assert erlang_c(0.7, 1) == pytest.approx(0.7)
    # a = 2, c = 3: (8/6 * 3) / (1 + 2 + 2 + 8/6 * 3) = 4/9
    assert erlang_c(2.0, 3) == pytest.approx(4 / 9)


def test_wait_of_one_host_is_rho_over_one_minus_rho():
    assert mean_wait_seconds(0.5, HOUR, 1) == pytest.approx(HOUR * 0.5 / 0.5)


@pytest.mark.parametrize(("rate", "hosts"), [(0.5, 1), (2.0, 3), (3.2, 4)])
def test_drawn_jobs_wait_what_the_formula_says(rate, hosts):
    days = [simulate_queue(rate, HOUR, hosts, keep_alive_seconds=math.inf, seed=seed) for seed in range(4)]
    waits = [day.wait_seconds for day in days]
    assert sum(waits) / 4 == pytest.approx(mean_wait_seconds(rate, HOUR, hosts), rel=0.12)


def test_busy_dollars_are_job_hours_times_price():
    day = simulate_queue(1.0, HOUR, 3, usd_per_hour=10.0, spread="constant", jobs=500)
    assert day.busy_usd == pytest.approx(10.0)
    assert day.idle_usd == day.start_usd == 0.0
    assert day.usd == pytest.approx(10.0)


def test_hosts_that_are_always_up_are_paid_for_every_hour():
    rate, hosts = 1.0, 3
    day = simulate_queue(rate, HOUR, hosts, keep_alive_seconds=math.inf, usd_per_hour=10.0)
    share = 1 - rate * 1.0 / hosts  # of the host hours nobody works in
    assert day.idle_share == pytest.approx(share, abs=0.02)


def test_keeping_warm_trades_idle_dollars_for_waiting():
    def day(keep: float):
        return simulate_queue(
            0.5, HOUR, 4, start_seconds=600, keep_alive_seconds=keep, usd_per_hour=10, jobs=3000
        )

    cold, half_hour, six_hours = day(0), day(1800), day(21_600)
    assert cold.cold_share > half_hour.cold_share > six_hours.cold_share
    assert cold.wait_seconds > half_hour.wait_seconds > six_hours.wait_seconds
    assert cold.idle_usd == 0 < half_hour.idle_usd < six_hours.idle_usd
    assert cold.start_usd == pytest.approx(cold.cold_share * 600 / 3600 * 10)


def test_never_more_hosts_than_allowed_and_scaled_to_zero_between():
    day = simulate_queue(3.0, HOUR, 4, jobs=2000)
    assert day.most_hosts == 4
    assert day.idle_usd == 0


def test_line_says_wait_and_idle():
    line = simulate_queue(0.5, HOUR, 2, keep_alive_seconds=1800, jobs=200).line()
    assert "min on average" in line
    assert "idle" in line


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mean_wait_seconds(3.0, HOUR, 3), "grows for ever; take 4 or more"),
        (lambda: simulate_queue(4.0, HOUR, 3), "hosts=3 for 4 jobs an hour"),
        (lambda: simulate_queue(0, HOUR, 3), "jobs_per_hour=0"),
        (lambda: simulate_queue(1, -1, 3), "job_seconds=-1"),
        (lambda: simulate_queue(1, HOUR, 0), "hosts=0"),
        (lambda: simulate_queue(1, HOUR, 3, keep_alive_seconds=30_000), "keep_alive_seconds=30000"),
        (lambda: simulate_queue(1, HOUR, 3, start_seconds=-1), "start_seconds=-1"),
        (lambda: simulate_queue(1, HOUR, 3, jobs=0), "jobs=0"),
        (lambda: simulate_queue(1, HOUR, 3, spread="normal"), "spread='normal'"),
        (lambda: erlang_c(float("nan"), 2), "load=nan"),
    ],
)
def test_bad_values_are_named(call, said):
    with pytest.raises(UserError) as error:
        call()
    assert said in str(error.value)
