"""Move the state's size, the disk, the rate of interruptions, and see the best interval move (lesson 13)."""

from __future__ import annotations

from dtlab.figures.interruptions import interval_figure
from dtlab.widgets.explorer import explorer


def interval_explorer() -> None:
    """Show `interval_figure` with sliders and menus.

    >>> interval_explorer()  # doctest: +ELLIPSIS
    [figure] Best: every 16 min, ...
    """
    explorer(
        interval_figure,
        state_gb=[0.5, 3.84, 16.0, 112.0, 1000.0],
        write_gb_per_second=[0.05, 0.125, 0.2, 1.0, 10.0],
        interruptions_per_hour=(0.01, 1.0, 0.01),
        hosts=[1, 2, 4, 16, 64],
        restart_minutes=(0.0, 30.0, 1.0),
        usual_minutes=(1.0, 120.0, 1.0),
    )
