"""Time of an all-reduce against its size: measured points and the fitted curve, log-log (lesson 10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dtlab.cost.collective_fit import relative_errors
from dtlab.cost.collective_time import Link
from dtlab.figures.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collective_figure(points: Iterable[tuple[float, float]], ranks: int, link: Link) -> Figure:
    """Points of (bytes, seconds) of all-reduces over ``ranks``, with the curve of ``link``.

    Dotted are its two ends: the latency alone, and the bandwidth alone. ValueError without a point.

    >>> link = Link(alpha_seconds=1e-4, bytes_per_second=1e9)
    >>> figure = collective_figure([(2**20, 2e-3)], 2, link)
    >>> figure._suptitle.get_text()
    'Latency 100 us, bandwidth 1 GB/s: the curve is 10 % off on average'
    """
    found = sorted(points)
    if not found:
        raise ValueError("points is empty: give at least one (bytes, seconds)")
    errors = [abs(error) for error in relative_errors(link, found, ranks)]
    alpha, speed = link.alpha_seconds * 1e6, link.bytes_per_second / 1e9
    told = ", ".join(f"{_bytes(size)} {seconds * 1e6:,.0f} us" for size, seconds in found)
    fig, ax = new_figure(
        f"Latency {alpha:,.3g} us, bandwidth {speed:,.3g} GB/s: the curve is "
        f"{100 * sum(errors) / len(errors):.0f} % off on average",
        alt=f"Points and a rising curve, both axes logarithmic. All-reduces over {ranks} ranks: {told}. "
        f"The point that is farthest from the curve is {100 * max(errors):.0f} % off.",
        xlabel="bytes of the tensor",
        ylabel=f"one all-reduce over {ranks} ranks (us)",
        size=(8.0, 4.0),
    )
    low, high = found[0][0] / 2, found[-1][0] * 2
    sizes = [low * (high / low) ** (step / 99) for step in range(100)]
    ax.plot(
        sizes,
        [link.seconds("all_reduce", ranks, size) * 1e6 for size in sizes],
        color=BLUE,
        label="(sqrt(alpha) + sqrt(k S / B))^2",
    )
    alone = Link(alpha_seconds=0.0, bytes_per_second=link.bytes_per_second)
    wire = [alone.seconds("all_reduce", ranks, size) * 1e6 for size in sizes]
    ax.plot(sizes, wire, color=GREY, linestyle=":", label="bandwidth alone")
    if alpha > 0:
        ax.plot(sizes, [alpha] * len(sizes), color=GREY, linestyle="--", label="latency alone")
    ax.plot(
        [size for size, _ in found],
        [seconds * 1e6 for _, seconds in found],
        "o",
        color=ORANGE,
        markeredgecolor="black",
        label="measured",
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=min(seconds for _, seconds in found) * 1e6 / 5)
    ax.xaxis.set_major_formatter(lambda value, _: _bytes(value))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.legend(frameon=False, fontsize=9)
    return fig


def _bytes(size: float) -> str:
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {word}"
    return f"{size:.3g} B"
