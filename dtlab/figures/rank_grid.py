"""The rank grid drawn: which ranks share layers, matrices and samples (lesson 09)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtlab.figures.style import BLACK, GREY, HATCHES, PALETTE, new_figure
from dtlab.parallel.dims import ParallelDims

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
