"""Choose a schedule and see the rates that ranks used; move the batch and see the rate follow (lesson 05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtlab.figures.batch_rates import batch_rates_figure
from dtlab.figures.schedules import rates_figure
from dtlab.widgets.explorer import explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rates = Sequence[float]


def rates_explorer(
    runs: Mapping[str, Mapping[int, Rates]], right: Mapping[str, Rates], start: str | None = None
) -> None:
    """Show `rates_figure` with a menu of schedules.

    ``runs``: name -> number of ranks -> rates that its optimizer steps used. ``right``: name -> intended
    rates. It starts with ``start``, by default the first, and stays so where nothing can move.

    >>> rates_explorer({"flat": {1: [0.1], 2: [0.1]}}, {"flat": [0.1]})  # doctest: +ELLIPSIS
    [figure] flat: the same on 1 and 2 ranks, and right. ...
    """
    first = next(iter(runs)) if start is None else start

    def rates(schedule: str = first) -> Figure:
        return rates_figure(schedule, runs[schedule], right[schedule])

    explorer(rates, schedule=list(runs))


def batch_explorer() -> None:
    """Move ranks, micro-batch and accumulation; see the steps that are left, and the rate by each rule.

    >>> batch_explorer()  # doctest: +ELLIPSIS
    [figure] Batch 256 is 2x 128: 2,500 steps instead of 5,000, rate 1.41x. ...
    """
    explorer(
        batch_rates_figure,
        ranks=(1, 64),
        micro_batch=[8, 16, 32, 64, 128, 256],
        accumulation=[1, 2, 4, 8],
        rule=["none", "linear", "sqrt"],
        base_batch=[32, 64, 128, 256, 512],
        base_lr=[1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1],
        warmup_share=(0.0, 0.5, 0.01),
        schedule=["constant", "cosine", "linear"],
    )
