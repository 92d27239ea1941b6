"""The serving path of lesson 16: waiting grows with the load, computing does not, training has no part."""

import random
from statistics import fmean

import pytest

from dtlab.cost.serving_queue import mean_latency_seconds, serve_in_batches
from dtlab.errors import UserError


def at_random(per_second, requests=20_000):
    draw, clock, arrivals = random.Random(0), 0.0, []
    for _ in range(requests):
        clock += draw.expovariate(per_second)
        arrivals.append(round(1e6 * clock))
    return arrivals


def test_half_more_traffic_turns_200_ms_into_2300_with_the_same_model():
    assert mean_latency_seconds(6.67, 0.1) == pytest.approx(0.2, rel=0.01)
    assert mean_latency_seconds(9.78, 0.1) == pytest.approx(2.3, rel=0.02)
    calm, busy = (serve_in_batches(at_random(load), 1, lambda n: 100_000 * n) for load in (6.67, 9.78))
    assert {computed for _, computed in calm + busy} == {100_000}
    assert fmean(waited for waited, _ in busy) > 5 * fmean(waited for waited, _ in calm)


@pytest.mark.parametrize("load", [2.0, 5.0, 8.0])
def test_simulated_mean_is_that_of_the_formula(load):
    pairs = serve_in_batches(at_random(load), 1, lambda n: 100_000 * n)
    mean = fmean(waited + computed for waited, computed in pairs) / 1e6
    assert mean == pytest.approx(mean_latency_seconds(load, 0.1), rel=0.06)


def test_batches_bear_what_one_at_a_time_does_not():
    pairs = serve_in_batches(at_random(15.0), 8, lambda n: 95_000 + 5_000 * n)
    assert fmean(waited for waited, _ in pairs) < 200_000
    assert max(computed for _, computed in pairs) == 135_000


def test_a_load_that_cannot_be_borne_and_odd_numbers_are_refused():
    with pytest.raises(UserError, match="the queue grows for ever; one process does fewer than 10"):
        mean_latency_seconds(10, 0.1)
    with pytest.raises(UserError, match="seconds=0 is out of range"):
        mean_latency_seconds(1, 0)
    with pytest.raises(UserError, match="most=0"):
        serve_in_batches([0], 0, lambda n: n)
