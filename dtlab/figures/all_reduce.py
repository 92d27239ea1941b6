"""An all-reduce drawn from the messages of a real run, and the bytes that each rank moved (lesson 02).

- ``parts_held`` replays recorded messages: which ranks' numbers are inside each chunk after a step.
- ``chunk_figure`` draws one step of that replay; ``bytes_figure`` compares algorithms rank by rank.

The messages come from ``dtlab.collectives.in_steps``. Only their fields ``step``, ``src``, ``dst``, ``chunk``
and ``bytes`` are read, so this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dtlab.figures.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sent(Protocol):
    """What is read of a message; ``dtlab.collectives.Message`` has it."""

    @property
    def step(self) -> int: ...
    @property
    def src(self) -> int: ...
    @property
    def dst(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def bytes(self) -> int: ...


Held = list[dict[int, frozenset[int]]]


def num_steps(messages: Sequence[Sent]) -> int:
    """Steps of the run: one more than the last message's step.

    >>> num_steps([])
    0
    """
    return max((message.step + 1 for message in messages), default=0)


def parts_held(messages: Sequence[Sent], ranks: int, step: int) -> Held:
    """For each rank: chunk -> ranks whose numbers it contains, after the first ``step`` steps.

    A message brings what its sender held when the step began. ``step`` 0 is the start: each holds its own.

    >>> from dtlab.collectives import Message
    >>> held = parts_held([Message(step=0, src=0, dst=1, bytes=8, chunk=5)], ranks=2, step=1)
    >>> sorted(held[1][5]), sorted(held[0][5])
    ([0, 1], [0])
    """
    chunks = sorted({message.chunk for message in messages})
    held: Held = [{chunk: frozenset([rank]) for chunk in chunks} for rank in range(ranks)]
    for now in range(step):
        before = [dict(row) for row in held]
        for message in messages:
            if message.step == now:
                held[message.dst][message.chunk] |= before[message.src][message.chunk]
    return held


def chunk_figure(messages: Sequence[Sent], ranks: int, step: int, name: str = "Ring") -> Figure:
    """Rank x chunk after ``step`` steps, with the messages of that step as arrows.

    - ``messages`` of all ranks with their steps (``in_steps``); ``ranks`` is their number.
    - ``step`` 0 is the start; a step beyond the last shows the end. ``name`` begins the title.
    """
    steps = num_steps(messages)
    step = max(0, min(step, steps))
    held = parts_held(messages, ranks, step)
    moved = [message for message in messages if message.step == step - 1]
    chunks = sorted({message.chunk for message in messages})
    fig, ax = new_figure(
        f"{name}, {_finding(held, ranks, step, steps)}",
        alt=_chunk_alt(held, ranks, moved),
        xlabel="arrows: messages of this step; orange border: received in it",
        ylabel="rank",
        size=(7.0, 0.9 + 0.62 * ranks),
    )
    arrived = {(message.dst, message.chunk) for message in moved}
    for rank, row in enumerate(held):
        for column, chunk in enumerate(chunks):
            _cell(ax, column, rank, row[chunk], ranks, (rank, chunk) in arrived)
    for message in moved:
        _arrow(ax, chunks.index(message.chunk), message)
    sizes = {message.chunk: message.bytes for message in messages}
    labels = [
        f"chunk {chunk}\n{sizes[chunk]:,} bytes"
        if len(chunks) > 1
        else f"whole tensor\n{sizes[chunk]:,} bytes"
        for chunk in chunks
    ]
    ax.set_xticks([column + 0.5 for column in range(len(chunks))], labels)
    ax.set_yticks([rank + 0.5 for rank in range(ranks)], [str(rank) for rank in range(ranks)])
    ax.set_xlim(-0.05, max(1, len(chunks)) + 0.05)
    ax.set_ylim(ranks + 0.05, -0.05)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return fig


def _finding(held: Held, ranks: int, step: int, steps: int) -> str:
    if step == 0:
        return "before the first message: each rank holds its own numbers"
    full = [sum(len(parts) == ranks for parts in row.values()) for row in held]
    chunks = len(held[0])
    here = f"step {step} of {steps}"
    if all(count == chunks for count in full):
        return f"{here}: every rank holds every sum"
    if not any(full):
        most = max(len(parts) for row in held for parts in row.values())
        return f"{here}: the fullest chunk is the sum of {most} of {ranks} ranks"
    if chunks > 1 and len(set(full)) == 1:
        return f"{here}: each rank holds {full[0]} of {chunks} finished chunks"
    complete = sum(count == chunks for count in full)
    return f"{here}: {complete} of {ranks} ranks hold{'s' if complete == 1 else ''} the whole sum"


def _chunk_alt(held: Held, ranks: int, moved: Sequence[Sent]) -> str:
    table = "; ".join(
        f"rank {rank}: " + ", ".join(_inside(parts, ranks) for parts in row.values())
        for rank, row in enumerate(held)
    )
    what = "chunk {}" if len(held[0]) > 1 else "the whole tensor"
    arrows = ", ".join(f"rank {m.src} sends {what.format(m.chunk)} to rank {m.dst}" for m in moved)
    return f"Table of ranks by chunks. {table}. Arrows: {arrows or 'none'}."


def _inside(parts: frozenset[int], ranks: int) -> str:
    return "sum" if len(parts) == ranks else "+".join(map(str, sorted(parts)))


def _cell(ax: Any, column: int, rank: int, parts: frozenset[int], ranks: int, arrived: bool) -> None:
    from matplotlib.patches import Rectangle

    done = len(parts) == ranks
    border: dict[str, Any] = (
        {"edgecolor": ORANGE, "linewidth": 3.0} if arrived else {"edgecolor": "white", "linewidth": 1.0}
    )
    ax.add_patch(
        Rectangle(
            (column + 0.04, rank + 0.07),
            0.92,
            0.86,
            facecolor=GREEN if done else BLUE,
            alpha=1.0 if done else 0.15 + 0.5 * (len(parts) - 1) / max(1, ranks - 1),
            zorder=1,
        )
    )
    ax.add_patch(Rectangle((column + 0.04, rank + 0.07), 0.92, 0.86, fill=False, zorder=2, **border))
    ax.text(
        column + 0.42,
        rank + 0.5,
        _inside(parts, ranks),
        ha="center",
        va="center",
        color="white" if done else BLACK,
        fontweight="bold" if done else "normal",
        zorder=3,
    )


def _arrow(ax: Any, column: int, message: Sent) -> None:
    from matplotlib.patches import FancyArrowPatch

    down = message.dst > message.src
    start, end = message.src + (0.72 if down else 0.28), message.dst + (0.28 if down else 0.72)
    near = abs(message.dst - message.src) == 1
    curve = 0.0 if near else 0.12 if down else -0.12  # both bow to the left, into the cell's free side
    ax.add_patch(
        FancyArrowPatch(
            (column + 0.84, start),
            (column + 0.84, end),
            connectionstyle=f"arc3,rad={curve}",
            arrowstyle="-|>",
            mutation_scale=16,
            color=BLACK,
            linewidth=1.8,
            zorder=4,
        )
    )


def bytes_figure(moved: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """Bytes sent and received by each rank, one panel for each algorithm.

    ``moved``: algorithm -> (bytes sent, bytes received) of each rank, in rank order. ValueError when empty.

    >>> figure = bytes_figure({"ring": [(4000, 4000)] * 2, "parameter server": [(4000, 4000)] * 2})
    """
    if not moved:
        raise ValueError("moved is empty: give at least one algorithm")
    unit, word = _unit(max(sent + received for rows in moved.values() for sent, received in rows))
    busiest = {name: max(range(len(rows)), key=lambda r: sum(rows[r])) for name, rows in moved.items()}
    peak = {name: sum(moved[name][rank]) for name, rank in busiest.items()}
    worst, best = max(peak, key=peak.__getitem__), min(peak, key=peak.__getitem__)
    title = f"Rank {busiest[worst]} moves {peak[worst] / unit:g} {word} in a {worst}"
    if peak[best] < peak[worst]:
        title += f"; no rank of a {best} more than {peak[best] / unit:g} {word}"
    words = ". ".join(
        f"{name}: "
        + ", ".join(
            f"rank {r} sends {s / unit:g} and receives {g / unit:g} {word}" for r, (s, g) in enumerate(rows)
        )
        for name, rows in moved.items()
    )
    fig, axes = new_figure(
        title, alt=f"Stacked bars. {words}.", columns=len(moved), sharey=True, squeeze=False
    )
    for ax, (name, rows) in zip(axes.flat, moved.items(), strict=True):
        at = list(range(len(rows)))
        sent, received = [s / unit for s, _ in rows], [g / unit for _, g in rows]
        ax.bar(at, sent, color=BLUE, edgecolor="white", label="sent")
        ax.bar(at, received, bottom=sent, color=ORANGE, hatch="//", edgecolor="white", label="received")
        for rank in at:
            total = sent[rank] + received[rank]
            ax.annotate(f"{total:g}", (rank, total), ha="center", va="bottom", color=BLACK, fontsize=9)
        ax.axhline(peak[name] / unit, color=RED, linestyle="--", linewidth=1.0, zorder=0)
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("rank")
        ax.set_xticks(at)
    axes.flat[0].set_ylabel(f"bytes through its link ({word})")
    axes.flat[0].margins(y=0.12)
    axes.flat[0].legend(frameon=False, loc="upper right")
    return fig


def _unit(largest: int) -> tuple[float, str]:
    for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= unit:
            return unit, word
    return 1.0, "bytes"
