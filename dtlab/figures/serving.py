"""What a request's time is made of as the load grows: waiting, and the model (lesson 16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtlab.figures.style import BLUE, GREY, MARKERS, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float, float]  # requests a second, mean ms of waiting, mean ms of computing


def serving_figure(paths: Mapping[str, Sequence[Point]], marks: Mapping[str, float] | None = None) -> Figure:
    """A panel for each way to serve: mean waiting stacked on mean computing, against the load.

    ``paths``: name -> points in order of load. ``marks``: words at a latency in ms, drawn as lines.
    ValueError without a path.

    >>> figure = serving_figure({"one at a time": [(1, 10, 100), (9, 500, 100)]}, {"the alarm": 200})
    """
    if not paths or not all(paths.values()):
        raise ValueError("give at least one path with a point")
    said = []
    for name, points in paths.items():
        last, wait, computed = points[-1]
        said.append(
            f"{name}: at {last:g} a second {wait:,.0f} ms of waiting and {computed:,.0f} ms of computing"
        )
    fig, axes = new_figure(
        "As the load grows, requests wait longer; the model is as fast as before",
        alt="; ".join(said),
        xlabel="requests a second",
        columns=len(paths),
        size=(4.3 * len(paths), 3.4),
        squeeze=False,
        sharey=True,
    )
    for ax, (name, points) in zip(axes[0], paths.items(), strict=True):
        load = [one[0] for one in points]
        compute = [one[2] for one in points]
        whole = [one[1] + one[2] for one in points]
        ax.fill_between(load, 0, compute, color=BLUE, alpha=0.75, label="computing")
        ax.fill_between(
            load, compute, whole, color=ORANGE, alpha=0.6, hatch="//", edgecolor="white", label="waiting"
        )
        ax.plot(load, whole, color="black", marker=MARKERS[0], markersize=4, linewidth=1)
        ax.set_title(name, fontsize=10)
        for words, latency in (marks or {}).items():
            ax.axhline(latency, color=GREY, linestyle="--", linewidth=0.8)
            ax.text(load[0], latency, f"{words}: {latency:,.0f} ms", fontsize=8, va="bottom")
    axes[0][0].set_ylabel("mean time of a request (ms)")
    axes[0][0].legend(loc="upper center", fontsize=8, frameon=False)
    return fig
