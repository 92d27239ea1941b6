"""Step through an all-reduce that really ran: a slider for the step, a menu for the algorithm (lesson 02)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtlab.figures.all_reduce import Sent, chunk_figure, num_steps
from dtlab.widgets.explorer import explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def all_reduce_explorer(runs: Mapping[str, Sequence[Sent]], ranks: int, start: int = 1) -> None:
    """Show `chunk_figure` of recorded messages with a slider; still, at step `start`, where nothing can move.

    `runs`: name -> messages of all ranks (`dtlab.collectives.in_steps`). With several runs there is a menu.
    """
    last = max(num_steps(messages) for messages in runs.values())
    first = next(iter(runs))

    def all_reduce(step: int = start, algorithm: str = first) -> Figure:
        return chunk_figure(runs[algorithm], ranks, step, algorithm.capitalize())

    if len(runs) == 1:
        explorer(all_reduce, step=(0, last))
    else:
        explorer(all_reduce, step=(0, last), algorithm=list(runs))
