"""The search itself: one trial after the other on this machine's ranks, until trials or dollars are used.

A trial is an ordinary run with an ordinary record in ``folder/trial-<number>``. What it read, how far it came
and what it cost stand there. A search that was killed goes on: finished trials count, the one that ran is
taken up again in its own folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from dtlab.cost import billing
from dtlab.diagnose.record_file import read_record
from dtlab.errors import UserError, one_line
from dtlab.files import alone_in
from dtlab.train.config import TrainConfig
from dtlab.train.record import RECORD
from dtlab.tune.space import Choice, changed
from dtlab.tune.study import Judge, StudyPlan, _optuna, mend_journal, suggest

__all__ = ["Found", "TrialResult", "search"]

_MOST_FAILED = 3  # at the beginning, in a row: then it is not the values that are at fault


@dataclass(frozen=True)
class TrialResult:
    """How one trial ended.

    Attributes:
        number: from 0.
        values: of the settings that are searched.
        state: complete, pruned or failed.
        metric: validation of the weights that a complete trial kept, else the best report; None without one.
        samples: trained.
        seconds: on the ranks.
    """

    number: int
    values: dict[str, Any]
    state: str
    metric: float | None
    samples: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """What a search found and what it took.

    Attributes:
        trials: in the order of their starts.
        best: the complete trial with the best validation, whose model lies in its folder; where none is
            complete, the one with the best report; None where there is none.
        samples: trained by all trials together.
        bill: of all trials together, one after the other on the same machine.
        ended_by: "trials", "budget" or "grid".
    """

    trials: tuple[TrialResult, ...]
    best: TrialResult | None
    samples: int
    bill: billing.Bill
    ended_by: str


def search(
    config: TrainConfig,
    plan: StudyPlan,
    *,
    nproc: int,
    judge_every: int,
    trials: int | None = None,
    budget_usd: float | None = None,
    max_samples: int | None = None,
    timeout: float | None = None,
    tell: Callable[[str], None] = print,
) -> Found:
    """Run trials until ``trials`` or ``budget_usd`` are used, or the grid is done.

    Args:
        config: of every trial, but for the settings that are searched. Its refit is left out.
        plan: of the study.
        nproc: ranks of a trial.
        judge_every: optimizer steps of config's own global batch between two reports.
        trials: how many, those of an earlier start counted.
        budget_usd: for the seconds of all trials on run.instance.
        max_samples: trained by all trials together; looked at whenever a trial reports.
        timeout: seconds that one trial may take.
        tell: takes a line for every trial.

    Raises:
        UserError: no limit is given, the grid has a range, another search is in the folder or one of another
            space was, its journal is damaged, or the first trials fail.
    """
    grid = _grid_size(plan)
    if trials is None and budget_usd is None and max_samples is None and grid is None:
        raise UserError("trials = None: give trials, budget_usd or both; a search needs an end")
    most = min(math.inf if trials is None else trials, math.inf if grid is None else grid)
    with alone_in(plan.folder, "folder", "dtlab tune"):
        mend_journal(plan)
        return _search(
            config,
            plan,
            nproc=nproc,
            judge_every=judge_every,
            most=most,
            is_grid=grid is not None and most == grid,
            budget_usd=budget_usd,
            max_samples=max_samples,
            timeout=timeout,
            tell=tell,
        )


def _search(
    config: TrainConfig,
    plan: StudyPlan,
    *,
    nproc: int,
    judge_every: int,
    most: float,
    is_grid: bool,
    budget_usd: float | None,
    max_samples: int | None,
    timeout: float | None,
    tell: Callable[[str], None],
) -> Found:
    optuna = _optuna()
    study = plan.open()
    told = len(_started(study))
    if told:
        study = plan.open(told=told)
        tell(f"going on: {told} trials are in {plan.folder}")
    ended_by = "grid" if is_grid else "trials"
    per_second = billing.cost(config.run.instance, 3600).usd / 3600
    running = [each for each in _started(study) if not each.state.is_finished()]
    per_rung = judge_every * config.optim.global_batch
    while running or len(_started(study)) < most:
        left = (
            None if budget_usd is None else budget_usd / per_second - sum(t.seconds for t in _results(study))
        )
        rest = None if max_samples is None else max_samples - sum(t.samples for t in _results(study))
        if (left is not None and left <= 0) or (rest is not None and rest <= 0):
            ended_by = "budget"
            break
        trial = optuna.trial.Trial(study, running.pop()._trial_id) if running else _next(study, plan)
        values = _suggested(trial, plan)
        folder = plan.folder / f"trial-{trial.number}"
        one = changed(config, values)
        limits = one.stopping if left is None else replace(one.stopping, max_seconds=left)
        one = replace(one, stopping=limits, run=replace(one.run, folder=folder, refit=False, resume=False))
        steps = max(1, round(per_rung / one.optim.global_batch))
        outcome, error = _run(one, Judge(plan, trial._trial_id, per_rung, rest), nproc, steps, timeout)
        trial.set_user_attr("samples", outcome.get("samples", 0))
        trial.set_user_attr("seconds", outcome.get("seconds", 0.0))
        reported = list(study.get_trials(deepcopy=False)[trial.number].intermediate_values.values())
        known = [value for value in reported if math.isfinite(value)]
        cut = (outcome.get("stopped_by") or "").startswith("budget")  # the end of the search, no fault
        if error is not None or not (known or cut):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif outcome.get("stopped_by"):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            # That of the weights which the run kept: those of its best epoch.
            kept = outcome.get("auc_validation")
            study.tell(trial, kept if kept is not None else max(known) if plan.maximize else min(known))
        results = _results(study)
        tell(_line(results[trial.number], error or ("ended by the budget" if cut else None)))
        if error is not None and len(results) >= _MOST_FAILED and all(t.state == "failed" for t in results):
            raise UserError(f"tune: the first {len(results)} trials failed, the last one by: {error}")
    results = _results(study)
    whole = [each for each in results if each.state == "complete"]
    scored = whole or [each for each in results if each.metric is not None]
    order = max if plan.maximize else min
    best = order(scored, key=lambda each: each.metric or 0.0) if scored else None
    bill = billing.cost(config.run.instance, sum(each.seconds for each in results))
    return Found(tuple(results), best, sum(each.samples for each in results), bill, ended_by)


def _suggested(trial: Any, plan: StudyPlan) -> dict[str, Any]:
    try:
        return suggest(trial, plan.space)
    except ValueError as error:  # Optuna keeps the kind and the choices of every setting
        raise UserError(
            f"tune.space: does not fit the trials in {str(plan.folder)!r} ({one_line(str(error))}); "
            "name another folder"
        ) from None


def _run(
    config: TrainConfig, judge: Judge, nproc: int, steps: int, timeout: float | None
) -> tuple[dict[str, Any], str | None]:
    """The outcome of a trial, or that of its record if an earlier start finished it; and its error."""
    from dtlab.ranks.launcher import launch
    from dtlab.ranks.report import RankError
    from dtlab.train.job import run

    folder = config.run.folder
    assert folder is not None
    ended = _ended(folder)
    if ended is not None:
        return ended, None
    try:
        results = launch(run, nproc, config, judge, steps, echo=False, timeout=timeout)
    except RankError as error:
        return _ended(folder, "failed") or {}, str(error).splitlines()[0]
    return results[0], None


def _ended(folder: Path, kind: str = "end") -> dict[str, Any] | None:
    if not (folder / RECORD).is_file():
        return None
    try:
        end = read_record(folder).end
    except UserError:  # killed while it wrote its first line
        return None
    if end is None or end.kind != kind:
        return None
    # A run that a signal stopped is not over: it goes on from its checkpoint.
    reason = end.text("stopped_by")
    return end.values if reason is None or reason.startswith(("pruned", "budget")) else None


def _started(study: Any) -> list[Any]:
    """The trials of the journal without one that was only planned when the search was killed."""
    return [each for each in study.get_trials(deepcopy=False) if each.state.name != "WAITING"]


def _next(study: Any, plan: StudyPlan) -> Any:
    """The next trial; of a grid its next point. Optuna's own grid sampler cannot be asked trial by trial."""
    number = len(_started(study))
    if plan.search == "grid" and number == len(study.get_trials(deepcopy=False)):
        names = list(plan.space)
        points = product(*(each.values for each in plan.space.values() if isinstance(each, Choice)))
        study.enqueue_trial(dict(zip(names, list(points)[number], strict=True)))
    return study.ask()


def _results(study: Any) -> list[TrialResult]:
    maximize = study.direction.name == "MAXIMIZE"
    found = []
    for each in _started(study):
        known = [value for value in each.intermediate_values.values() if math.isfinite(value)]
        found.append(
            TrialResult(
                each.number,
                dict(each.params),
                each.state.name.lower().replace("fail", "failed"),
                each.value if each.value is not None else _best(known, maximize),
                each.user_attrs.get("samples", 0),
                each.user_attrs.get("seconds", 0.0),
            )
        )
    return found


def _best(known: list[float], maximize: bool) -> float | None:
    return (max if maximize else min)(known, default=None)


def _grid_size(plan: StudyPlan) -> int | None:
    if plan.search != "grid":
        return None
    for name, each in plan.space.items():
        if not isinstance(each, Choice):
            raise UserError(f"tune.space.{name}: a grid needs a list of choices, for example [1e-3, 2e-3]")
    return math.prod(len(each.values) for each in plan.space.values() if isinstance(each, Choice))


def _line(result: TrialResult, note: str | None) -> str:
    values = ", ".join(f"{name} {_short(value)}" for name, value in result.values.items())
    metric = "-" if result.metric is None else f"{result.metric:.4f}"
    line = f"trial {result.number}: {values}: {result.state}, validation {metric}, {result.samples:,} samples"
    return line + ("" if note is None else f"; {note}")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
