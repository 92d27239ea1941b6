"""How far a step fitted to runs may be off: the half-width within which nine of ten fall (lesson 10).

Two runs fix two numbers and leave nothing to judge them by, so that the fit alone says little of its error.
Five parts, as shares of the predicted step; the first three are added as independent errors are:

1. *Runs*: how far the prediction moves when each run had taken longer by its own spread, or by `AGAIN`, what
   the same run differs by when it is started again. A prediction beyond the runs moves by more than they do.
   The run that is predicted differs by `AGAIN` itself.
2. *Batch*: `PER_DOUBLING` for each doubling of a rank's batch above the largest that was run, or halving
   below the smallest: caches and kernels change, and no line says how.
3. *Ranks*: half of the communication for each doubling beyond the most ranks that were run, and `CROWDED` for
   each doubling of the ranks that share a core: two ranks alone predicted four on two cores at 30.6 ms, and
   they took 39.3.
4. *Left out*: the worst error of a run that is predicted from the others, with three runs or more.
5. *Contradiction*: how far the runs of one number of ranks lie from the line of all; `UNTOLD` where the fixed
   part of a step is not known.

The last two are not added: the largest of them and of the sum is the error.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from dtlab.cost.run_steps import RunSteps, StepPrediction, alike, mixed, slowdown

NINE_OF_TEN = 1.645  # of a normal error's deviation
AGAIN = 0.03
PER_DOUBLING = 0.05
CROWDED = 0.30
UNTOLD = 0.15


class Fit(Protocol):
    """What is asked of a `run_fit.RunFit`."""

    @property
    def runs(self) -> tuple[RunSteps, ...]: ...

    @property
    def own(self) -> Mapping[int, float]: ...

    @property
    def cores(self) -> int | None: ...

    def step(self, ranks: int, global_batch: int, nodes: int = 1) -> StepPrediction: ...


Refit = Callable[[Sequence[RunSteps]], Fit]


def prediction_error(fit: Fit, found: StepPrediction, nodes: int, refit: Refit) -> float:
    """The half-width for `found`, which `fit` predicted, as a share of its step.

    Args:
        refit: makes a fit of other runs, `run_fit.fit_runs`.

    >>> from dtlab.cost.run_fit import fit_runs
    >>> one = RunSteps(ranks=1, global_batch=4096, step_seconds=0.050)
    >>> two = RunSteps(ranks=2, global_batch=4096, step_seconds=0.033, communication_seconds=0.003)
    >>> fit = fit_runs([one, two])
    >>> [round(fit.predict(2, batch).error, 2) for batch in (4096, 16384, 65536)]
    [0.07, 0.11, 0.2]
    """
    runs = math.hypot(AGAIN, *(_moved(fit, found, run, nodes, refit) for run in fit.runs)) * NINE_OF_TEN
    total = math.hypot(runs, PER_DOUBLING * _beyond(fit, found), *_ranks(fit, found, nodes))
    if mixed(fit.runs):
        apart = [UNTOLD]
    else:
        apart = [abs(fit.own[run.ranks] - 1) for run in alike(fit.runs) if run.ranks in fit.own]
    return max(total, _left_out(alike(fit.runs), refit), *apart)


def _moved(fit: Fit, found: StepPrediction, run: RunSteps, nodes: int, refit: Refit) -> float:
    """How far the prediction moves when that run had been slower."""
    slower = tuple(_slower(other) if other is run else other for other in fit.runs)
    again = refit(slower).step(found.ranks, found.global_batch, nodes)
    return again.step_seconds / found.step_seconds - 1


def _slower(run: RunSteps) -> RunSteps:
    more = 1 + max(run.spread, AGAIN)
    return replace(
        run,
        step_seconds=run.step_seconds * more,
        communication_seconds=run.communication_seconds * more,
        wait_seconds=run.wait_seconds * more,
    )


def _beyond(fit: Fit, found: StepPrediction) -> float:
    """Doublings of a rank's batch outside those that were run."""
    local = found.global_batch / found.ranks
    ran = [run.local_batch for run in fit.runs]
    return max(0.0, math.log2(local / max(ran)), math.log2(min(ran) / local))


def _ranks(fit: Fit, found: StepPrediction, nodes: int) -> tuple[float, float]:
    """Errors of more ranks than were run: of their messages, and of sharing cores."""
    most = max(run.ranks for run in fit.runs)
    more = max(0.0, math.log2(found.ranks / most))
    talk = 0.5 * more * found.communication_seconds / found.step_seconds
    seen = max(slowdown(run.ranks, run.nodes, fit.cores) for run in fit.runs)
    crowded = math.log2(slowdown(found.ranks, nodes, fit.cores) / seen)
    return talk, CROWDED * max(0.0, crowded)


def _left_out(runs: Sequence[RunSteps], refit: Refit) -> float:
    """The worst error of a run predicted from the others; 0 where no other two are left to predict it."""
    errors = [0.0]
    for run in runs if len(runs) > 2 else ():
        others = [other for other in runs if other is not run]
        if len({other.local_batch for other in others}) > 1 and (
            run.ranks == 1 or any(other.ranks > 1 for other in others)
        ):
            predicted = refit(others).step(run.ranks, run.global_batch, run.nodes).step_seconds
            errors.append(abs(predicted / run.step_seconds - 1))
    return max(errors)
