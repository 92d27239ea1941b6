"""Time of a collective against its size: what was measured, and the fitted curve through it (lesson 02)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.cost.collective_fit import relative_errors
from dtlab.cost.collective_time import Link, sent_share
from dtlab.figures.style import BLACK, BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
_CURVE_POINTS = 60


def collective_time_figure(
    measured: Points,
    link: Link,
    ranks: int,
    *,
    collective: str = "all_reduce",
    held_out: Points = (),
    name: str = "",
) -> Figure:
    """Seconds against bytes, both logarithmic: points as measured, and the curve of ``link``.

    - ``measured``: (bytes, seconds) that the link was fitted to; ``held_out``: others, drawn hollow.
    - ``name``: of the system, for the title. A dashed line marks the size at which latency and bandwidth
      take equally long: smaller messages are worth bundling.

    ValueError without any point.

    >>> link = Link(alpha_seconds=20e-6, bytes_per_second=100e9)
    >>> figure = collective_time_figure([(2.0**p, 1e-4 * 2 ** (p - 20)) for p in (20, 24)], link, ranks=8)
    """
    from matplotlib.ticker import LogLocator

    points = sorted([*measured, *held_out])
    if not points:
        raise ValueError("measured and held_out are empty: give at least one (bytes, seconds)")
    scored = held_out or measured
    errors = [abs(error) for error in relative_errors(link, scored, ranks, collective)]
    word = collective.replace("_", "-")
    what = "held-out" if held_out else "fitted"
    turn = link.alpha_seconds * link.bytes_per_second / max(1e-12, sent_share(collective, ranks))
    listed = "; ".join(
        f"{size_words(size)} {time_words(seconds)}, curve {time_words(link.seconds(collective, ranks, size))}"
        for size, seconds in points
    )
    subject = f"{word}, {ranks} ranks{f' ({name})' if name else ''}"
    fig, ax = new_figure(
        f"{subject[0].upper()}{subject[1:]}: {sum(errors) / len(errors):.0%} off {len(scored)} {what} "
        f"{'size' if len(scored) == 1 else 'sizes'}",
        alt=(
            f"Seconds against bytes, both logarithmic. Latency {time_words(link.alpha_seconds)}, bandwidth "
            f"{link.bytes_per_second / 1e9:.3g} GB/s; both cost the same at {size_words(turn)}. {listed}."
        ),
        xlabel="size (bytes)",
        ylabel="time",
        size=(7.2, 3.8),
    )
    low, high = points[0][0] / 2, points[-1][0] * 2
    sizes = [low * (high / low) ** (at / (_CURVE_POINTS - 1)) for at in range(_CURVE_POINTS)]
    ax.plot(
        sizes, [link.seconds(collective, ranks, size) for size in sizes], color=ORANGE, linewidth=2.0,
        label="(sqrt(alpha) + sqrt(k S / B))²",
    )  # fmt: skip
    if measured:
        ax.plot(*zip(*measured, strict=True), "o", color=BLUE, markersize=6, label="measured, in the fit")
    if held_out:
        ax.plot(
            *zip(*held_out, strict=True), "s", color=BLUE, markerfacecolor="none", markersize=7,
            label="measured, held out",
        )  # fmt: skip
    if low < turn < high:
        ax.axvline(turn, color=GREY, linestyle="--", linewidth=1.0)
        ax.annotate(
            f"latency = bandwidth\nat {size_words(turn)}", (turn, 0.03), xycoords=("data", "axes fraction"),
            xytext=(4, 0), textcoords="offset points", fontsize=8, color=BLACK,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(_ticks(low, high))
    ax.set_xticklabels([size_words(tick) for tick in _ticks(low, high)])
    ax.minorticks_off()
    bottom, top = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if top < 100 * bottom else (1.0,)))
    ax.yaxis.set_major_formatter(lambda seconds, _: time_words(seconds))
    ax.grid(True, which="major", color="#E5E5E5", linewidth=0.6)
    ax.legend(frameon=False, fontsize=9)
    return fig


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two at most ten, evenly spaced in their exponents."""
    exponents = [power for power in range(64) if low <= 2.0**power <= high]
    step = -(-len(exponents) // 8)
    return [2.0**power for power in exponents[:: max(1, step)]]


def size_words(size: float) -> str:
    """A size in the largest unit of which there is one.

    >>> size_words(64 * 2**20)
    '64 MiB'
    """
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {word}"
    return f"{size:.3g} B"


def time_words(seconds: float) -> str:
    """A time in s, ms or us.

    >>> time_words(0.0026)
    '2.6 ms'
    """
    for unit, word in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {word}"
    return f"{seconds * 1e6:.3g} us"
