"""The rank grid drawn: which ranks share layers, matrices and samples, and which talk (lesson 09)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtlab.errors import UserError
from dtlab.figures.style import BLACK, GREY, HATCHES, PALETTE, new_figure
from dtlab.parallel.dims import AXES, ParallelDims

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.5  # between tensor-parallel groups; a rank is 1 wide


def rank_grid_figure(dims: ParallelDims) -> Figure:
    """A cell for each rank: rows are pipeline ranks, blocks tensor-parallel groups.

    Colour and hatch tell the data-parallel index: cells of one look in a row see the same samples. Every cell
    has its rank in writing. ``UserError`` while a degree is -1.

    >>> figure = rank_grid_figure(ParallelDims(dp_replicate=2, tp=2, pp=2))
    >>> [text.get_text() for text in figure.axes[0].texts][:4]
    ['0', '1', '2', '3']
    """
    from matplotlib.patches import Rectangle

    pp, _, shards, tp = dims.shape
    block = tp + GAP
    first, *others = dims.describe().splitlines()
    fig, axes = new_figure(
        first,
        alt=f"Rank grid, tensor-parallel groups in brackets. {'; '.join(others)}.",
        size=(min(11.0, 1.6 + 0.55 * dims.dp * block), 1.5 + 0.55 * pp),
    )
    for rank in range(dims.size):
        place = dims.place(rank)
        group = place.dp_replicate * shards + place.dp_shard
        left = group * block + place.tp
        axes.add_patch(
            Rectangle(
                (left + 0.04, place.pp + 0.06), 0.92, 0.88, facecolor=PALETTE[group % 7], alpha=0.35,
                hatch=HATCHES[group % len(HATCHES)], edgecolor="white",
            )
        )  # fmt: skip
        axes.text(
            left + 0.5, place.pp + 0.5, str(rank), ha="center", va="center", color=BLACK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.8},
        )  # fmt: skip
    axes.set_xlim(-0.1, dims.dp * block - GAP + 0.1)
    axes.set_ylim(pp + 0.05, -0.05)
    centres = [group * block + tp / 2 for group in range(dims.dp)]
    names = [f"replica {group // shards}\nshard {group % shards}" for group in range(dims.dp)]
    axes.set_xticks(centres, names, fontsize=9)
    axes.set_yticks([stage + 0.5 for stage in range(pp)], [f"pp {stage}" for stage in range(pp)])
    axes.tick_params(length=0, colors=GREY, labelcolor=BLACK)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel(f"data-parallel index; {tp} tensor-parallel rank{'s' if tp > 1 else ''} in each block")
    return fig


TALK = {
    "pp": "activations, stage to stage",
    "dp_replicate": "all-reduce of a shard's gradient",
    "dp_shard": "all-gather of weights, reduce-scatter of gradients",
    "tp": "all-reduce of activations, in every layer",
}
"""What the ranks of one group send each other, by axis."""


def mesh_figure(dims: ParallelDims) -> Figure:
    """A panel for each axis of the mesh that has more than one rank: its groups, and what crosses in them.

    Every panel shows all ranks at the same places, in the order of their numbers; those of the axis that
    talks most stand side by side. Ranks of one group have one letter, colour and hatch. ``UserError`` for one
    rank.

    >>> figure = mesh_figure(ParallelDims(dp_replicate=2, dp_shard=2))
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['dp_replicate: AB | AB', 'dp_shard: AA | BB']
    """
    from matplotlib.patches import Rectangle

    axes_used = [axis for axis, degree in zip(AXES, dims.shape, strict=True) if degree > 1]
    if not axes_used:
        raise UserError("dims: one rank talks to nobody; give a degree above 1")
    columns = next(degree for degree in reversed(dims.shape) if degree > 1)
    rows = dims.size // columns
    words = "; ".join(
        f"{axis}: groups {', '.join(map(str, dims.groups(axis)))}, {TALK[axis]}" for axis in axes_used
    )
    who = "one group" if len(axes_used) == 1 else f"the same {dims.size} ranks in {len(axes_used)} ways"
    fig, panels = new_figure(
        f"{' x '.join(f'{axis} {getattr(dims, axis)}' for axis in axes_used)}: {who}",
        alt=f"{len(axes_used)} panels with the same {rows} x {columns} grid of ranks. {words}.",
        columns=len(axes_used),
        squeeze=False,
        size=(min(11.0, 1.2 + len(axes_used) * max(3.1, 0.75 * columns)), 1.6 + 0.7 * rows),
    )
    for ax, axis in zip(panels.flat, axes_used, strict=True):
        letters = {}
        for number, group in enumerate(dims.groups(axis)):
            for rank in group:
                letters[rank] = number
        for rank in range(dims.size):
            row, column = divmod(rank, columns)
            look = letters[rank]
            ax.add_patch(
                Rectangle(
                    (column + 0.05, row + 0.06), 0.9, 0.88, facecolor=PALETTE[look % 7], alpha=0.4,
                    hatch=HATCHES[look % len(HATCHES)], edgecolor="white",
                )
            )  # fmt: skip
            ax.text(
                column + 0.5, row + 0.5, f"{rank}\n{_letter(look)}", ha="center", va="center", color=BLACK,
                fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
            )  # fmt: skip
        told = [
            "".join(_letter(letters[row * columns + column]) for column in range(columns))
            for row in range(rows)
        ]
        ax.set_title(f"{axis}: {' | '.join(told)}", fontsize=10, loc="left")
        ax.set_xlabel(TALK[axis].replace(", ", ",\n"), fontsize=9)
        ax.set_xlim(0, columns)
        ax.set_ylim(rows, 0)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[["left", "bottom"]].set_visible(False)
    return fig


def _letter(number: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    turn, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")
