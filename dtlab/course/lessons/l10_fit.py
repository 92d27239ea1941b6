"""Check of lesson 10's fit: latency and bandwidth from measured all-reduces."""

from __future__ import annotations

from math import sqrt
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import require_function

Points = list[tuple[int, float]]

# Bytes and microseconds of all-reduces over 16 A100 on two p4de.24xlarge, and over the 8 H100 of one
# p5.48xlarge. Published: aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests, README.
_MIB = 2**20
TWO_P4DE = (
    (_MIB, 309.4), (4 * _MIB, 533.9), (8 * _MIB, 762.8), (16 * _MIB, 1191.8), (32 * _MIB, 1540.2),
    (64 * _MIB, 2644.6), (128 * _MIB, 3912.9), (256 * _MIB, 7201.7), (512 * _MIB, 13552.0),
    (1024 * _MIB, 26217.0), (2048 * _MIB, 51406.0),
)  # fmt: skip
ONE_P5 = (
    (_MIB, 28.56), (2 * _MIB, 43.45), (4 * _MIB, 55.44), (8 * _MIB, 84.29), (32 * _MIB, 198.6),
    (128 * _MIB, 592.8), (4096 * _MIB, 15791.0), (8192 * _MIB, 31289.0),
)  # fmt: skip
# Made by the model itself: ranks, latency in microseconds, bandwidth in MB/s.
EXACT = ((2, 300, 900), (4, 25, 12_000), (16, 170, 90_000))
_LOOK = (
    "a straight line in x = sqrt(k S), y = sqrt(T): its intercept is sqrt(alpha), its slope 1 / sqrt(B), "
    "with k = 2 (ranks - 1) / ranks"
)


def published() -> dict[str, tuple[int, Points]]:
    """Name -> number of ranks, and points of (bytes, seconds), as published.

    >>> ranks, points = published()["two p4de"]
    >>> ranks, points[0]
    (16, (1048576, 0.0003094))
    """
    return {
        name: (ranks, [(size, microseconds / 1e6) for size, microseconds in rows])
        for name, ranks, rows in (("two p4de", 16, TWO_P4DE), ("one p5", 8, ONE_P5))
    }


@exercise(
    "10-fit",
    todo="fit a straight line to sqrt(k S) and sqrt(T); square the intercept, invert the squared slope",
    hints=(
        "Take the root of both sides: sqrt(T) = sqrt(alpha) + sqrt(k S) / sqrt(B). That is a straight line "
        "in sqrt(k S). What are its slope and its intercept?",
        "size, seconds = np.array(points).T; k = 2 * (ranks - 1) / ranks; slope, intercept = np.polyfit("
        "np.sqrt(k * size), np.sqrt(seconds), 1, w=1 / np.sqrt(seconds)); return intercept**2, 1 / slope**2.",
    ),
    references=("dtlab.cost.collective_fit.fit_link",),
)
def fit(checks: Checks, answer: Any) -> None:
    """Points that the model made, then published ones: microseconds and MB/s, rounded to integers."""
    require_function(answer)
    cases: dict[str, tuple[int, Points, int, int]] = {}
    for ranks, alpha, speed in EXACT:
        points = [(2**power, _seconds(2**power, ranks, alpha, speed)) for power in (12, 17, 20, 24, 27)]
        cases[f"exact points, {ranks} ranks"] = ranks, points, alpha, speed
    for name, (ranks, points) in published().items():
        cases[f"published points, {name}"] = ranks, points, *_fitted(points, ranks)
    given = {name: _pair(name, answer(list(points), ranks)) for name, (ranks, points, *_) in cases.items()}
    for name, (ranks, points, alpha, speed) in cases.items():
        latency, bandwidth = given[name]
        look = _mistake(points, ranks, latency, bandwidth) or _LOOK
        checks.integer(f"{name}: latency in microseconds", round(latency * 1e6), alpha, look=look)
        checks.integer(f"{name}: bandwidth in MB/s", round(bandwidth / 1e6), speed, look=look)
    checks.equal(
        "unrounded, on the exact points",
        [given[f"exact points, {ranks} ranks"] for ranks, *_ in EXACT],
        [(alpha * 1e-6, speed * 1e6) for _, alpha, speed in EXACT],
        tolerance=1e-6,
    )


def _seconds(size: float, ranks: int, alpha: float, speed: float) -> float:
    """The model: alpha in microseconds, speed in MB/s."""
    return (sqrt(alpha / 1e6) + sqrt(2 * (ranks - 1) / ranks * size / (speed * 1e6))) ** 2


def _fitted(points: Points, ranks: int) -> tuple[int, int]:
    from dtlab.cost.collective_fit import fit_link

    link = fit_link(points, ranks).link
    return round(link.alpha_seconds * 1e6), round(link.bytes_per_second / 1e6)


def _pair(name: str, got: Any) -> tuple[float, float]:
    if got is None or got is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if got is None else "..."))
    try:
        latency, bandwidth = (float(value) for value in got)
    except (TypeError, ValueError):
        raise CheckFailed(f"{name}: got {describe(got)}: give (seconds, bytes per second).") from None
    if not (0 <= latency < 1e6 and 0 < bandwidth < 1e18):
        raise CheckFailed(
            f"{name}: latency {latency:g} s, bandwidth {bandwidth:g} bytes/s.\nWhere to look: {_LOOK}"
        )
    return latency, bandwidth


def _mistake(points: Points, ranks: int, latency: float, bandwidth: float) -> str:
    """What a usual wrong rule would give for these points."""
    import numpy as np

    size, seconds = np.array(points).T
    k = 2 * (ranks - 1) / ranks
    roots = np.sqrt(k * size), np.sqrt(seconds)

    def says(alpha: float, speed: float) -> bool:
        return abs(latency - alpha) <= 1e-3 * abs(alpha) + 1e-9 and abs(bandwidth / speed - 1) < 1e-3

    slope, root = np.polyfit(*roots, 1, w=1 / roots[1])
    if says(root, 1 / slope**2):
        return "the intercept is the *root* of alpha: square it"
    if says(root**2, 1 / slope):
        return "the slope is 1 / sqrt(B): B = 1 / slope**2"
    if says(root**2, 1 / slope**2 / k):
        return f"k is missing: each of {ranks} ranks sends k S = 2 ({ranks} - 1) / {ranks} S bytes, not S"
    if says(root**2 * 1e6, 1 / slope**2) or says(root**2, 1 / slope**2 / 1e6):
        return "seconds and bytes per second, without a unit of a million"
    if says(slope**2, 1 / root**2):
        return "np.polyfit gives the slope first, then the intercept"
    slope, root = np.polyfit(*roots, 1)
    if says(root**2, 1 / slope**2):
        return "every point counts by its relative error: w=1 / np.sqrt(seconds)"
    slope, alpha = np.polyfit(k * size, seconds, 1)
    if says(alpha, 1 / slope):
        return "that is the textbook's line alpha + k S / B; the model has roots on both sides"
    return ""
