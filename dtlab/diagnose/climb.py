"""Climb the ladder with a configuration of ``dtlab train``: every figure is measured on real ranks.

The rungs are those of :mod:`dtlab.diagnose.ladder`, with the configuration's own model, data, batch and
number of ranks. Nothing of what the runs write stays, and a run's own folder is never touched.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtlab.diagnose.batch_finder import FITS, FoundBatch, find_batch, repeated
from dtlab.diagnose.bound import bound_verdict
from dtlab.diagnose.checks import OK
from dtlab.diagnose.ladder import RUNGS, Broken, Figures, Ladder, Rung, judge, rung
from dtlab.diagnose.parity import ROUNDING, Parity
from dtlab.diagnose.short_run import config_parity, config_profile
from dtlab.errors import UserError
from dtlab.ranks.launcher import launch
from dtlab.ranks.report import RankError
from dtlab.ranks.worlds import world
from dtlab.train.config import TrainConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.job import run
from dtlab.train.parts import build_parts
from dtlab.train.tasks import load_task

__all__ = ["MEASURES", "Climb", "Plan", "State", "climb", "parity_figures"]

_HALF_ROUNDING = 1e-2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to climb with.

    Raises:
        UserError: a number is out of range.
    """

    config: TrainConfig
    nproc: int = 2
    """Ranks on this machine."""
    start: int = 256
    """Rows per rank of the first trial of the batch, or the job's own where those are fewer."""
    most: int | None = None
    """Rows per rank beyond which no batch is tried; by default those that the data has."""
    memory_bytes: int | None = None
    """Memory of one rank; by default its card's, or its part of what is free on the host."""
    steps: int = 40
    """Optimizer steps from which the shares of a step are taken."""
    timeout: float = 600.0
    """Seconds that each launch may take."""

    def __post_init__(self) -> None:
        if self.nproc < 2:
            raise UserError(
                f"nproc = {self.nproc}: the ladder compares one rank with several; give 2 or more"
            )
        for name in ("start", "most", "memory_bytes", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} = {value}: must be at least 1")
        first = min(self.start, self.rows_of_step())
        if self.most is not None and self.most < first:
            raise UserError(
                f"most = {self.most}: less than the {first} rows per rank that are tried first "
                f"(start = {self.start}); raise it, or start lower"
            )
        if not 0 < self.timeout < math.inf:
            raise UserError(f"timeout = {self.timeout}: give seconds above 0, for example 600")

    def rows_of_step(self) -> int:
        """Rows per rank of one forward of the job, where the data has as many."""
        optim = self.config.optim
        own = -(-optim.global_batch // self.nproc)
        return min(own, optim.micro_batch or own)


@dataclass(frozen=True)
class Climb:
    """How far a job came: the judged ladder, the figures behind it, and the batches that were tried."""

    ladder: Ladder
    figures: Figures
    batches: FoundBatch | None = None


@dataclass
class State:
    """What a measure is given."""

    plan: Plan
    rows: int
    """Training rows."""
    figures: Figures
    """Of the rungs below; a measure returns them with its own."""
    batches: FoundBatch | None = None


Measure = Callable[[State], Figures]


def climb(
    plan: Plan,
    *,
    on_rung: Callable[[Rung], None] | None = None,
    measures: Mapping[str, Measure] | None = None,
) -> Climb:
    """Measure and judge rung by rung, and stop at the first one that fails.

    Args:
        plan: the configuration, the ranks and the bounds.
        on_rung: called with each judged rung.
        measures: by rung: other ways to measure it, for example the parity of your own training function,
            ``lambda state: parity_figures(state.figures, loss_parity(train, 2))``.

    Raises:
        UserError: the plan or the data is wrong. What fails on the ranks fails its rung.

    >>> climb(Plan(config=TrainConfig(), nproc=2)).ladder.ready  # doctest: +SKIP
    True
    """
    ways = {**MEASURES, **(measures or {})}
    rows = len(load_task(plan.config).data.train)  # wrong data is refused here, before any rank starts
    state = State(plan, rows, Figures(source="measured", ranks=plan.nproc))
    for name in RUNGS:
        try:
            state.figures = ways[name](state)
        except RankError as error:
            reason = " ".join(str(error).splitlines()[0].split())
            state.figures = replace(state.figures, broken={name: Broken(reason)})
        judged = rung(name, state.figures)
        if on_rung is not None:
            on_rung(judged)
        if judged.verdict == "failed":
            break
    return Climb(judge(state.figures), state.figures, state.batches)


# -- the rungs -----------------------------------------------------------------------------------------


def _talk(state: State) -> Figures:
    plan = state.plan
    sums = launch(_add_up, plan.nproc, timeout=plan.timeout, echo=False)
    right = sum(found == plan.nproc * (plan.nproc + 1) / 2 for found in sums)
    return replace(state.figures, ranks_answered=right)


def _for_few_steps(schedule: ScheduleConfig) -> ScheduleConfig:
    """The same rate without what a run of a few steps has no time for: a warm-up, and validations."""
    if schedule.kind == "plateau":
        return replace(schedule, kind="constant", warmup=0)
    return replace(schedule, warmup=0)


def _end_to_end(state: State) -> Figures:
    plan, config = state.plan, state.plan.config
    steps = max(1, math.ceil(0.01 * state.rows / config.optim.global_batch))
    with tempfile.TemporaryDirectory(prefix="dtlab-ladder-") as folder:
        own = replace(config.run, folder=Path(folder) / "run", resume=False, max_steps=steps)
        unlimited = replace(config.stopping, max_seconds=None, max_usd=None)
        short = replace(config, run=own, stopping=unlimited, schedule=_for_few_steps(config.schedule))
        report = launch(run, plan.nproc, short, timeout=plan.timeout, echo=False)[0]
        is_saved = (Path(folder) / "run" / "model" / "model.safetensors").is_file()
    figures = replace(state.figures, data_share=min(1.0, report["samples"] / state.rows))
    wrong = [
        (report["stopped_by"], f"the run was stopped by {report['stopped_by']}"),
        (report["duplicate_rows"], f"{report['duplicate_rows']} rows were trained on twice in an epoch"),
        (not is_saved, "the run ended without a saved model"),
        (not report["stopped_by"] and not math.isfinite(report["log_loss"]), "the test loss is not finite"),
    ]
    reasons = [reason for is_wrong, reason in wrong if is_wrong]
    return replace(figures, broken={RUNGS[1]: Broken(reasons[0])}) if reasons else figures


def _agree(state: State) -> Figures:
    plan = state.plan
    wanted = plan.config.precision.name
    is_half = plan.config.run.dtype == "float32" and (
        wanted in ("bf16", "fp16") or (wanted == "auto" and torch.cuda.is_available())
    )
    parity = config_parity(
        plan.config, plan.nproc, device=None, rounding=_HALF_ROUNDING if is_half else ROUNDING,
        timeout=plan.timeout,
    )  # fmt: skip
    return parity_figures(state.figures, parity)


def parity_figures(figures: Figures, parity: Parity) -> Figures:
    """``figures`` with what a loss parity found; whatever is more than rounding breaks the rung."""
    name = RUNGS[2]
    figures = replace(figures, loss_difference=parity.loss_difference)
    worst = [line for line in parity.lines if line.status == parity.status and line.status != OK]
    if not worst:
        return figures
    reason = "; ".join(f"{line.name}: {line.value}" for line in worst)
    return replace(figures, broken={name: Broken(reason, worst[-1].fix)})


def _communication(state: State) -> Figures:
    plan = state.plan
    profiles = config_profile(plan.config, plan.nproc, steps=plan.steps, timeout=plan.timeout)
    found = bound_verdict(profiles)
    advice = "; then ".join([*found.notes, *map(str, found.advice[:3])])
    # What is best for a step that computes most of the time mends neither of these two rungs.
    fixes = {RUNGS[3]: found.bound == "communication-bound", RUNGS[5]: found.bound != "compute-bound"}
    return replace(
        state.figures,
        communication_share=sum(each.share("communication") for each in profiles) / len(profiles),
        busy_share=sum(each.busy_share for each in profiles) / len(profiles),
        fixes={name: advice for name, fits in fixes.items() if fits and advice},
    )


def _memory(state: State) -> Figures:
    plan = state.plan
    own, found = launch(_find, plan.nproc, plan, state.rows, timeout=plan.timeout, echo=False)[0]
    state.batches = found
    fitting = [one for one in found.tried if one.verdict == FITS and one.batch >= own]
    share = min(fitting, key=lambda one: one.batch).share if fitting else None
    return replace(state.figures, batch=own, largest_batch=found.batch, memory_share=share)


def _utilisation(state: State) -> Figures:
    return state.figures  # the same steps that gave the communication share


MEASURES: dict[str, Measure] = dict(
    zip(RUNGS, (_talk, _end_to_end, _agree, _communication, _memory, _utilisation), strict=True)
)


# -- inside a rank -------------------------------------------------------------------------------------


def _add_up() -> float:
    with world() as w:
        number = torch.tensor(float(w.rank + 1), device=w.device)
        dist.all_reduce(number)
        return number.item()


def _find(plan: Plan, rows: int) -> tuple[int, FoundBatch]:
    """The rows per rank of one forward of this job, and what the finder says."""

    def ignore(_what: Any) -> None:
        pass

    config = plan.config
    with world(seed=config.run.seed) as w:
        # Every rank needs a row to repeat.
        filled = replace(config.optim, global_batch=max(config.optim.global_batch, w.size))
        parts = build_parts(
            replace(config, optim=filled), w, load_task(config), on_reading=ignore, tell=ignore
        )
        trainer, batch = parts.trainer, next(iter(parts.loader))
        at_hand = max(1, rows // w.size)
        own = min(plan.rows_of_step(), at_hand)

        def trials(start: int, most: int) -> FoundBatch:
            return find_batch(
                trainer.model,
                trainer.optimizer,
                lambda number: repeated(batch, number),
                loss=parts.task.loss,
                start=start,
                most=most,
                limit_bytes=plan.memory_bytes,
                autocast=trainer.precision.autocast,
            )

        most = min(at_hand, max(own, plan.most or at_hand))
        found = trials(min(plan.start, own), most)
        if found.batch < own not in [one.batch for one in found.tried]:  # between two of the doubled ones
            last = trials(own, own)
            found = replace(
                found,
                batch=max(found.batch, last.batch),
                tried=(*found.tried, *last.tried),
                stopped=found.stopped if last.batch else last.stopped,
            )
        return own, found
