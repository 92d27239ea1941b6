"""Who saw which sample, and the orders of two epochs: the figures of samplers (lesson 04).

- ``coverage_figure`` draws what ``dtlab.data.coverage.seen`` counted from ids that ranks returned.
- ``order_figure`` puts the orders of epochs one below the other, one panel for each way to make them.

Only the fields ``ids`` and ``counts`` of what was counted are read, so this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dtlab.figures.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SAMPLES = 100  # more columns than this cannot be told apart on a page
MOST_NUMBERS = 60  # more numbers than this in a row cannot be read
NOTHING = "#E6E6E6"


class Counted(Protocol):
    """What is read of a count; ``dtlab.data.coverage.Seen`` has it."""

    @property
    def ids(self) -> np.ndarray: ...
    @property
    def counts(self) -> np.ndarray: ...


def coverage_figure(counted: Counted, name: str, until: str = "") -> Figure:
    """Rank x sample, with a last row for all ranks together: once, twice or more often, never.

    - ``counted``: ``seen(ids_by_rank, universe)``. ``name`` begins the title; ``until`` says up to where the
      ids were counted ("step 2 of 7").
    - ValueError for more than 100 samples, or none.

    >>> from dtlab.data.coverage import seen
    >>> figure = coverage_figure(seen([[0, 1], [1, 2]], universe=range(4)), "Two ranks")
    """
    ranks, samples = counted.counts.shape
    if not 0 < samples <= MOST_SAMPLES:
        raise ValueError(f"{samples} samples: the grid shows 1 to {MOST_SAMPLES}; count a part of them")
    together = counted.counts.sum(axis=0)
    where = ", ".join(part for part in (name, until) if part)
    fig, ax = new_figure(
        f"{where}: {_finding(together)}",
        alt=_coverage_words(counted, together),
        xlabel="sample (id); the number in a cell says how often it was seen",
        size=(9.0, 1.75 + 0.42 * (ranks + 1)),
    )
    for rank in range(ranks):
        _row(ax, rank, counted.counts[rank], {0: NOTHING, 1: BLUE}, never=False)
    _row(ax, ranks + 0.25, together, {0: "white", 1: GREEN}, never=True)
    ax.set_xlim(0, samples)
    ax.set_ylim(ranks + 1.3, -0.05)
    ax.set_yticks(
        [*(rank + 0.5 for rank in range(ranks)), ranks + 0.75],
        [*(f"rank {rank}" for rank in range(ranks)), "all ranks"],
    )
    every = max(1, samples // 12)
    ax.set_xticks(np.arange(0, samples, every) + 0.5, [str(one) for one in counted.ids[::every]])
    _bare(ax)
    _legend(fig)
    return fig


def _finding(together: np.ndarray) -> str:
    samples = len(together)
    if len(set(together.tolist())) == 1 and together[0] > 0:
        return f"every sample {_times(int(together[0]))}"
    again, never = int((together > 1).sum()), int((together == 0).sum())
    return f"{again} of {samples} samples more than once, {never} never"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _coverage_words(counted: Counted, together: np.ndarray) -> str:
    def named(chosen: np.ndarray) -> str:
        found = [str(one) for one in counted.ids[chosen]]
        if not found or len(found) == len(together):
            return "all" if found else "none"
        return ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "")

    rows = "; ".join(
        f"rank {rank} saw {int(row.sum())} rows, {int((row > 0).sum())} different"
        for rank, row in enumerate(counted.counts)
    )
    return (
        f"Grid of {len(counted.counts)} ranks by {len(together)} samples. {rows}. "
        f"By all ranks together, once: {named(together == 1)}; more than once: {named(together > 1)}; "
        f"never: {named(together == 0)}."
    )


def _row(ax: Any, top: float, counts: np.ndarray, colours: Mapping[int, str], *, never: bool) -> None:
    from matplotlib.patches import Rectangle

    for column, count in enumerate(counts.tolist()):
        missing = never and count == 0
        ax.add_patch(
            Rectangle(
                (column + 0.06, top + 0.08),
                0.88,
                0.84,
                facecolor=colours.get(count, ORANGE),
                edgecolor=RED if missing else "white",
                linewidth=1.0 if missing else 0.0,
                hatch="xxx" if missing else "//" if count > 1 else None,
            )
        )
        if count > 1 and len(counts) <= MOST_NUMBERS:
            ax.text(
                column + 0.5,
                top + 0.5,
                str(count),
                ha="center",
                va="center",
                fontsize=7,
                color=BLACK,
                fontweight="bold",
                bbox={"facecolor": ORANGE, "edgecolor": "none", "pad": 0.4},
            )


def _legend(fig: Any) -> None:
    from matplotlib.patches import Patch

    kinds = [
        Patch(facecolor=BLUE, label="seen once by this rank"),
        Patch(facecolor=GREEN, label="once by all together"),
        Patch(facecolor=ORANGE, hatch="//", edgecolor="white", label="more than once"),
        Patch(facecolor="white", hatch="xxx", edgecolor=RED, label="never by any rank"),
    ]
    fig.legend(handles=kinds, loc="outside lower left", ncols=4, frameon=False, fontsize=8)


def order_figure(orders: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Orders of epochs, one row each, as cells coloured by sample; one panel for each name.

    - ``orders``: name -> orders of the epochs 0, 1, ..., each a list of sample ids of one length.
    - ValueError when there is no order, or when orders of one name differ in length.

    >>> figure = order_figure({"no set_epoch": [[2, 0, 1], [2, 0, 1]], "set_epoch": [[2, 0, 1], [1, 0, 2]]})
    """
    for name, epochs in orders.items():
        if not epochs or len({len(order) for order in epochs}) != 1:
            raise ValueError(f"{name}: give the orders of at least one epoch, all of one length")
    if not orders:
        raise ValueError("orders is empty: give at least one name with its orders")
    rows = max(len(epochs) for epochs in orders.values())
    fig, axes = new_figure(
        _order_finding(orders),
        alt=_order_words(orders),
        rows=len(orders),
        size=(9.0, 0.8 + len(orders) * (0.75 + 0.36 * rows)),
        squeeze=False,
    )
    for ax, (name, epochs) in zip(axes.flat, orders.items(), strict=True):
        _orders(ax, epochs)
        ax.set_title(name, fontsize=10, loc="left")
    axes.flat[-1].set_xlabel("position in the epoch; a cell's number and colour are the sample's id")
    return fig


def _orders(ax: Any, epochs: Sequence[Sequence[int]]) -> None:
    from matplotlib import colormaps

    table = np.array(epochs)
    shades = colormaps["cividis"]
    last = max(1, int(table.max()))
    ax.pcolormesh(table, cmap=shades, vmin=0, vmax=last, edgecolors="white", linewidth=1.0)
    for row, order in enumerate(epochs):
        for column, sample in enumerate(order) if table.shape[1] <= MOST_NUMBERS else ():
            light = sample / last > 0.55
            ax.text(
                column + 0.5,
                row + 0.5,
                str(sample),
                ha="center",
                va="center",
                fontsize=8 if table.shape[1] <= 32 else 6,
                color=BLACK if light else "white",
            )
    ax.set_ylim(len(epochs), 0)
    ax.set_yticks([row + 0.5 for row in range(len(epochs))], [f"epoch {row}" for row in range(len(epochs))])
    every = max(1, table.shape[1] // 12)
    shown = range(0, table.shape[1], every)
    ax.set_xticks([at + 0.5 for at in shown], [str(at) for at in shown])
    _bare(ax)


def repeats(epochs: Sequence[Sequence[int]]) -> bool:
    """Whether every epoch has the order of the first.

    >>> repeats([[1, 0], [1, 0]]), repeats([[1, 0], [0, 1]])
    (True, False)
    """
    return all(list(order) == list(epochs[0]) for order in epochs[1:])


def _order_finding(orders: Mapping[str, Sequence[Sequence[int]]]) -> str:
    same = [name for name, epochs in orders.items() if len(epochs) > 1 and repeats(epochs)]
    other = [name for name, epochs in orders.items() if len(epochs) > 1 and not repeats(epochs)]
    said = [f"{', '.join(same)}: the order repeats"] if same else []
    said += [f"{', '.join(other)}: a new order"] if other else []
    return "; ".join(said) or "The order of one epoch"


def _order_words(orders: Mapping[str, Sequence[Sequence[int]]]) -> str:
    return " ".join(
        f"{name}: "
        + "; ".join(f"epoch {row}: {', '.join(map(str, order))}" for row, order in enumerate(epochs))
        + "."
        for name, epochs in orders.items()
    )


def _bare(ax: Any) -> None:
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
