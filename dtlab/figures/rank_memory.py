"""Memory of the fullest rank under one way or another to share a model out, by item (lesson 09).

The bytes come from ``dtlab.cost.rank_memory``; this file only draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dtlab.cost.cards import cards
from dtlab.cost.memory import FITS_BELOW, Precision
from dtlab.cost.presets import Preset, preset
from dtlab.cost.programs import TORCH, Program
from dtlab.cost.rank_memory import ITEMS, fullest, rank_memory
from dtlab.cost.strategy import Strategy
from dtlab.cost.units import GIB
from dtlab.errors import UserError
from dtlab.figures.style import BLACK, GREY, HATCHES, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WAYS", "memory_by_ranks_figure", "strategy_memory_figure"]

WAYS: dict[str, Strategy] = {
    "DDP, 8 ranks": Strategy(dp_replicate=8),
    "ZeRO-1, 8 ranks": Strategy(dp_replicate=8, zero=1),
    "ZeRO-2, 8 ranks": Strategy(dp_replicate=8, zero=2),
    "FSDP, 8 ranks": Strategy(dp_shard=8, zero=3),
    "FSDP 8, recomputed": Strategy(dp_shard=8, zero=3, recompute="full"),
    "FSDP 8, 4 micro-batches without sync": Strategy(
        dp_shard=8, zero=3, num_micro_batches=4, sync_every_micro_batch=False
    ),
    "TP 8, sequence parallel": Strategy(tp=8, sequence_parallel=True),
    "PP 8, 1F1B": Strategy(pp=8, num_micro_batches=16),
    "PP 8, GPipe": Strategy(pp=8, num_micro_batches=16, schedule="gpipe"),
    "FSDP 4 x TP 2": Strategy(dp_shard=4, zero=3, tp=2, sequence_parallel=True),
}
"""Ways to train on 8 ranks, each with a micro-batch of 1, for the figure and its explorer."""


def strategy_memory_figure(
    model: str | Preset = "Llama 7B",
    ways: Mapping[str, Strategy] = WAYS,
    *,
    card: str = "A100 80 GiB",
    program: Program = TORCH,
    seq_len: int | None = None,
) -> Figure:
    """One stacked bar a way, of the rank that needs most, with the verdict against a card.

    Args:
        ways: a label and a strategy for each bar, top to bottom.
        card: a name from ``dtlab.cost.cards.cards``.

    Raises:
        UserError: an unknown card, no ways, or one that the model cannot be cut into.
    """
    if card not in cards():
        raise UserError(f"card = {card!r} is unknown: use one of {', '.join(cards())}")
    if not ways:
        raise UserError("ways = {}: give a label and a strategy for each bar")
    found = model if isinstance(model, Preset) else preset(model)
    bills = {
        label: fullest(rank_memory(found, strategy, program=program, seq_len=seq_len))[1]
        for label, strategy in ways.items()
    }
    verdicts = {label: bill.verdict(cards()[card]) for label, bill in bills.items()}
    listed = "; ".join(
        f"{label}: {bill.total / GIB:.1f} GiB, most of it {bill.largest}, {verdicts[label]}"
        for label, bill in bills.items()
    )
    fitting = sum(verdict == "fits" for verdict in verdicts.values())
    fig, ax = new_figure(
        f"{found.name}: {fitting} of {len(bills)} ways fit a card of {card.split(' ', 1)[-1]}",
        alt=f"One stacked bar a way, in GiB on the fullest rank, against {card}. {listed}.",
        xlabel="memory of the fullest rank (GiB)",
        size=(8.6, 1.1 + 0.36 * len(bills)),
    )
    ends = dict.fromkeys(bills, 0.0)
    for place, item in enumerate(ITEMS):
        sizes = [bill.items.get(item, 0) / GIB for bill in bills.values()]
        if not any(sizes):
            continue
        ax.barh(
            list(range(len(bills))), sizes, left=list(ends.values()), color=PALETTE[place % 7],
            hatch=HATCHES[place % len(HATCHES)], edgecolor="white", linewidth=0.5, label=item,
        )  # fmt: skip
        for label, size in zip(ends, sizes, strict=True):
            ends[label] += size
    limit, widest = cards()[card] / GIB, max(ends.values())
    shown = max(limit, widest)
    ax.axvline(limit, color=GREY, linewidth=1.2)
    ax.annotate(
        card, (limit, 1.0), xycoords=("data", "axes fraction"), xytext=(-2, 3), textcoords="offset points",
        ha="left", fontsize=8, color=BLACK,
    )  # fmt: skip
    ax.axvline(limit * FITS_BELOW, color=GREY, linewidth=0.9, linestyle=":")
    ax.annotate(
        f"{FITS_BELOW:.0%}", (limit * FITS_BELOW, 1.0), xycoords=("data", "axes fraction"), xytext=(2, 3),
        textcoords="offset points", ha="right", fontsize=8, color=BLACK,
    )  # fmt: skip
    for row, (label, end) in enumerate(ends.items()):
        ax.text(end + shown * 0.012, row, verdicts[label], va="center", fontsize=9)
    ax.set_yticks(range(len(bills)), list(bills))
    ax.invert_yaxis()
    ax.set_xlim(0, shown * 1.2)
    fig.legend(loc="outside right center", frameon=False, fontsize=8)
    return fig


def memory_by_ranks_figure(
    model: str = "Llama 7B",
    ranks: int = 8,
    micro_batch: int = 1,
    seq_len: int = 2048,
    card: str = "A100 80 GiB",
    precision: Precision = "bf16-mixed",
) -> Figure:
    """`strategy_memory_figure` for ways on 2, 4 or 8 ranks of one machine: what an explorer can move.

    >>> figure = memory_by_ranks_figure(ranks=2)
    """
    ways = {
        label: replace(way, micro_batch=micro_batch, precision=precision)
        for label, way in _ways_on(ranks).items()
    }
    return strategy_memory_figure(model, ways, card=card, seq_len=seq_len)


def _ways_on(ranks: int) -> dict[str, Strategy]:
    """A way each to share a model out over so many ranks."""
    ways = {
        f"DDP, {ranks} ranks": Strategy(dp_replicate=ranks),
        f"ZeRO-1, {ranks} ranks": Strategy(dp_replicate=ranks, zero=1),
        f"ZeRO-2, {ranks} ranks": Strategy(dp_replicate=ranks, zero=2),
        f"FSDP, {ranks} ranks": Strategy(dp_shard=ranks, zero=3),
        f"FSDP {ranks}, recomputed": Strategy(dp_shard=ranks, zero=3, recompute="full"),
        f"TP {ranks}, sequence parallel": Strategy(tp=ranks, sequence_parallel=True),
        f"PP {ranks}, 1F1B": Strategy(pp=ranks, num_micro_batches=2 * ranks),
        f"PP {ranks}, GPipe": Strategy(pp=ranks, num_micro_batches=2 * ranks, schedule="gpipe"),
    }
    if ranks > 2:
        ways[f"FSDP {ranks // 2} x TP 2"] = Strategy(
            dp_shard=ranks // 2, zero=3, tp=2, sequence_parallel=True
        )
    return ways
