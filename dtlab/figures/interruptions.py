"""Useful, redone and lost work on a time line; what a checkpoint interval costs (lesson 13).

- ``work_figure`` draws the steps that attempts of a run really made, in the order in which they were made.
- ``interval_figure`` draws the share of time lost against the interval, with its lowest point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dtlab.cost import spot
from dtlab.diagnose.work import Attempt, Kind, kinds, totals
from dtlab.figures.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP = 2.0  # steps of white between two attempts
_LOOK: dict[Kind, dict[str, Any]] = {
    "useful": {"facecolor": BLUE},
    "redone": {"facecolor": ORANGE, "hatch": "//"},
    "lost": {"facecolor": "white", "hatch": "xxx", "edgecolor": RED},
}
_MEANING: dict[Kind, str] = {
    "useful": "useful: made once, kept",
    "redone": "redone: made again, kept",
    "lost": "lost: made, paid, thrown away",
}


def work_figure(runs: Mapping[str, Sequence[Attempt]], total: int) -> Figure:
    """A lane for each run: its steps in the order in which they were made, and what became of them.

    - ``runs``: name -> attempts, see :mod:`dtlab.diagnose.work`. ``total``: steps of the whole run.
    - ValueError without a run, or for a run without a step.

    >>> figure = work_figure({"a run": [Attempt(0, 37, (30,)), Attempt(30, 60)]}, total=60)
    """
    if not runs or not all(sum(a.end - a.first for a in attempts) for attempts in runs.values()):
        raise ValueError("give at least one run, each with at least one step")
    counts = {name: totals(attempts, total) for name, attempts in runs.items()}
    fig, ax = new_figure(
        _work_finding(counts),
        alt=" ".join(f"{name}: {_work_words(runs[name], counts[name], total)}" for name in runs),
        xlabel="optimizer steps made, in the order in which they were made (a gap: the job was interrupted)",
        size=(9.0, 1.5 + 0.75 * len(runs)),
    )
    for row, attempts in enumerate(runs.values()):
        _lane(ax, row, attempts, total)
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_ylim(len(runs) - 0.4, -0.65)
    ax.set_xlim(left=0)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _work_legend(fig)
    return fig


def _lane(ax: Any, row: int, attempts: Sequence[Attempt], total: int) -> None:
    x = 0.0
    for attempt, steps in zip(attempts, kinds(attempts, total), strict=True):
        begin = x
        for kind, same in groupby(steps):
            width = len(list(same))
            style = {"edgecolor": "white", "linewidth": 0.8, **_LOOK[kind]}
            ax.broken_barh([(x, width)], (row - 0.28, 0.56), **style)
            x += width
        ax.text(
            (begin + x) / 2, row, f"{attempt.first} to {attempt.end}", ha="center", va="center", fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip
        for saved in attempt.saved:
            ax.plot(begin + saved - attempt.first, row - 0.36, marker="v", color=GREEN, markersize=6)
        if attempt.end < total:
            ax.plot(x + _GAP / 2, row, marker="X", color=BLACK, markersize=8, linestyle="none")
        x += _GAP


def _work_finding(counts: Mapping[str, Mapping[Kind, int]]) -> str:
    said = [f"{name}: {count['lost']} steps lost" for name, count in counts.items()]
    return "; ".join(said) if len(said) < 3 else f"{said[0]}; {said[-1]}"


def _work_words(attempts: Sequence[Attempt], count: Mapping[Kind, int], total: int) -> str:
    spans = ", then ".join(f"steps {a.first} to {a.end}" for a in attempts)
    end = "to the end" if attempts[-1].end >= total else "and it never ended"
    return (
        f"{spans}, {end}; {count['useful']} steps useful, {count['redone']} redone, {count['lost']} lost, "
        f"{sum(len(a.saved) for a in attempts)} checkpoints."
    )


def _work_legend(fig: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(label=_MEANING[kind], **{"edgecolor": "white", **_LOOK[kind]}) for kind in _LOOK
    ]
    for marker, colour, label in (("v", GREEN, "checkpoint"), ("X", BLACK, "interrupted")):
        handles.append(Line2D([], [], marker=marker, color=colour, linestyle="none", label=label))
    fig.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8)


def interval_figure(
    state_gb: float = 3.84,
    write_gb_per_second: float = 0.2,
    interruptions_per_hour: float = 0.15,
    hosts: int = 1,
    restart_minutes: float = 5.0,
    usual_minutes: float = 30.0,
) -> Figure:
    """Share of time lost against the minutes between two saves, its lowest point, and a usual interval.

    - ``state_gb``: GB (1e9 bytes) of the full state; ``interruptions_per_hour``: of one host.
    - The curve is Daly's model without approximation; the marks are Young's and Daly's intervals.

    >>> figure = interval_figure(interruptions_per_hour=0.15)
    """
    save = spot.checkpoint_seconds(state_gb * 1e9, write_gb_per_second * 1e9)
    mtbf = spot.mtbf_seconds(interruptions_per_hour, hosts)
    restart = 60 * restart_minutes

    def lost(minutes: float) -> float:
        seconds = 60 * minutes
        wall = spot.expected_wall_seconds(
            seconds, mtbf, interval_seconds=seconds, save_seconds=save, restart_seconds=restart
        )
        return 100 * (wall / seconds - 1)

    young, daly = spot.young_interval(save, mtbf) / 60, spot.daly_interval(save, mtbf) / 60
    low, high = min(young, usual_minutes) / 12, max(young, usual_minutes) * 12
    minutes = [low * (high / low) ** (n / 160) for n in range(161)]
    fig, ax = new_figure(
        f"Best: every {_minutes(daly)}, {lost(daly):.1f} % lost; "
        f"every {_minutes(usual_minutes)}: {lost(usual_minutes):.1f} %",
        alt="Time lost in percent of the work against the minutes between two saves, from "
        f"{_minutes(low)} to {_minutes(high)}, log scale. A save takes {save:.0f} s, an interruption comes "
        f"every {mtbf / 3600:.1f} h, a restart takes {_minutes(restart_minutes)}. Left of the lowest point "
        f"saving costs most, right of it redone work. Young: every {_minutes(young)}, {lost(young):.1f} %; "
        f"Daly: every {_minutes(daly)}, {lost(daly):.1f} %; every {_minutes(usual_minutes)}: "
        f"{lost(usual_minutes):.1f} %.",
        xlabel="work between two saves (minutes), log",
        ylabel="time lost (% of the work)",
        size=(8.0, 3.8),
    )
    ax.plot(minutes, [lost(m) for m in minutes], color=BLUE, linewidth=2.4, label="all of it")
    saving = [100 * save / (60 * m) for m in minutes]
    redone = [100 * 30 * m / mtbf for m in minutes]
    ax.plot(minutes, saving, color=GREEN, linestyle="--", label="saving: delta / tau")
    ax.plot(minutes, redone, color=ORANGE, linestyle="-.", label="redone work: tau / 2M")
    ax.axhline(100 * restart / mtbf, color=BLACK, linewidth=1, linestyle=":", label="restarts: R / M")
    for at, marker, colour, name in (
        (daly, "o", BLUE, "best (Daly)"), (young, "D", BLACK, "Young"), (usual_minutes, "s", RED, "usual"),
    ):  # fmt: skip
        ax.plot(at, lost(at), marker=marker, color=colour, markersize=8, linestyle="none",
                label=f"{name}: {_minutes(at)}", fillstyle="none" if name == "Young" else "full")  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlim(low, high)
    ax.set_ylim(0, max(4 * lost(daly), 1.25 * lost(usual_minutes)))
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    return fig


def _minutes(minutes: float) -> str:
    """
    >>> _minutes(0.5), _minutes(16), _minutes(90)
    ('30 s', '16 min', '1.5 h')
    """
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
