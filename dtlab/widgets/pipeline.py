"""Choose a pipeline schedule, stages and micro-batches; see its bubble and what is alive (lesson 08)."""

from __future__ import annotations

from dtlab.figures.pipeline import schedule_figure
from dtlab.parallel.schedules import SCHEDULES
from dtlab.widgets.explorer import explorer


def schedule_explorer() -> None:
    """Show `schedule_figure` with a menu of schedules and sliders of stages and micro-batches.

    >>> schedule_explorer()  # doctest: +ELLIPSIS
    [figure] The bubble is time in which a rank waits for its neighbours. 1f1b: bubble 27.3 %, ...
    """
    explorer(schedule_figure, schedule=list(SCHEDULES), stages=(1, 8), micro_batches=(1, 32))
