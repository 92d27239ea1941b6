"""Bytes alive over one training step, operation by operation (lesson 06).

The values are those of ``dtlab.diagnose.memory_trace``; only the fields named in the protocol are read, so
this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dtlab.figures.style import BLUE, GREEN, GREY, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MB = 1e6
PHASES = {"forward": (BLUE, ""), "backward": (ORANGE, "///"), "optimizer": (GREEN, "...")}


class Trace(Protocol):
    """What is read of a trace; ``MemoryTrace`` has it."""

    @property
    def timeline(self) -> Sequence[int]: ...
    @property
    def marks(self) -> Sequence[tuple[str, int]]: ...


def step_memory_figure(runs: Mapping[str, Trace], budget: int | None = None) -> Figure:
    """A panel for each run: bytes alive after each operation of its last step, coloured by phase.

    - ``runs``: name -> trace with the marks "step" (the step begins here), "forward", "backward" and
      "optimizer"; the pair of forward and backward comes once for each micro-batch.
    - ``budget``: bytes, drawn as a line in every panel.
    - ValueError without a run, or for a trace without the mark "step" or without operations after it.

    >>> class Example:
    ...     timeline = [10, 10, 30, 20, 15, 15]
    ...     marks = [("step", 1), ("forward", 1), ("backward", 3), ("optimizer", 5)]
    >>> figure = step_memory_figure({"whole batch": Example()})
    """
    if not runs:
        raise ValueError("runs is empty: give at least one trace")
    steps = {name: _step(name, trace) for name, trace in runs.items()}
    rows = -(-len(steps) // 2)
    fig, axes = new_figure(
        _finding(steps),
        alt=" ".join(_words(name, *step, budget) for name, step in steps.items()),
        rows=rows,
        columns=min(2, len(steps)),
        size=(8.6, 0.7 + 2.25 * rows),
        sharey=True,
        squeeze=False,
    )
    for ax, (name, (values, phases)) in zip(axes.flat, steps.items(), strict=False):
        _panel(ax, values, phases, budget)
        ax.set_title(f"{name}: {max(values) / MB:.1f} MB", loc="left", fontsize=9.5)
    for ax in axes.flat[len(steps) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("alive (MB)")
    for ax in axes[-1]:
        ax.set_xlabel("operations of one step, in order")
    _legend(fig, budget)
    return fig


Phases = list[tuple[str, int, int]]


def _step(name: str, trace: Trace) -> tuple[list[float], Phases]:
    """The values of the last step, and its phases as (kind, first, end) within them."""
    starts = [place for mark, place in trace.marks if mark == "step"]
    if not starts or starts[-1] >= len(trace.timeline):
        raise ValueError(f"{name}: no operation after a mark 'step'")
    start, end = starts[-1], len(trace.timeline)
    marks = [(mark.split()[0], place - start) for mark, place in trace.marks if place >= start]
    marks = [(kind, place) for kind, place in marks if kind in PHASES]
    ends = [place for _, place in marks[1:]] + [end - start]
    phases = [(kind, place, last) for (kind, place), last in zip(marks, ends, strict=True)]
    return [float(value) for value in trace.timeline[start:end]], phases


def _finding(steps: Mapping[str, tuple[list[float], Phases]]) -> str:
    peaks = {name: max(values) / MB for name, (values, _) in steps.items()}
    first, least = next(iter(peaks)), min(peaks, key=peaks.__getitem__)
    title = f"{first}: {peaks[first]:.1f} MB at the peak"
    return title if least == first else f"{title}; {least}: {peaks[least]:.1f} MB"


def _words(name: str, values: list[float], phases: Phases, budget: int | None) -> str:
    peak = max(values)
    kind = next((kind for kind, first, end in phases if first <= values.index(peak) < end), "start")
    forwards = sum(kind == "forward" for kind, _, _ in phases)
    over = "" if budget is None else f", {'over' if peak > budget else 'within'} the budget"
    times = "one hill" if forwards == 1 else f"{forwards} hills, one for each micro-batch"
    return (
        f"{name}: {times}, from {values[0] / MB:.1f} MB up to {peak / MB:.1f} MB in the {kind}{over}, "
        f"down to {values[-1] / MB:.1f} MB."
    )


def _panel(ax: Any, values: list[float], phases: Phases, budget: int | None) -> None:
    base = values[0] / MB
    scaled = [value / MB for value in values]
    ax.axhspan(0, base, color=GREY, alpha=0.45, linewidth=0)
    for kind, first, end in phases:
        colour, hatch = PHASES[kind]
        # One value more, so that neighbouring phases touch.
        places = range(first, min(end + 1, len(scaled)))
        part = [scaled[place] for place in places]
        ax.fill_between(
            places, base, part, color=colour, alpha=0.75, hatch=hatch, edgecolor="white", linewidth=0,
            step="post",
        )  # fmt: skip
    ax.plot(scaled, color="black", linewidth=0.8, drawstyle="steps-post")
    if budget is not None:
        ax.axhline(budget / MB, color=RED, linewidth=1.4, linestyle="--")
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, len(scaled))


def _legend(fig: Figure, budget: int | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=GREY, alpha=0.45, label="there before the step")]
    handles += [
        Patch(facecolor=colour, alpha=0.75, hatch=hatch, edgecolor="white", label=kind)
        for kind, (colour, hatch) in PHASES.items()
    ]
    if budget is not None:
        label = f"budget, {budget / MB:.1f} MB"
        handles.append(Line2D([], [], color=RED, linewidth=1.4, linestyle="--", label=label))
    fig.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
