"""Lanes of one step: computing, communication, and what of the latter nothing hides (lesson 10).

- ``trace_figure``: a panel a run, two lanes a rank; exposed communication is red and hatched.
- ``bucket_figure``: exposed time against bucket size, by simulation.

Only the fields named in the protocol are read, so this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dtlab.figures.style import BLUE, MARKERS, ORANGE, PALETTE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Spans = Sequence[tuple[int, int]]


class Trace(Protocol):
    """What is read of a step; ``dtlab.diagnose.step_trace.StepTrace`` has it. Times in microseconds."""

    @property
    def rank(self) -> int: ...
    @property
    def compute(self) -> Spans: ...
    @property
    def communication(self) -> Spans: ...
    @property
    def exposed(self) -> Spans: ...
    @property
    def exposed_us(self) -> int: ...
    @property
    def step_us(self) -> int: ...


def trace_figure(runs: Mapping[str, Sequence[Trace]]) -> Figure:
    """A panel for each run, two lanes for each rank: computing above, communication below, in ms.

    ``runs``: name -> one trace for each rank. Each panel has its own time axis. ValueError without a trace.

    >>> from dtlab.diagnose.step_trace import StepTrace
    >>> figure = trace_figure({"a run": [StepTrace([(0, 1000)], [(500, 2000)])]})
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['a run: step of 2.0 ms, 1 all-reduce; exposed: rank 0 50 %']
    """
    if not runs or not all(runs.values()):
        raise ValueError("runs: give at least one run, each with one trace for each rank")
    ranks = sum(len(traces) for traces in runs.values())
    shares = [f"{name} {100 * _mean_share(traces):.0f} %" for name, traces in runs.items()]
    fig, panels = new_figure(
        f"Exposed communication, share of the step: {', '.join(shares)}",
        alt=" ".join(
            f"{finding(name, traces).replace(' ms', ' milliseconds')}. {_words(traces)}"
            for name, traces in runs.items()
        ),
        rows=len(runs),
        size=(9.0, 1.1 + 0.75 * ranks + 0.5 * len(runs)),
        squeeze=False,
    )
    for axes, (name, traces) in zip(panels.flat, runs.items(), strict=True):
        _panel(axes, traces)
        axes.set_title(finding(name, traces), loc="left", fontsize=10)
    panels.flat[-1].set_xlabel("time since the step began on this rank (ms); every panel has its own scale")
    _legend(fig)
    return fig


def finding(name: str, traces: Sequence[Trace]) -> str:
    """Length of the step, number of all-reduces, and the exposed share of every rank."""
    count = len(traces[0].communication)
    shares = ", ".join(f"rank {one.rank} {100 * one.exposed_us / one.step_us:.0f} %" for one in traces)
    longest = max(one.step_us for one in traces) / 1e3
    told = f"{name}: step of {longest:.1f} ms, {count:,} all-reduce{'' if count == 1 else 's'}"
    return f"{told}; exposed: {shares}"


def _mean_share(traces: Sequence[Trace]) -> float:
    return sum(one.exposed_us / one.step_us for one in traces) / len(traces)


def _words(traces: Sequence[Trace]) -> str:
    told = []
    for one in traces:
        computes = sum(end - start for start, end in one.compute)
        told.append(
            f"Rank {one.rank} computes for {computes / 1e3:.1f} milliseconds and nothing hides "
            f"{one.exposed_us / 1e3:.1f} milliseconds of communication"
        )
    return "; ".join(told) + "."


def _panel(axes: Any, traces: Sequence[Trace]) -> None:
    labels = []
    for row, one in enumerate(traces):
        top = 2.4 * row
        labels += [(top + 0.45, f"rank {one.rank} computes"), (top + 1.45, "communicates")]
        _bars(axes, one.compute, top, facecolor=BLUE)
        _bars(axes, one.communication, top + 1, facecolor=ORANGE, alpha=0.55)
        _bars(axes, one.exposed, top + 1, facecolor=RED, hatch="////", edgecolor="white")
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=8)
    axes.set_ylim(2.4 * len(traces) - 0.4, -0.1)
    axes.set_xlim(0, max(one.step_us for one in traces) / 1e3)
    axes.tick_params(axis="y", length=0)


def _bars(axes: Any, spans: Spans, top: float, **look: Any) -> None:
    axes.broken_barh(
        [(start / 1e3, (end - start) / 1e3) for start, end in spans], (top, 0.9), linewidth=0.0, **look
    )


def _legend(fig: Figure) -> None:
    from matplotlib.patches import Patch

    fig.legend(
        handles=[
            Patch(facecolor=BLUE, label="computes"),
            Patch(facecolor=ORANGE, alpha=0.55, label="communication behind computing"),
            Patch(facecolor=RED, hatch="////", edgecolor="white", label="exposed: only communication"),
        ],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=9,
    )


def bucket_figure(exposed: Mapping[str, Mapping[int, tuple[int, int]]]) -> Figure:
    """Exposed time against bucket size, a line for each network; the best size is ringed and named.

    ``exposed``: name -> bucket bytes -> (number of all-reduces, exposed microseconds). ValueError when empty.

    >>> figure = bucket_figure({"a network": {2**20: (8, 900), 2**22: (2, 500)}})
    >>> figure._suptitle.get_text()
    'Least exposed: a network with buckets of 4 MiB'
    """
    if not exposed or not all(exposed.values()):
        raise ValueError("exposed: give at least one network with one bucket size")
    best = {name: min(sizes, key=lambda size: sizes[size][1]) for name, sizes in exposed.items()}
    fig, ax = new_figure(
        "Least exposed: " + "; ".join(f"{name} with buckets of {_mib(size)}" for name, size in best.items()),
        alt="Lines, both axes logarithmic. "
        + " ".join(
            f"{name}: "
            + ", ".join(
                f"{_mib(s)} {calls} all-reduces {us / 1e3:.2f} milliseconds"
                for s, (calls, us) in sizes.items()
            )
            + "."
            for name, sizes in exposed.items()
        ),
        xlabel="bucket size (MiB)",
        ylabel="exposed in one step (ms)",
        size=(8.5, 4.0),
    )
    for number, (name, sizes) in enumerate(exposed.items()):
        at, ms = [size / 2**20 for size in sizes], [us / 1e3 for _, us in sizes.values()]
        ax.plot(at, ms, marker=MARKERS[number % 8], color=PALETTE[number % 7], label=name)
        calls, us = sizes[best[name]]
        ax.plot(best[name] / 2**20, us / 1e3, "o", markersize=15, fillstyle="none", color=RED)
        ax.annotate(
            f"{calls} all-reduces\n{us / 1e3:.1f} ms", (best[name] / 2**20, us / 1e3), fontsize=8,
            xytext=(0, -14), textcoords="offset points", ha="center", va="top",
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.margins(y=0.25)
    ax.legend(frameon=False)
    return fig


def _mib(size: int) -> str:
    return f"{size / 2**20:g} MiB"
