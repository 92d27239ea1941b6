"""Predictions of speed-up follow their formulas, and a step is named after its longest part."""

import pytest

from dtlab.cost.scaling import (
    amdahl,
    classify_step,
    implied_serial_share,
    predict_speedup,
    step_seconds,
)
from dtlab.errors import UserError


def test_amdahl_at_its_ends_and_between() -> None:
    assert [amdahl(0.0, n) for n in (1, 2, 8)] == [1.0, 1.0, 1.0]
    assert [amdahl(1.0, n) for n in (1, 2, 8)] == [1.0, 2.0, 8.0]
    assert amdahl(0.9, 8) == pytest.approx(4.7059, abs=1e-4)
    assert amdahl(0.9, 10**9) == pytest.approx(10.0)


def test_published_speedups_have_no_constant_serial_share() -> None:
    shares = [implied_serial_share(speedup, n) for speedup, n in ((1.8, 2), (3.2, 4), (5.6, 8))]
    assert shares == pytest.approx([0.111, 0.083, 0.061], abs=5e-4)
    assert amdahl(1 - shares[2], 8) == pytest.approx(5.6)


def test_speedup_of_a_step_that_only_computes_is_the_number_of_ranks() -> None:
    assert [predict_speedup(0.0, 0.1, 0.0, n) for n in (1, 2, 4, 8)] == pytest.approx([1, 2, 4, 8])


def test_shared_reader_that_is_the_limit_keeps_the_speedup_near_one() -> None:
    speedups = [predict_speedup(0.10, 0.01, 0.0, n, shared_reader=True) for n in (1, 2, 4, 8)]
    assert speedups == pytest.approx([1.0, 2 * 0.11 / 0.21, 4 * 0.11 / 0.41, 8 * 0.11 / 0.81])
    assert max(speedups) < 1.1
    assert predict_speedup(0.10, 0.01, 0.0, 8, shared_reader=False) == pytest.approx(8.0)
    prefetched = [predict_speedup(0.1, 0.01, 0.0, n, shared_reader=True, prefetch=True) for n in (2, 4, 8)]
    assert prefetched == pytest.approx([1.0, 1.0, 1.0])


def test_one_rank_synchronises_with_nobody() -> None:
    assert step_seconds(0.01, 0.05, 0.04, 1) == pytest.approx(0.06)
    assert step_seconds(0.01, 0.05, 0.04, 2) == pytest.approx(0.10)
    assert predict_speedup(0.01, 0.05, 0.04, 1) == 1.0
    assert predict_speedup(0.01, 0.05, 0.04, 2) == pytest.approx(2 * 0.06 / 0.10)


def test_prefetched_reading_counts_only_where_it_is_longer() -> None:
    assert step_seconds(0.03, 0.05, 0.0, 1, prefetch=True) == 0.05
    assert step_seconds(0.03, 0.05, 0.0, 2, shared_reader=True, prefetch=True) == 0.06


@pytest.mark.parametrize(
    ("parts", "bound"),
    [
        ((0.03, 0.01, 0.005), "input-bound"),
        ((0.01, 0.03, 0.005), "compute-bound"),
        ((0.01, 0.02, 0.03), "communication-bound"),
        ((0.02, 0.02, 0.02), "compute-bound"),
        ((0.02, 0.01, 0.02), "input-bound"),
        ((0.0, 0.0, 0.01), "communication-bound"),
    ],
)
def test_longest_part_names_the_bound(parts: tuple[float, float, float], bound: str) -> None:
    assert classify_step(*parts) == bound


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: amdahl(1.1, 2), "parallel_share"),
        (lambda: amdahl(0.5, 0), "n=0"),
        (lambda: implied_serial_share(1.0, 1), "n=1"),
        (lambda: implied_serial_share(0.0, 2), "speedup"),
        (lambda: predict_speedup(-1.0, 1.0, 0.0, 2), "data_seconds"),
        (lambda: predict_speedup(0.0, 0.0, 1.0, 2), "compute_seconds"),
        (lambda: predict_speedup(0.0, 1.0, float("nan"), 2), "sync_seconds"),
        (lambda: classify_step(0, 0, 0), "all 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(call, field: str) -> None:
    with pytest.raises(UserError, match=field):
        call()
