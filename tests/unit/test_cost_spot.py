"""Interruptions: published values, drawn runs beside the formulas, limits, and what is refused."""

import math
from statistics import fmean, stdev

import pytest

from dtlab.cost import spot
from dtlab.cost.spot_simulation import simulated_wall_seconds
from dtlab.errors import UserError

HOUR, MINUTE = 3600.0, 60.0
EVERY_SEVEN_HOURS = spot.mtbf_seconds(0.15)


@pytest.mark.parametrize(("hours", "minutes"), [(24, 116.7), (6, 56.7), (0.25, 9.14)])
def test_daly_gives_the_values_of_his_paper(hours, minutes):
    assert spot.daly_interval(5 * MINUTE, hours * HOUR) / MINUTE == pytest.approx(minutes, abs=0.05)


def test_a_320m_state_is_saved_every_16_minutes_whatever_the_length_of_the_run():
    save = spot.checkpoint_seconds(320e6 * 12, 0.2e9)
    young = spot.young_interval(save, EVERY_SEVEN_HOURS)
    assert (save, young / MINUTE) == (pytest.approx(19.2), pytest.approx(16.0))
    assert spot.waste(young, save, EVERY_SEVEN_HOURS) == pytest.approx(0.040, abs=5e-4)
    assert spot.waste(30 * MINUTE, save, EVERY_SEVEN_HOURS) == pytest.approx(0.048, abs=5e-4)


def test_spot_without_checkpoints_never_ends_and_with_them_it_does():
    work = 48.5 * HOUR
    never = spot.expected_wall_seconds(work, EVERY_SEVEN_HOURS)
    saved = spot.expected_wall_seconds(work, EVERY_SEVEN_HOURS, interval_seconds=HOUR / 2)
    assert never / HOUR == pytest.approx(9618, abs=1)
    assert saved / HOUR == pytest.approx(50.4, abs=0.05)
    assert spot.expected_wall_seconds(work, math.inf) == work
    assert spot.expected_wall_seconds(work, math.inf, interval_seconds=HOUR / 2) == pytest.approx(work)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"interval_seconds": 700.0, "save_seconds": 30.0, "restart_seconds": 120.0},
        {
            "interval_seconds": 3000.0,
            "save_seconds": 200.0,
            "restart_seconds": 900.0,
        },
    ],
    ids=["no checkpoint", "short", "long"],
)
def test_drawn_runs_take_what_the_formula_says_on_average(how):
    drawn = simulated_wall_seconds(8000.0, 4000.0, runs=4000, seed=1, **how)
    error = stdev(drawn) / math.sqrt(len(drawn))
    assert fmean(drawn) == pytest.approx(spot.expected_wall_seconds(8000.0, 4000.0, **how), abs=4 * error)


@pytest.mark.parametrize("how", [{}, {"interval_seconds": 700.0, "save_seconds": 30.0}])
def test_the_chance_of_no_interruption_is_the_share_of_drawn_runs_without_one(how):
    runs = 4000
    drawn = simulated_wall_seconds(8000.0, 4000.0, runs=runs, seed=2, **how)
    untouched = sum(wall == pytest.approx(min(drawn)) for wall in drawn) / runs
    chance = spot.chance_of_finishing(8000.0, 4000.0, 0, **how)
    assert chance == pytest.approx(untouched, abs=4 * math.sqrt(untouched / runs))


def test_more_restarts_make_the_end_likelier_up_to_certainty():
    chances = [spot.chance_of_finishing(8000.0, 4000.0, n, interval_seconds=700.0) for n in range(40)]
    assert chances == sorted(chances)
    assert chances[-1] == pytest.approx(1.0)


def test_expected_interruptions_are_the_wall_time_over_the_mean_time_between_them():
    how = {"interval_seconds": 700.0, "save_seconds": 30.0, "restart_seconds": 120.0}
    chances = [spot.chance_of_finishing(8000.0, 4000.0, n, **how) for n in range(80)]
    expected = sum(1 - chance for chance in chances)
    assert expected == pytest.approx(spot.expected_wall_seconds(8000.0, 4000.0, **how) / 4000.0, rel=1e-6)


def test_the_best_interval_of_the_whole_model_is_dalys():
    save, mtbf = 300.0, 6 * HOUR

    def lost(tau):
        return spot.expected_wall_seconds(tau, mtbf, interval_seconds=tau, save_seconds=save) / tau

    best = min(range(600, 9000, 10), key=lost)
    assert spot.daly_interval(save, mtbf) == pytest.approx(best, rel=0.01)
    assert spot.young_interval(save, mtbf) == pytest.approx(best, rel=0.1)


def test_saves_longer_than_twice_the_mean_time_are_made_as_often_as_interruptions_come():
    assert spot.daly_interval(100.0, 50.0) == 50.0
    assert spot.young_interval(0.0, math.inf) == 0.0
    assert spot.young_interval(10.0, math.inf) == math.inf


def test_more_hosts_are_interrupted_more_often():
    assert spot.mtbf_seconds(0.15, hosts=16) == pytest.approx(1500.0)
    assert spot.mtbf_seconds(0.0) == math.inf


def test_a_result_too_large_for_a_float_is_infinite_and_no_crash():
    assert spot.expected_wall_seconds(1e7, 3600.0) == math.inf


def test_spot_that_is_dearer_or_always_interrupted_saves_less_than_nothing():
    assert spot.true_saving(-0.2, 0.0) == pytest.approx(-0.2)
    assert spot.true_saving(0.65, 2.0) == pytest.approx(-0.05)
    assert spot.true_saving(0.65, 0.0) == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: spot.mtbf_seconds(-1), "interruptions_per_hour=-1"),
        (lambda: spot.mtbf_seconds(0.1, hosts=0), "hosts=0"),
        (lambda: spot.checkpoint_seconds(1e9, 0), "bytes_per_second=0"),
        (lambda: spot.checkpoint_seconds(float("nan"), 1), "state_bytes=nan"),
        (lambda: spot.young_interval(10, 0), "mtbf_seconds=0"),
        (lambda: spot.young_interval(10, float("nan")), "mtbf_seconds=nan"),
        (lambda: spot.waste(0, 1, 10), "interval_seconds=0"),
        (lambda: spot.expected_wall_seconds(0, 10), "work_seconds=0"),
        (lambda: spot.expected_wall_seconds(10, 10, interval_seconds=-1), "interval_seconds=-1"),
        (lambda: spot.chance_of_finishing(10, 10, 1.5), "most_interruptions=1.5"),
        (lambda: spot.true_saving(1.5, 0), "discount=1.5"),
        (lambda: simulated_wall_seconds(10, 10, runs=0), "runs=0"),
        (lambda: simulated_wall_seconds(1e6, 100, runs=1), "100,000 times"),
    ],
)
def test_a_wrong_value_is_named(call, names):
    with pytest.raises(UserError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
