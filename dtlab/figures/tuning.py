"""Rungs of a search with the dollars of each trial, and where two patiences end a run (lesson 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.errors import UserError
from dtlab.figures.style import BLACK, BLUE, GREEN, GREY, MARKERS, ORANGE, RED, SKY, new_figure
from dtlab.tune.rungs import halve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (GREY, SKY, ORANGE, BLUE)
_STYLES = (":", "--", "-.", "-")


def rungs_figure(
    curves: Mapping[str, Sequence[float]],
    rungs: Sequence[int] = (1, 3, 9),
    keep: int = 3,
    usd_per_look: float = 1.18,
) -> Figure:
    """Left: each trial's curve as far as it was paid; right: its dollars.

    - ``curves``: name -> validation metric by look, all of one length. ``usd_per_look``: dollars.
    - UserError for rungs that the curves do not have.

    >>> figure = rungs_figure({"a": [0.5, 0.7], "b": [0.6, 0.6], "c": [0.4, 0.5]}, rungs=(1,))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['looks', 'dollars']
    """
    survivors, looks = halve(curves, rungs, keep)
    looks_all = sum(map(len, curves.values()))
    paid, whole = (usd_per_look * count for count in (sum(looks.values()), looks_all))
    ends = [*rungs, max(map(len, curves.values()))]
    groups = {end: [name for name in curves if looks[name] == end] for end in ends}
    told = ", ".join(f"{len(names)} until look {end}" for end, names in groups.items())
    best = survivors[-1][0]
    fig, (left, right) = new_figure(
        f"{sum(looks.values())} of {looks_all} looks: \\${paid:,.0f} instead of \\${whole:,.0f}".replace(
            "\\", ""
        ),
        alt=f"Left, validation by look of {len(curves)} trials, each drawn as far as it was trained: {told}. "
        f"Right, dollars of each trial, from {usd_per_look * min(looks.values()):.2f} to "
        f"{usd_per_look * max(looks.values()):.2f}. Trained to the end: {', '.join(survivors[-1])}.",
        columns=2,
        size=(9.6, 4.2),
        gridspec_kw={"width_ratios": [2.2, 1]},
    )
    for number, (end, names) in enumerate(groups.items()):
        style = number + max(0, len(_COLOURS) - len(groups))
        for name in names:
            left.plot(
                range(1, end + 1), curves[name][:end],
                color=_COLOURS[style % 4], linestyle=_STYLES[style % 4],
                marker=MARKERS[number], markersize=3.5 + (number > 1), linewidth=1.0 + 0.4 * number,
            )  # fmt: skip
    for rung in rungs:
        left.axvline(rung, color=BLACK, linewidth=0.8, linestyle=":")
    left.set(xlabel="looks", ylabel="validation AUC", xscale="log", xticks=ends, xticklabels=ends)
    left.minorticks_off()
    left.text(
        0.99,
        0.97,
        f"to the end: {best}",
        transform=left.transAxes,
        ha="right",
        va="top",
        fontsize=8,
        color=BLUE,
    )
    _dollar_bars(right, groups, usd_per_look)
    return fig


def _dollar_bars(axes: Any, groups: Mapping[int, Sequence[str]], usd: float) -> None:
    row = 0
    for number, (end, names) in enumerate(groups.items()):
        style = number + max(0, len(_COLOURS) - len(groups))
        rows = range(row, row + len(names))
        axes.barh(rows, [usd * end] * len(names), color=_COLOURS[style % 4], edgecolor="white", linewidth=0.5)
        if names:
            each = f"{len(names)} x \\${usd * end:,.2f}"
            axes.text(usd * end + 0.3, row + (len(names) - 1) / 2, each, va="center", fontsize=8)
        row += len(names)
    axes.set(xlabel="dollars", yticks=[], ylabel="a bar for each trial")
    axes.set_ylim(row - 0.4, -0.6)
    axes.set_xlim(0, usd * max(groups) * 1.55)


def patience_figure(values: Sequence[float], patiences: Sequence[int] = (3, 10), name: str = "") -> Figure:
    """A validation curve with the look at which each patience ends the run, and the best look.

    - ``values``: metric by look, larger is better. ``patiences``: looks without a better one.
    - UserError without a value or a patience.

    >>> figure = patience_figure([0.5, 0.7, 0.6, 0.55, 0.5], patiences=(1, 3))
    >>> figure.axes[0].get_xlabel()
    'looks'
    """
    if not values or not patiences:
        raise UserError("values and patiences: give at least one of each")
    best = max(range(len(values)), key=lambda at: values[at])
    ends = {patience: stop_look(values, patience) for patience in patiences}
    last = max(ends.values())
    fig, ax = new_figure(
        f"Best at look {best + 1}: {values[best]:.3f}; shipped at look {last}: {values[last - 1]:.3f}",
        alt=f"Validation AUC of {name or 'a run'} by look, 1 to {len(values)}; "
        + "; ".join(f"patience {p} ends at look {at} with {values[at - 1]:.3f}" for p, at in ends.items())
        + f"; the best is look {best + 1} with {values[best]:.3f}.",
        xlabel="looks",
        ylabel="validation AUC",
        size=(8.0, 3.4),
    )
    looks = range(1, len(values) + 1)
    ax.plot(looks, values, color=GREY, linestyle=":", label="recorded after the last stop")
    ax.plot(looks[:last], values[:last], color=BLUE, label=name or "the run")
    ax.plot(
        best + 1, values[best], marker="*", markersize=14, color=GREEN, linestyle="none", label="best weights"
    )
    for number, (patience, at) in enumerate(ends.items()):
        ax.plot(
            at, values[at - 1], marker=MARKERS[number + 1], markersize=9, linestyle="none",
            color=(ORANGE, RED)[number % 2], label=f"patience {patience}: stops at look {at}",
        )  # fmt: skip
    ax.legend(frameon=False, fontsize=8)
    return fig


def stop_look(values: Sequence[float], patience: int) -> int:
    """The look at which ``patience`` looks have passed without a better one; the last when they never do.

    >>> stop_look([0.5, 0.7, 0.6, 0.65, 0.6], 2)
    4
    """
    best = 0
    for at, value in enumerate(values):
        if value > values[best]:
            best = at
        elif at - best >= patience:
            return at + 1
    return len(values)
