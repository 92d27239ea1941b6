"""Choose a schedule and see the rates that 1, 2 and 4 ranks used (lesson 05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
