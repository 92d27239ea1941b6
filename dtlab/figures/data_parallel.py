"""Data parallelism drawn: is it still one model, and when do the buckets travel (lesson 03).

- ``hash_figure``: parameter hash by rank and step as a coloured table. Equal text is the same model.
- ``backward_figure``: one recorded backward of each rank, layers above, bucket all-reduces below.

The values come from ``dtlab.parallel.parameter_hash`` and ``record_backward``. Only the fields named in the
protocols are read, so this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dtlab.figures.style import BLACK, GREY, HATCHES, PALETTE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_DIGITS = 4
LANE, GAP = 0.55, 0.45  # height of a bucket's lane and the space between ranks; a backward has height 1


class Trip(Protocol):
    """What is read of one all-reduce; ``dtlab.parallel.BucketTrip`` has it."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


class Line(Protocol):
    """What is read of one rank's backward; ``dtlab.parallel.BackwardLine`` has it."""

    @property
    def rank(self) -> int: ...
    @property
    def start(self) -> float: ...
    @property
    def gradients(self) -> Sequence[tuple[str, float]]: ...
    @property
    def trips(self) -> Sequence[Trip]: ...


def models_per_step(hashes: Sequence[Sequence[str]]) -> list[int]:
    """How many different models there are at each step. ``hashes``: one row a rank, one column a step.

    >>> models_per_step([["aa", "b1"], ["aa", "b2"]])
    [1, 2]
    """
    return [len(set(column)) for column in zip(*hashes, strict=True)]


def hash_figure(runs: Mapping[str, Sequence[Sequence[str]]]) -> Figure:
    """Table of parameter hashes, ranks by steps, one panel a run. Step 0 is before the first step.

    ``runs``: name -> one row for each rank, one hash for each step. ValueError when there is no hash.

    >>> figure = hash_figure({"no wrapper": [["aa01", "b102"], ["aa01", "b203"]]})
    """
    if not runs or not all(rows and rows[0] for rows in runs.values()):
        raise ValueError("runs is empty: give at least one run with one hash a rank")
    findings = [f"{name}: {_finding(models_per_step(rows))}" for name, rows in runs.items()]
    title = "; ".join(findings)
    ranks, steps = max(len(rows) for rows in runs.values()), max(len(rows[0]) for rows in runs.values())
    fig, axes = new_figure(
        title[0].upper() + title[1:],
        alt="Tables of hashes. " + " ".join(_hash_words(name, rows) for name, rows in runs.items()),
        columns=len(runs),
        squeeze=False,
        size=(min(9.0, 1.0 + 0.62 * steps * len(runs)), 1.3 + 0.36 * ranks),
    )
    for ax, (name, rows) in zip(axes.flat, runs.items(), strict=True):
        _hash_table(ax, rows)
        ax.set_title(name, fontsize=10)
    return fig


def _finding(models: Sequence[int]) -> str:
    if max(models) == 1:
        return "one model at every step"
    first = next(step for step, count in enumerate(models) if count > 1)
    counts = sorted(set(models[first:]))
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{many} models " + (f"from step {first} on" if first else "from the start")


def _hash_words(name: str, rows: Sequence[Sequence[str]]) -> str:
    told = "; ".join(
        f"rank {rank}: " + ", ".join(one[:SHOWN_DIGITS] for one in row) for rank, row in enumerate(rows)
    )
    return f"{name}: {told}."


def _hash_table(ax: Any, rows: Sequence[Sequence[str]]) -> None:
    from matplotlib.patches import Rectangle

    for step, column in enumerate(zip(*rows, strict=True)):
        kinds = list(dict.fromkeys(column))
        for rank, one in enumerate(column):
            kind = kinds.index(one)
            ax.add_patch(
                Rectangle(
                    (step + 0.03, rank + 0.05),
                    0.94,
                    0.9,
                    facecolor=PALETTE[kind % 7],
                    alpha=0.35,
                    hatch=HATCHES[kind % len(HATCHES)],
                    edgecolor="white",
                )
            )
            ax.text(
                step + 0.5, rank + 0.5, one[:SHOWN_DIGITS], ha="center", va="center", color=BLACK,
                fontsize=8, family="monospace",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
            )  # fmt: skip
    ranks, steps = len(rows), len(rows[0])
    ax.set_xlim(0, steps)
    ax.set_ylim(ranks, 0)
    ax.set_xticks([step + 0.5 for step in range(steps)], [str(step) for step in range(steps)])
    ax.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    ax.set_xlabel("optimizer steps done (hash of all parameters, first digits)", fontsize=9)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def backward_figure(lines: Sequence[Line]) -> Figure:
    """Each rank's backward layer by layer, with the all-reduce of each bucket below it, in milliseconds.

    ``lines``: one for each rank (``record_backward``). ValueError when a rank has no gradient or no bucket.
    """
    if not lines or not all(line.gradients and line.trips for line in lines):
        raise ValueError("lines: give at least one rank, each with gradients and buckets")
    zero = min(line.start for line in lines)
    facts = [_facts(line) for line in lines]
    waits = ", ".join(
        f"rank {line.rank} {fact['exposed']:.1f} ms" for line, fact in zip(lines, facts, strict=True)
    )
    rows = sum(1 + LANE * len(line.trips) + GAP for line in lines)
    fig, ax = new_figure(
        f"Rank {lines[0].rank}: {facts[0]['early']} of {len(lines[0].trips)} all-reduces begin while "
        "backward still computes",
        alt="Time line: backward of each rank, and a lane below it for each bucket. "
        + " ".join(_line_words(line, zero) for line in lines)
        + f" Left after the last gradient: {waits}.",
        xlabel="time since the first backward began (ms). Dotted: last gradient; red: travel after it",
        size=(8.0, 0.8 + 0.5 * rows),
    )
    last = max(trip.end for line in lines for trip in line.trips)
    ax.set_xlim(0, (last - zero) * 1.02e3)
    top, ticks = 0.0, []
    for line, fact in zip(lines, facts, strict=True):
        ticks.append((top + 0.45, f"rank {line.rank} backward"))
        bottom = top + 1 + LANE * len(line.trips)
        _layers(ax, line, top, zero)
        for number, trip in enumerate(line.trips):
            lane = top + 1 + LANE * number
            ticks.append((lane + LANE / 2, f"bucket {number}, {trip.bytes / 1e6:.1f} MB"))
            _trip(ax, trip, number, lane, zero, fact["last"])
        at = (fact["last"] - zero) * 1e3
        ax.plot([at, at], [top, bottom], color=RED, linestyle=":", linewidth=1.6)
        top = bottom + GAP
    ax.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=8)
    ax.set_ylim(top - GAP, -0.1)
    ax.tick_params(axis="y", length=0)
    return fig


def _facts(line: Line) -> dict[str, Any]:
    last = max(at for _, at in line.gradients)
    return {
        "last": last,
        "early": sum(trip.start < last for trip in line.trips),
        "exposed": max(0.0, max(trip.end for trip in line.trips) - last) * 1e3,
    }


def layers_of(line: Line) -> list[tuple[str, float, float]]:
    """(layer, start, end) of each stretch of backward; gradients of one layer make one stretch."""
    found: list[tuple[str, float, float]] = []
    before = line.start
    for name, at in line.gradients:
        layer = name.rpartition(".")[0] or name
        if found and found[-1][0] == layer:
            found[-1] = (layer, found[-1][1], at)
        else:
            found.append((layer, before, at))
        before = at
    return found


def _layers(ax: Any, line: Line, top: float, zero: float) -> None:
    bucket_of = {name: number for number, trip in enumerate(line.trips) for name in trip.names}
    by_layer = {name.rpartition(".")[0] or name: bucket for name, bucket in bucket_of.items()}
    for layer, start, end in layers_of(line):
        _bar(ax, start - zero, end - zero, top, 0.9, f"layer {layer}", by_layer.get(layer, 0))


def _trip(ax: Any, trip: Trip, number: int, lane: float, zero: float, last: float) -> None:
    _bar(ax, trip.start - zero, trip.end - zero, lane, LANE * 0.8, "all-reduce", number)
    if trip.end > last:  # not hidden behind backward
        begin = max(trip.start, last)
        at = [lane + LANE * 0.85] * 2
        ax.plot([(begin - zero) * 1e3, (trip.end - zero) * 1e3], at, color=RED, linewidth=2.5)


def _bar(ax: Any, start: float, end: float, top: float, height: float, text: str, kind: int) -> None:
    start, width = start * 1e3, max(end - start, 1e-6) * 1e3
    look = {"hatch": HATCHES[kind % len(HATCHES)], "edgecolor": "white", "alpha": 0.55}
    ax.broken_barh([(start, width)], (top, height), facecolor=PALETTE[kind % 7], **look)
    ax.broken_barh([(start, width)], (top, height), facecolor="none", edgecolor=GREY, linewidth=0.7)
    room = width / ax.get_xlim()[1]
    if room < 0.03:
        return  # no room for a word; the alternative text names it
    white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.75}
    words = text if room > 0.1 else text.rpartition(" ")[2]
    middle = (start + width / 2, top + height / 2)
    ax.text(*middle, words, ha="center", va="center", fontsize=7, color=BLACK, bbox=white)


def _line_words(line: Line, zero: float) -> str:
    layers = ", ".join(
        f"{layer} {(start - zero) * 1e3:.1f} to {(end - zero) * 1e3:.1f}"
        for layer, start, end in layers_of(line)
    )
    trips = ", ".join(
        f"bucket {number} of {trip.bytes / 1e6:.2f} MB "
        f"{(trip.start - zero) * 1e3:.1f} to {(trip.end - zero) * 1e3:.1f}"
        for number, trip in enumerate(line.trips)
    )
    return f"Rank {line.rank}, in ms: layers {layers}; {trips}."
