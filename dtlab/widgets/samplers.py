"""Move through the steps of an epoch and see which rank saw which sample (lesson 04)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from dtlab.figures.samplers import coverage_figure
from dtlab.widgets.explorer import explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dtlab.data.coverage import Seen

IdsByStep = Sequence[Sequence[int]]


def seen_until(by_rank: Sequence[IdsByStep], universe: Iterable[int], steps: int) -> Seen:
    """Count what every rank saw in its first ``steps`` steps.

    ``by_rank``: for each rank, for each of its steps, the ids of its batch.

    >>> seen_until([[[0], [1]], [[1], [2]]], range(3), steps=1).never.tolist()
    [2]
    """
    from dtlab.data.coverage import seen

    return seen([list(chain.from_iterable(mine[:steps])) for mine in by_rank], list(universe))


def coverage_explorer(
    runs: Mapping[str, Sequence[IdsByStep]], universe: Iterable[int], start: int | None = None
) -> None:
    """Show `coverage_figure` with a menu of runs and a slider of steps.

    ``runs``: name -> for each rank, for each step, the ids that it really had. It starts with the first run
    after ``start`` steps (all of them by default), and stays so where nothing can move.
    """
    ids = list(universe)
    lengths = {name: max((len(mine) for mine in by_rank), default=0) for name, by_rank in runs.items()}
    last, first = max(lengths.values()), next(iter(runs))

    def coverage(steps: int = last if start is None else start, run: str = first) -> Figure:
        until = f"step {steps} of {lengths[run]}" if steps < lengths[run] else ""
        return coverage_figure(seen_until(runs[run], ids, steps), run, until)

    explorer(coverage, steps=(0, last), run=list(runs))
