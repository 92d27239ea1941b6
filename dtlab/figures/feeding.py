"""Which reader reads which row group, and what each change to a loader brings (lesson 11).

- ``readers_figure`` draws row groups in stored order, as wide as their rows: a line for each rank and worker.
- ``rates_figure`` draws rows per second of runs that differ from the first in one thing each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dtlab.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, new_figure, rank_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Reader = tuple[int, int]
"""Rank and worker."""
Groups = Mapping[Reader, Sequence[int]]
"""Reader -> numbers of the row groups that it read; a number that comes again was read again."""


def readers_figure(runs: Mapping[str, Groups], files: Sequence[Sequence[int]]) -> Figure:
    """A panel for each run: a line for each (rank, worker), a box for each row group that it read.

    - ``runs``: name -> for each (rank, worker) the groups that it read, counted through the files from 0.
    - ``files``: for each file the rows of its row groups.
    - ValueError without a run, a reader or a group, and for a group that does not exist.

    >>> figure = readers_figure({"one reader": {(0, 0): [0, 1, 2]}}, files=[[100, 50], [100]])
    """
    rows = [count for file in files for count in file]
    if not runs or not all(runs.values()) or not rows:
        raise ValueError("give at least one run with one reader, and at least one row group")
    for name, groups in runs.items():
        foreign = sorted({group for read in groups.values() for group in read} - set(range(len(rows))))
        if foreign:
            raise ValueError(f"{name}: row group {foreign[0]} is not among the {len(rows)} given")
    lines = sum(len(groups) + 2.2 for groups in runs.values())
    fig, panels = new_figure(
        _title(runs, rows),
        alt=" ".join(
            (f"{name}: {finding(groups, rows)}. " if len(runs) > 1 else "") + _words(groups)
            for name, groups in runs.items()
        ),
        rows=len(runs),
        size=(9.0, 0.9 + 0.3 * lines),
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": [len(groups) + 1.6 for groups in runs.values()]},
    )
    for axes, (name, groups) in zip(panels.flat, runs.items(), strict=True):
        _panel(axes, groups, files)
        if len(runs) > 1:
            axes.set_title(f"{name}: {finding(groups, rows)}", loc="left", fontsize=10)
    panels.flat[-1].set_xlabel("rows in stored order; a box is a row group, a line the border of two files")
    _legend(fig)
    return fig


def _title(runs: Mapping[str, Groups], rows: Sequence[int]) -> str:
    if len(runs) == 1:
        name, groups = next(iter(runs.items()))
        return f"{name}: {finding(groups, rows)}"
    once = [name for name, groups in runs.items() if set(_times(groups, len(rows))) == {1}]
    return f"Every row group read once: {', '.join(once) if once else 'in none of these runs'}"


def finding(groups: Groups, rows: Sequence[int]) -> str:
    """What a run did with the row groups, in a few words.

    >>> finding({(0, 0): [0], (1, 0): [1, 2]}, [100, 100, 50])
    'every group read once; 100 to 150 rows a rank'
    """
    times = _times(groups, len(rows))
    by_rank = rows_by_rank(groups, rows)
    if len(set(times)) == 1:
        count = times[0]
        read = f"every group read {'once' if count == 1 else f'{count} times'}"
    else:
        read = f"{sum(t > 1 for t in times)} groups read again, {times.count(0)} never"
    least, most = min(by_rank.values()), max(by_rank.values())
    spread = f"{most:,} rows" if least == most else f"{least:,} to {most:,} rows"
    return f"{read}; {spread} a rank"


def rows_by_rank(groups: Groups, rows: Sequence[int]) -> dict[int, int]:
    """Rank -> rows that its workers read together.

    >>> rows_by_rank({(0, 0): [0], (0, 1): [1], (1, 0): []}, [10, 5])
    {0: 15, 1: 0}
    """
    found = dict.fromkeys(sorted({rank for rank, _ in groups}), 0)
    for (rank, _), read in groups.items():
        found[rank] += sum(rows[group] for group in read)
    return found


def _times(groups: Groups, count: int) -> list[int]:
    return np.bincount([group for read in groups.values() for group in read], minlength=count).tolist()


def _words(groups: Groups) -> str:
    return (
        "; ".join(
            f"rank {rank} worker {worker}: " + (f"groups {_ranges(read)}" if read else "nothing")
            for (rank, worker), read in sorted(groups.items())
        )
        + "."
    )


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0 to 2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)


def _panel(axes: Any, groups: Groups, files: Sequence[Sequence[int]]) -> None:
    rows = [count for file in files for count in file]
    edges = np.concatenate([[0], np.cumsum(rows)])
    gap = edges[-1] / 400
    lines = sorted(groups)
    for line, (rank, worker) in enumerate(lines):
        for group in sorted(set(groups[rank, worker])):
            axes.barh(
                line, rows[group] - gap, left=edges[group], height=0.8, align="center", **rank_style(rank)
            )
            again = list(groups[rank, worker]).count(group)
            if again > 1:
                _number(axes, edges[group] + rows[group] / 2, line, again)
    below = len(lines) + 0.2
    for group, times in enumerate(_times(groups, len(rows))):
        look: dict[str, Any] = {"color": GREEN} if times == 1 else {"color": ORANGE, "hatch": "//"}
        if times == 0:
            look = {"facecolor": "white", "hatch": "xxx", "edgecolor": RED}
        else:
            look["edgecolor"] = "white"
        axes.barh(below, rows[group] - gap, left=edges[group], height=0.8, linewidth=0.5, **look)
        if times > 1:
            _number(axes, edges[group] + rows[group] / 2, below, times)
    for border in np.cumsum([sum(file) for file in files])[:-1]:
        axes.axvline(border - gap / 2, color=BLACK, linewidth=1.2)
    several = len({worker for _, worker in lines}) > 1
    names = [f"rank {rank} worker {worker}" if several else f"rank {rank}" for rank, worker in lines]
    axes.set_yticks([*range(len(lines)), below], [*names, "all"], fontsize=8)
    axes.set_ylim(below + 0.6, -0.6)
    axes.set_xlim(0, edges[-1])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _number(axes: Any, x: float, y: float, number: int) -> None:
    axes.text(
        x, y, str(number), ha="center", va="center", fontsize=8, fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip


def _legend(fig: Figure) -> None:
    from matplotlib.patches import Patch

    fig.legend(
        handles=[
            Patch(facecolor=GREEN, label="all: read once"),
            Patch(facecolor=ORANGE, hatch="//", edgecolor="white", label="read more than once (times)"),
            Patch(facecolor="white", hatch="xxx", edgecolor=RED, label="never"),
        ],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=8,
    )


def rates_figure(rates: Mapping[str, float], cores: int) -> Figure:
    """Rows per second of some runs as bars, each with its ratio to the first.

    - ``rates``: name of the run -> different rows per second over all ranks; the first is what the others
      change. ``cores``: of the machine, as a number of workers means nothing without it.
    - ValueError for fewer than two runs, or a rate that is not above 0.

    >>> figure = rates_figure({"as printed": 1000.0, "sampler": 2000.0}, cores=2)
    """
    if len(rates) < 2 or not all(rate > 0 for rate in rates.values()):
        raise ValueError(f"{len(rates)} rates: give two or more, each above 0")
    names = list(rates)
    base = rates[names[0]]
    best = max(names[1:], key=lambda name: rates[name])
    fig, ax = new_figure(
        f"{best}: {rates[best] / base:.1f}x the rows per second, on {_cores(cores)}",
        alt=f"Bars of different rows per second on {_cores(cores)}: "
        + "; ".join(f"{name} {rate:,.0f} ({rate / base:.2f}x)" for name, rate in rates.items())
        + ".",
        xlabel="different rows per second, over all ranks",
        size=(8.0, 1.3 + 0.36 * len(rates)),
    )
    for line, name in enumerate(names):
        ax.barh(line, rates[name], height=0.7, color=GREY if line == 0 else BLUE)
        ax.text(rates[name], line, f" {rates[name] / base:.2f}x", va="center", fontsize=9)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, max(rates.values()) * 1.15)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    return fig


def _cores(cores: int) -> str:
    return f"{cores} core{'s' * (cores > 1)}"
