"""What a larger global batch does to steps and learning rate, by each scaling rule (lesson 05).

The same samples are trained in both plans. The rate of every step comes from `dtlab.train.schedule`, that
of the peak from `dtlab.train.scaling`; this file only draws them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from dtlab.figures.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 300


def batch_rates_figure(
    ranks: int = 8,
    micro_batch: int = 32,
    accumulation: int = 1,
    rule: Literal["none", "linear", "sqrt"] = "sqrt",
    base_batch: int = 128,
    base_lr: float = 1e-3,
    warmup_share: float = 0.05,
    schedule: Literal["constant", "cosine", "linear"] = "cosine",
    thousand_samples: int = 640,
) -> Figure:
    """Rate against samples seen: one card with ``base_batch``, and all ranks with the global batch.

    - Global batch: ranks x micro-batch x accumulation. ``rule``: how the peak follows it.
    - ``warmup_share``: share of the optimizer steps; without a warm-up the first steps use the full rate.

    >>> figure = batch_rates_figure(ranks=1, micro_batch=128)
    """
    from dtlab.train.config_schedule import ScheduleConfig
    from dtlab.train.scaling import effective_batch, scaled_lr
    from dtlab.train.schedule import Schedule

    batch = effective_batch(micro_batch, ranks, accumulation)
    peak = scaled_lr(base_lr, rule, base_batch, batch)
    plans = {}
    for name, size, lr in (("base", base_batch, base_lr), ("scaled", batch, peak)):
        steps = max(1, math.ceil(1000 * thousand_samples / size))
        config = ScheduleConfig(kind=schedule, warmup=int(warmup_share * steps))
        plan = Schedule(config, lr, steps)
        at = {round(place * (steps - 1) / _POINTS) for place in range(_POINTS + 1)}
        at.add(max(0, int(config.warmup) - 1))  # the first step at the full rate
        plans[name] = (steps, int(config.warmup), [(step * size, plan.lr_at(step)) for step in sorted(at)])
    (base_steps, _, base_rates), (steps, warmup, rates) = plans["base"], plans["scaled"]
    fig, ax = new_figure(
        f"Batch {batch:,} is {batch / base_batch:g}x {base_batch:,}: {steps:,} steps instead of "
        f"{base_steps:,}, rate {peak / base_lr:.3g}x",
        alt=f"Learning rate against samples seen, {thousand_samples:,} thousand, {schedule}. One card: "
        f"batch {base_batch:,}, {base_steps:,} steps, peak {base_lr:.3g}. {ranks} ranks with {micro_batch} "
        f"samples each, {accumulation} accumulated: batch {batch:,}, {steps:,} steps of which {warmup:,} "
        f"warm up, peak {peak:.3g} by the rule {rule}.",
        xlabel="samples seen (thousands)",
        ylabel="learning rate",
        size=(8.0, 3.4),
    )
    ax.plot(
        [seen / 1000 for seen, _ in base_rates], [lr for _, lr in base_rates], color=GREY, linewidth=5,
        alpha=0.5, label=f"one card, batch {base_batch:,}",
    )  # fmt: skip
    ax.plot(
        [seen / 1000 for seen, _ in rates], [lr for _, lr in rates], color=BLUE, linewidth=2,
        label=f"{ranks} x {micro_batch} x {accumulation} = {batch:,}, rule {rule}",
    )  # fmt: skip
    ax.axhline(peak, color=ORANGE, linestyle=":", label=f"peak {peak:.3g}")
    ax.set_ylim(bottom=0)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    ax.legend(frameon=False, fontsize=8)
    return fig
