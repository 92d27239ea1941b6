"""A model cut over ranks: where the matrices part, what a table's ways send, who serves it (lesson 07).

- ``cut_figure``: a column-parallel and a row-parallel matrix, and the two messages of the pair.
- ``table_bytes_figure``: expected bytes per step of each way to hold a table, beside measured ones.
- ``shard_load_figure``: rows that each rank serves, for each layout of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.cost.embedding_plan import plan_table
from dtlab.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    HATCHES,
    ORANGE,
    PALETTE,
    RED,
    new_figure,
    rank_style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}


def cut_figure(ranks: int = 2) -> Figure:
    """``y = gelu(x A) B`` on ``ranks`` ranks: parts of A, of the hidden values and of B, and what crosses.

    ValueError for fewer than 2 ranks.
    """
    if ranks < 2:
        raise ValueError(f"ranks is {ranks}: a matrix is cut between 2 ranks or more")
    fig, ax = new_figure(
        "Columns, then rows: one message forward, one backward, none between A and B",
        alt=f"From left to right: x, whole on each of {ranks} ranks. A, cut by columns into {ranks} parts. "
        f"The hidden values, cut alike. B, cut by rows into {ranks} parts. y, whole on all ranks. Between x "
        "and A stands f: nothing crosses forward, backward the gradient of x is all-reduced. Between B and y "
        "stands g: forward the parts of y are all-reduced, nothing crosses backward. Between A and B "
        "nothing crosses.",
        size=(8.4, 3.1),
    )
    _block(ax, 0.0, 1.3, 1.0, 1, by_columns=True)
    _block(ax, 2.6, 2.0, 1.5, ranks, by_columns=True)
    _block(ax, 4.8, 1.3, 1.5, ranks, by_columns=True)
    _block(ax, 7.0, 2.0, 1.0, ranks, by_columns=False)
    _block(ax, 9.6, 1.3, 1.0, 1, by_columns=True)
    names: tuple[tuple[float, str, str], ...] = (
        (0.5, "x", "on all"),
        (3.35, "A", "by columns"),
        (5.55, "gelu(x A)", "by columns"),
    )
    names += ((7.5, "B", "by rows"), (10.1, "y", "on all"))
    for at, name, cut in names:
        ax.text(at, 2.25, name, ha="center", fontsize=10, fontweight="bold")
        ax.text(at, 0.0, cut, ha="center", va="top", fontsize=8, color=BLACK)
    for at, name, forward, backward in (
        (1.8, "f", "forward:\nnothing", "backward:\nall-reduce"),
        (8.8, "g", "forward:\nall-reduce", "backward:\nnothing"),
    ):
        ax.annotate("", (at + 0.65, 1.2), (at - 0.65, 1.2), arrowprops={"arrowstyle": "->", "color": GREY})
        ax.text(at, 1.3, name, ha="center", fontsize=12, fontweight="bold", color=RED)
        ax.text(at, 1.85, forward, ha="center", fontsize=8)
        ax.text(at, 0.95, backward, ha="center", va="top", fontsize=8)
    ax.set_xlim(-0.2, 10.8)
    ax.set_ylim(-0.35, 2.6)
    ax.set_axis_off()
    return fig


def _block(ax: Any, left: float, height: float, width: float, parts: int, *, by_columns: bool) -> None:
    """One matrix, its middle at 1.2, in ``parts`` with the looks of the ranks; whole ones are grey."""
    from matplotlib.patches import Rectangle

    bottom = 1.2 - height / 2
    for part in range(parts):
        wide, high = (width / parts, height) if by_columns else (width, height / parts)
        # Row 0 of a matrix is at its top.
        x = left + part * wide if by_columns else left
        y = bottom if by_columns else bottom + height - (part + 1) * high
        look: dict[str, Any] = {
            "facecolor": PALETTE[part % 7],
            "hatch": HATCHES[part % len(HATCHES)],
            "alpha": 0.5,
        }
        if parts == 1:
            look = {"facecolor": GREY, "alpha": 0.3}
        ax.add_patch(Rectangle((x, y), wide, high, edgecolor="white", **look))
        ax.add_patch(Rectangle((x, y), wide, high, fill=False, edgecolor=GREY, linewidth=0.7))
        if parts > 1:
            at = (x + wide / 2, y + high / 2)
            ax.text(*at, f"{part}", ha="center", va="center", fontsize=8, bbox=_WHITE)


def table_bytes_figure(
    rows: int = 1_000_000,
    dim: int = 16,
    samples: int = 512,
    ranks: int = 4,
    skew: float = 0.0,
    measured: Mapping[str, int] | None = None,
) -> Figure:
    """Bytes that the busiest rank sends in a step, for each way to hold a table, on a log scale.

    The expectation is that of ``plan_table`` with these arguments. ``measured``: name of a way, as in
    ``TableOption.name`` -> bytes counted in a run. ValueError for a measured way that the plan has not.

    >>> figure = table_bytes_figure(measured={"row_wise": 52_248})
    """
    plan = plan_table(rows, dim, samples=samples, ranks=ranks, skew=skew)
    counted = dict(measured or {})
    unknown = set(counted) - {option.name for option in plan.options}
    if unknown:
        raise ValueError(f"measured has {sorted(unknown)[0]!r}: the plan has no such way")
    worst, best = plan.options[-1], plan.options[0]
    times = worst.bytes_per_step / max(best.bytes_per_step, 1)
    words = "; ".join(
        f"{option.name} {_bytes(option.bytes_per_step)}"
        + (f", measured {_bytes(counted[option.name])}" if option.name in counted else "")
        for option in plan.options
    )
    fig, ax = new_figure(
        f"{worst.name}: {times:,.0f} times the bytes of {best.name}",
        alt=f"Bars on a log scale, one for each way to hold a table of {rows:,} x {dim} on {ranks} ranks "
        f"with {samples:,} look-ups each, skew {skew:g}. Bytes sent by the busiest rank: {words}.",
        xlabel="bytes sent by the busiest rank in one step (log scale)",
        size=(8.0, 0.9 + 0.42 * len(plan.options)),
    )
    for place, option in enumerate(plan.options):
        dense = option.name.endswith("dense")
        look = {"color": ORANGE, "hatch": "//", "edgecolor": "white"} if dense else {"color": BLUE}
        ax.barh(place, max(option.bytes_per_step, 1), height=0.6, **look)
        ax.text(
            option.bytes_per_step * 1.25 + 1, place, _bytes(option.bytes_per_step), va="center", fontsize=8
        )
        if option.name in counted:
            label = "measured" if "measured" not in ax.get_legend_handles_labels()[1] else None
            ax.plot(counted[option.name], place, marker="D", color=BLACK, linestyle="", label=label)
    ax.set_xscale("log")
    least = max(min(option.bytes_per_step for option in plan.options), 10)
    ax.set_xlim(least / 10, max(worst.bytes_per_step, 10) * 12)
    ax.set_yticks(range(len(plan.options)), [option.name for option in plan.options], fontsize=9)
    ax.invert_yaxis()
    if counted:
        ax.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 0.35))
    return fig


def _bytes(size: float) -> str:
    """Three digits and a unit: 96 MB, 52.2 kB (1 kB is 1,000 bytes).

    >>> _bytes(52_248), _bytes(96_000_000), _bytes(80)
    ('52.2 kB', '96 MB', '80 B')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def shard_load_figure(loads: Mapping[str, Sequence[int]]) -> Figure:
    """Rows that each rank serves in one step, one panel a layout, with the mean as a line.

    ``loads``: layout -> rows served by rank 0, 1, ... ValueError when there is none, or nobody serves.
    """
    if not loads or not all(sum(served) for served in loads.values()):
        raise ValueError("loads: give at least one layout whose ranks serve rows")
    ratio = {name: max(served) * len(served) / sum(served) for name, served in loads.items()}
    worst, best = max(ratio, key=lambda name: ratio[name]), min(ratio, key=lambda name: ratio[name])
    fig, axes = new_figure(
        f"Busiest rank over mean: {worst} {ratio[worst]:.1f}, {best} {ratio[best]:.1f}",
        alt="Bars of rows served by each rank. "
        + " ".join(
            f"{name}: {', '.join(f'{one:,}' for one in served)}; busiest {ratio[name]:.2f} times the mean."
            for name, served in loads.items()
        ),
        columns=len(loads),
        squeeze=False,
        sharey=True,
        size=(min(9.0, 1.0 + 2.4 * len(loads)), 2.9),
    )
    for ax, (name, served) in zip(axes.flat, loads.items(), strict=True):
        for rank, one in enumerate(served):
            ax.bar(rank, one, **rank_style(rank))
        mean = sum(served) / len(served)
        ax.axhline(mean, color=GREEN, linestyle="--", linewidth=1.4)
        ax.text(
            len(served) - 0.5, mean, " mean", color=BLACK, fontsize=8, ha="right", va="bottom", bbox=_WHITE
        )
        ax.set_title(f"{name}: {ratio[name]:.1f} x mean", fontsize=9)
        ax.set_xticks(range(len(served)), [str(rank) for rank in range(len(served))])
        ax.set_xlabel("rank")
    axes.flat[0].set_ylabel("rows served in one step")
    return fig
