"""What more ranks bring: throughput against hope, one step in its parts, Amdahl's curve (lesson 01)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtlab.cost.scaling import amdahl, classify_step
from dtlab.figures.style import BLACK, BLUE, GREEN, GREY, HATCHES, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("data", "compute", "sync")
_COLOURS = {"data": ORANGE, "compute": BLUE, "sync": GREEN}
Points = Sequence[tuple[int, float]] | Mapping[int, float]


def throughput_figure(measured: Mapping[int, float], limit: float | None = None) -> Figure:
    """Rows per second by number of ranks, beside what as many times one rank would be.

    ``measured``: ranks -> rows per second, 1 among them. ``limit``: rows per second of the source, if known.
    """
    if 1 not in measured:
        raise ValueError("measured has no 1: a speed-up needs the throughput of one rank")
    most = max(measured)
    gain = measured[most] / measured[1]
    ranks = sorted(measured)
    listed = "; ".join(
        f"{n} {'rank' if n == 1 else 'ranks'} {measured[n]:,.0f}, hoped for {n * measured[1]:,.0f}"
        for n in ranks
    )
    known = "" if limit is None else f" A line at {limit:,.0f}: what the source can give."
    fig, ax = new_figure(
        f"{most} ranks, {gain:.1f}x the rows per second of one",
        alt=f"Two bars for each number of ranks, in rows per second: {listed}.{known}",
        xlabel="ranks",
        ylabel="rows per second",
        size=(6.0, 3.0),
    )
    places = range(len(ranks))
    hoped = [n * measured[1] for n in ranks]
    ax.bar([x - 0.2 for x in places], hoped, 0.38, color="none", edgecolor=GREY, label="ranks x one rank")
    ax.bar([x + 0.2 for x in places], [measured[n] for n in ranks], 0.38, color=BLUE, label="measured")
    if limit is not None:
        ax.axhline(limit, color=RED, linestyle="--", linewidth=1.2, label="what the disk can give")
    ax.set_xticks(places, [str(n) for n in ranks])
    ax.legend(frameon=False, fontsize=9)
    return fig


def step_figure(steps: Mapping[str, Mapping[str, float]]) -> Figure:
    """One bar a run: seconds of data, compute and sync of one step, one after the other.

    ``steps``: name of the run -> seconds by part ("data", "compute", "sync").
    """
    if not steps:
        raise ValueError("steps is empty: give at least one run")
    bounds = {name: classify_step(*(parts[part] for part in PARTS)) for name, parts in steps.items()}
    first = next(iter(steps))
    listed = "; ".join(
        f"{name}: " + ", ".join(f"{part} {parts[part] * 1e3:.2f}" for part in PARTS)
        for name, parts in steps.items()
    )
    fig, ax = new_figure(
        f"One step in its parts; {first} is {bounds[first]}",
        alt=f"Stacked bars in milliseconds. {listed}.",
        xlabel="one step (ms)",
        size=(7.0, 1.5 + 0.45 * len(steps)),
    )
    longest = max(sum(parts[part] for part in PARTS) for parts in steps.values()) * 1e3
    for row, (name, parts) in enumerate(steps.items()):
        at = 0.0
        for place, part in enumerate(PARTS):
            size = parts[part] * 1e3
            ax.barh(
                row, size, left=at, color=_COLOURS[part], hatch=HATCHES[place], edgecolor="white",
                linewidth=0.5, label=part if row == 0 else None,
            )  # fmt: skip
            at += size
        ax.text(at + longest * 0.01, row, bounds[name], va="center", fontsize=9)
    ax.set_yticks(range(len(steps)), list(steps))
    ax.invert_yaxis()
    ax.set_xlim(0, longest * 1.3)
    fig.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return fig


def amdahl_figure(serial_share: float = 0.1, measured: Points = (), most: int = 16) -> Figure:
    """Amdahl's speed-up for a serial share, the ideal, the limit, and measured points.

    ``measured``: (ranks, speed-up) pairs. ``most``: ranks up to which the curve is drawn.
    """
    points = sorted(measured.items()) if isinstance(measured, Mapping) else sorted(measured)
    most = max([most, *(n for n, _ in points)])
    ranks = list(range(1, most + 1))
    curve = [amdahl(1 - serial_share, n) for n in ranks]
    if serial_share:
        limit = 1 / serial_share
        title = f"{serial_share:.0%} serial: {curve[-1]:.1f}x on {most} ranks, never more than {limit:.1f}x"
    else:
        title = f"Nothing serial: {most}x on {most} ranks"
    told = ", ".join(f"{speedup:.2f}x on {n}" for n, speedup in points)
    at = ", ".join(f"{curve[n - 1]:.2f}x on {n}" for n in (1, 2, 4, 8) if n <= most)
    fig, ax = new_figure(
        title,
        alt=f"Speed-up against ranks. The curve: {at}. "
        + (f"Measured: {told}." if told else "No measured point."),
        xlabel="ranks",
        ylabel="speed-up over one rank",
        size=(8.0, 3.4),
    )
    ax.plot(ranks, ranks, color=GREY, linestyle=":", label="ideal: as many times as ranks")
    ax.plot(ranks, curve, color=BLUE, marker=".", label=f"Amdahl, {serial_share:.0%} serial")
    highest = max([curve[-1], *(speedup for _, speedup in points)])
    top = max(4.0, min(most, highest * 1.4)) + 0.3
    if serial_share and limit < top:
        ax.axhline(limit, color=RED, linestyle="--", linewidth=1, label="limit: 1 / serial share")
    if points:
        ax.plot(*zip(*points, strict=True), "D", color=BLACK, markersize=7, label="measured")
    ax.set_ylim(0, top)
    fig.legend(frameon=False, fontsize=8, loc="outside right center")
    return fig
