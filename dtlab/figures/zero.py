"""What each rank holds under ZeRO 0 to 3 (lesson 09). The bytes come from ``dtlab.cost.zero``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtlab.cost.cards import cards
from dtlab.cost.memory import FITS_BELOW, Optimizer, Precision
from dtlab.cost.parameters import decoder_units
from dtlab.cost.zero import zero_bytes
from dtlab.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GB = 1e9
STAGES = ("ZeRO-0\n(DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3\n(FSDP)")
LOOKS: dict[str, dict[str, Any]] = {
    "parameters": {"color": BLUE, "hatch": ""},
    "gradients": {"color": ORANGE, "hatch": "//"},
    "optimizer": {"color": GREEN, "hatch": ".."},
    "in use": {"color": PINK, "hatch": "xx"},
}
# Layers and width of decoders by their billions of parameters: table 2.1 of Brown et al., arXiv 2005.14165.
SHAPES = {1.3: (24, 2048), 2.7: (32, 2560), 6.7: (32, 4096), 13: (40, 5120)}
VOCAB, POSITIONS = 50257, 2048


def decoder_of(billions: float) -> list[int]:
    """The units of a GPT-3 of that size: each block, and embedding, head's norm and their matrix as one.

    >>> round(sum(decoder_of(6.7)) / 1e9, 1)
    6.7
    """
    layers, hidden = SHAPES[billions]
    embedding, *blocks, head = decoder_units(layers, hidden, VOCAB, POSITIONS, biases=True)
    return [*blocks, embedding + head - VOCAB * hidden]  # tied: one matrix


def zero_figure(
    billions: float = 6.7,
    ranks: int = 8,
    precision: Precision = "bf16-mixed",
    per_block: bool = True,
    card: str = "A100 40 GiB",
) -> Figure:
    """``zero_bars`` for a GPT-3 of 1.3, 2.7, 6.7 or 13 billion parameters.

    ``per_block``: each block is a unit; False: the whole model is one. ``card``: from ``dtlab.cost.cards``.

    >>> figure = zero_figure(1.3, ranks=4)
    """
    units = decoder_of(billions)
    name = f"{billions:g}B parameters" if per_block else f"{billions:g}B, wrapped as a whole"
    return zero_bars(units if per_block else [sum(units)], ranks, name, precision=precision, card=card)


def zero_bars(
    units: Sequence[int],
    ranks: int,
    name: str,
    *,
    precision: Precision = "bf16-mixed",
    optimizer: Optimizer = "adam",
    card: str | None = None,
) -> Figure:
    """One stacked bar for each stage: the bytes on every rank, without activations.

    ``units``: as for ``dtlab.cost.zero.zero_bytes``. ``card``: its memory is drawn as a line, with the 80 %
    up to which a run fits.
    """
    bills = [
        zero_bytes(units, ranks, zero, precision=precision, optimizer=optimizer) for zero in (0, 1, 2, 3)
    ]
    limit = None if card is None else cards()[card]
    words = "; ".join(
        f"{stage.replace(chr(10), ' ')}: "
        + ", ".join(f"{item} {size / GB:.2f}" for item, size in bill.items.items())
        + f", together {bill.total / GB:.2f}"
        + ("" if limit is None else ", fits" if bill.total < FITS_BELOW * limit else ", does not fit")
        for stage, bill in zip(STAGES, bills, strict=True)
    )
    against = "" if limit is None else f" A line marks the card, {card}, {limit / GB:.1f} GB, one its 80 %."
    fig, ax = new_figure(
        f"{name} on {ranks} rank{'s' if ranks > 1 else ''}: {bills[0].total / GB:,.1f} GB on each under DDP, "
        f"{bills[3].total / GB:,.1f} under FSDP",
        alt=f"Four stacked bars, GB on every rank, {precision}, {optimizer}, no activations. "
        f"{words}.{against}",
        ylabel="states of one rank (GB)",
        size=(7.6, 3.9),
    )
    highest = max(max(bill.total for bill in bills), limit or 0) / GB
    for place, bill in enumerate(bills):
        at = 0.0
        for item, size in bill.items.items():
            ax.bar(place, size / GB, bottom=at, width=0.62, edgecolor="white", linewidth=0.5, **LOOKS[item])
            at += size / GB
        ax.text(place, at + highest * 0.015, f"{at:,.1f}", ha="center", fontsize=9)
    for item, look in LOOKS.items():
        ax.bar(0, 0, edgecolor="white", label=item, **look)
    if limit is not None:
        ax.axhline(limit / GB, color=BLACK, linewidth=1.2)
        ax.axhline(FITS_BELOW * limit / GB, color=RED, linewidth=1.0, linestyle="--")
        ax.text(3.42, limit / GB, card, ha="right", va="bottom", fontsize=8)
        ax.text(3.42, FITS_BELOW * limit / GB, "80 % of it", ha="right", va="top", fontsize=8, color=RED)
    ax.set_xticks(range(4), STAGES)
    ax.tick_params(axis="x", length=0)
    ax.grid(axis="y", color=GREY, alpha=0.25)
    ax.set_axisbelow(True)
    ax.set_xlim(-0.5, 3.5)
    ax.set_ylim(0, highest * 1.12)
    fig.legend(loc="outside right center", frameon=False, fontsize=9)
    return fig
