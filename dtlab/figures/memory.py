"""Memory of a model by item, against the memory of cards (lesson 01).

The bytes come from ``dtlab.cost.memory``; this file only draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.cost.activations import Recompute
from dtlab.cost.cards import cards
from dtlab.cost.memory import MemoryBill, Optimizer, Precision, training_bytes
from dtlab.cost.presets import preset
from dtlab.cost.units import GIB
from dtlab.figures.style import GREY, HATCHES, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITEMS = ("parameters", "gradients", "optimizer", "buckets", "cast copies", "activations", "logits", "context")
SMALL = ("T4 16 GiB", "A10G 22.4 GiB", "V100 32 GiB", "A100 40 GiB", "A100 80 GiB")
LARGE = ("H200 141 GiB", "B300 268.6 GiB")


def preset_memory_figure(
    model: str = "BERT-large",
    micro_batch: int = 4,
    *,
    precision: Precision = "fp32",
    optimizer: Optimizer = "adam",
    recompute: bool = False,
    ddp: bool = False,
) -> Figure:
    """``memory_figure`` of a preset. ``recompute`` counts for transformers, the only ones that "
    "it has a formula for."""
    full: Recompute = "full" if recompute and preset(model).layers else "none"
    bill = training_bytes(
        model, micro_batch, precision=precision, optimizer=optimizer, recompute=full, ddp_buckets=ddp
    )
    return memory_figure(bill, f"{model}, micro-batch {micro_batch}")


def memory_figure(bill: MemoryBill, name: str, on: Sequence[str] | None = None) -> Figure:
    """One rank's bytes by item in the top bar, a card in each bar below, with its verdict.

    ``on``: names from ``dtlab.cost.cards.cards``; by default some common ones, with the largest where needed.
    """
    if on is None:
        on = SMALL if bill.total < 0.5 * cards()[SMALL[-1]] else SMALL + LARGE
    sizes = {card: cards()[card] for card in on}
    verdicts = {card: bill.verdict(size) for card, size in sizes.items()}
    total = bill.total / GIB
    share = bill.items[bill.largest] / bill.total
    parts = [(item, bill.items[item] / GIB) for item in ITEMS if bill.items.get(item)]
    listed = ", ".join(f"{item} {size:.2f}" for item, size in parts)
    against = "; ".join(f"{card}: {verdict}" for card, verdict in verdicts.items())
    fig, ax = new_figure(
        f"{name}: {total:,.1f} GiB{' and more' if bill.unknown else f', {share:.0%} of it {bill.largest}'}",
        alt=f"One stacked bar in GiB: {listed}. {_left_out(bill)}Below it one bar a card: {against}.",
        xlabel="memory of one card (GiB)",
        size=(7.6, 0.8 + 0.38 * (len(sizes) + 1)),
    )
    at = 0.0
    for item, size in parts:
        place = ITEMS.index(item)
        ax.barh(
            0, size, left=at, color=PALETTE[place % 7], hatch=HATCHES[place], edgecolor="white",
            linewidth=0.5, label=item,
        )  # fmt: skip
        at += size
    widest = max(total, *(size / GIB for size in sizes.values()))
    for row, (card, size) in enumerate(sizes.items(), 1):
        ax.barh(row, size / GIB, color="none", edgecolor=GREY, linewidth=1.2)
        ax.text(size / GIB + widest * 0.012, row, verdicts[card], va="center", fontsize=9)
    ax.axvline(total, color="black", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(sizes) + 1), ["this rank", *sizes])
    ax.invert_yaxis()
    ax.set_xlim(0, widest * 1.18)
    fig.legend(loc="outside right center", frameon=False, fontsize=8)
    return fig


def _left_out(bill: MemoryBill) -> str:
    return f"Not drawn, because not known: {'; '.join(bill.unknown)}. " if bill.unknown else ""
