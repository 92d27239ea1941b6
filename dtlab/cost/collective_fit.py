"""Fit latency and bandwidth of a link to measured collectives (lesson 02).

In ``sqrt(T) = sqrt(alpha) + sqrt(k S / B)`` two numbers are unknown, and both enter linearly: least squares
have a closed form. Each point counts by its relative error, so that 1 MiB weighs as much as 1 GiB.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from dtlab.cost.collective_time import Link, sent_share
from dtlab.errors import UserError


@dataclass(frozen=True)
class Fit:
    """A fitted link, how many points it rests on, and its relative errors on those very points."""

    link: Link
    points: int
    mape: float
    worst: float


def fit_link(
    points: Iterable[tuple[float, float]], ranks: int, collective: str = "all_reduce", *, source: str = ""
) -> Fit:
    """The link that fits `points` of (bytes, seconds) best.

    - Two sizes at least. A slope that is not positive means times that do not grow with the size.
    - A negative latency becomes 0, with the bandwidth fitted alone.

    >>> exact = Link(alpha_seconds=20e-6, bytes_per_second=100e9)
    >>> sizes = (2**20, 2**24, 2**28)
    >>> fit = fit_link([(size, exact.seconds("all_reduce", 8, size)) for size in sizes], ranks=8)
    >>> round(fit.link.alpha_seconds * 1e6, 3), round(fit.link.bytes_per_second / 1e9, 3), fit.points
    (20.0, 100.0, 3)

    Raises:
        UserError: too few sizes, a value that is no size or no time, or times that do not grow.
    """
    found = sorted(points)
    for size, seconds in found:
        if not (0 < size < float("inf") and 0 < seconds < float("inf")):
            raise UserError(f"point ({size!r}, {seconds!r}): give bytes and seconds above 0")
    if len({size for size, _ in found}) < 2:
        raise UserError(f"points: {len(found)} of one size or none; give times of two sizes or more")
    share = sent_share(collective, ranks)
    if not share:
        raise UserError("ranks = 1: one rank sends nothing; measure with two or more")
    # Rows of (1/r) * a + (x/r) * c = 1 with r = sqrt(T), x = sqrt(k S): relative residuals of sqrt(T).
    rows = [(1 / sqrt(t), sqrt(share * size / t)) for size, t in found]
    aa, ac, cc = _sums(rows)
    a_one, c_one = sum(u for u, _ in rows), sum(v for _, v in rows)
    determinant = aa * cc - ac * ac
    root_alpha = (a_one * cc - c_one * ac) / determinant
    slope = (c_one * aa - a_one * ac) / determinant
    if root_alpha < 0:
        root_alpha, slope = 0.0, c_one / cc
    if slope <= 0:
        raise UserError("points: the times do not grow with the size; measure larger messages")
    link = Link(alpha_seconds=root_alpha**2, bytes_per_second=1 / slope**2, kind="measured", source=source)
    errors = relative_errors(link, found, ranks, collective)
    return Fit(link, len(found), sum(map(abs, errors)) / len(errors), max(map(abs, errors)))


def relative_errors(
    link: Link, points: Iterable[tuple[float, float]], ranks: int, collective: str = "all_reduce"
) -> list[float]:
    """(predicted - measured) / measured of each point of (bytes, seconds).

    >>> link = Link(alpha_seconds=0.0, bytes_per_second=1e9)
    >>> relative_errors(link, [(1e9, 2.0)], ranks=2)
    [-0.5]
    """
    return [link.seconds(collective, ranks, size) / seconds - 1 for size, seconds in points]


def every_second(points: Iterable[tuple[float, float]]) -> tuple[list, list]:
    """Points to fit on and points to score on: sorted by size, the 1st, 3rd, ... and the 2nd, 4th, ...

    >>> every_second([(4, 1.0), (1, 1.0), (2, 1.0)])
    ([(1, 1.0), (4, 1.0)], [(2, 1.0)])
    """
    found = sorted(points)
    return found[::2], found[1::2]


def _sums(rows: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    return sum(u * u for u, _ in rows), sum(u * v for u, v in rows), sum(v * v for _, v in rows)
