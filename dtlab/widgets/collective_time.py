"""Explorers of collectives: a curve through measured points; machine types side by side (lessons 10, 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.cost.collective_fit import fit_link
from dtlab.cost.collective_time import Link
from dtlab.figures.collectives import collective_time_figure
from dtlab.figures.machine_collectives import machine_collectives_figure
from dtlab.widgets.explorer import explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collective_explorer(
    points: Sequence[tuple[float, float]], ranks: int, fitted: tuple[float, float] | None = None
) -> None:
    """Move latency and bandwidth and see whether the curve passes through the points.

    ``points``: (bytes, seconds). ``fitted``: (seconds, bytes per second) to begin with; None fits them.
    """
    if fitted is None:
        link = fit_link(points, ranks).link
        fitted = link.alpha_seconds, link.bytes_per_second
    alpha, speed = fitted[0] * 1e6, fitted[1] / 1e9

    def curve(latency_us: float = alpha, gb_per_second: float = speed) -> Figure:
        link = Link(alpha_seconds=latency_us / 1e6, bytes_per_second=gb_per_second * 1e9)
        return collective_time_figure(points, link, ranks)

    most = max(4 * alpha, 10.0)
    explorer(
        curve,
        latency_us=(0.0, most, most / 200),
        gb_per_second=(speed / 10, 4 * speed, speed / 50),
    )


def machine_collectives_explorer() -> None:
    """Move the number of machines and the size; see what a collective takes on each type.

    >>> machine_collectives_explorer()  # doctest: +ELLIPSIS
    [figure] All-reduce of 64 MiB on 2 machines: ...
    """
    explorer(
        machine_collectives_figure,
        machines=(1, 16),
        size_mib=[1, 4, 16, 64, 256, 1024],
        collective=["all_reduce", "all_gather", "reduce_scatter"],
    )
