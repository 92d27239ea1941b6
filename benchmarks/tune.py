"""Hyperband against a grid: how much of the grid's training does it need to come as far?

The grid is 4 learning rates x 3 batches, each trained to its stop (best epoch by validation, patience 1).
Hyperband with TPE searches the same batches and the range of those rates, and may train 30 % of the grid's
samples. Both on 2 ranks of this machine, one after the other; a trial's AUC is that of its best epoch.
The data are the flights; ``--short`` takes 20,000 generated clicks instead.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.common import report, say
from dtlab.data.config import DataConfig
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.tune.search import search
from dtlab.tune.space import Choice, Range
from dtlab.tune.study import StudyPlan

RATES, BATCHES = (5e-4, 1e-3, 2e-3, 4e-3), (2048, 4096, 8192)
SHARE = 0.3
REPORTS = 27  # of a run of all epochs
FLIGHTS = TrainConfig(
    data=DataConfig(name="flights", root="data", cache="disk"),
    model=ModelConfig(dim=8, hidden=(64, 32)),
    optim=OptimConfig(global_batch=4096, max_epochs=4, patience=1),
    run=RunConfig(output=None, log_every=1000, check_replicas_every=0),
)
ROWS = 231_423  # training rows of the flights


def main() -> None:
    config, rows, rates, batches = FLIGHTS, ROWS, RATES, BATCHES
    if "--short" in sys.argv[1:]:
        rows, batches, rates = 16_000, (64, 128, 256), (5e-4, 1e-3, 2e-3, 4e-3)
        config = replace(
            config,
            data=DataConfig(name="clicks", rows=20_000, root="data"),
            optim=replace(config.optim, global_batch=128),
        )
    judge_every = max(1, round(config.optim.max_epochs * rows / REPORTS / config.optim.global_batch))
    with tempfile.TemporaryDirectory() as name:
        space: dict[str, Choice | Range] = {"optim.lr": Choice(rates), "optim.global_batch": Choice(batches)}
        plan = StudyPlan(folder=Path(name) / "grid", space=space, search="grid", pruner="none")
        never = config.optim.max_epochs * rows  # the grid is looked at after its epochs only
        grid = search(config, plan, nproc=2, judge_every=never, tell=say)
        say(f"grid: {grid.samples:,} samples, {grid.bill.line()}")
        space = {"optim.lr": Range(rates[0], rates[-1], log=True), "optim.global_batch": Choice(batches)}
        plan = StudyPlan(folder=Path(name) / "hyperband", space=space, rungs=REPORTS)
        most = int(SHARE * grid.samples) - judge_every * config.optim.global_batch - max(batches)
        found = search(config, plan, nproc=2, judge_every=judge_every, max_samples=most, tell=say)
        say(f"hyperband: {found.samples:,} samples, {found.bill.line()}")
    assert grid.best is not None
    assert found.best is not None
    report(
        "tune",
        {
            "hyperband_auc": found.best.metric,
            "grid_auc": grid.best.metric,
            "auc_below_grid": (grid.best.metric or 0.0) - (found.best.metric or 0.0),
            "samples_share": found.samples / grid.samples,
            "usd_hyperband": found.bill.usd,
            "usd_grid": grid.bill.usd,
            "trials_hyperband": len(found.trials),
            "trials_grid": len(grid.trials),
            "short": "--short" in sys.argv[1:],
        },
        [
            f"grid: {grid.samples:,} samples, {grid.bill.line()}",
            f"hyperband: {found.samples:,} samples, {found.bill.line()}",
            f"target: at most {SHARE:.0%} of the grid's samples, and within 0.002 of its AUC",
        ],
    )


if __name__ == "__main__":
    main()
