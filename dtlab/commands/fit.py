"""``dtlab cost fit``: what a step costs by your own runs, and what another batch or more ranks would take."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.cost.own_calibration import OwnCalibration
    from dtlab.cost.run_fit import RunFit
    from dtlab.diagnose.record_file import RunRecord

_RANKS = (1, 2, 4, 8)
_MOST = 10**9


def fit(
    *records: Path,
    ranks: tuple[int, ...] = (),
    batch: tuple[int, ...] = (),
    nodes: int = 1,
    output: Path | None = None,
    table_rows: int | None = None,
    json: bool = False,
) -> None:
    """Fit a step's time to runs on 1, 2, ... ranks; predict other batches and numbers of ranks.

    Parameters
    ----------
    records
        Folders that dtlab train left, or their record.jsonl: two or more, with two batches a rank, such as
        one global batch on 1 and on 2 ranks.
    ranks
        Numbers of ranks to predict; 1, 2, 4 and 8 by default.
    batch
        Global batches to predict; by default the largest that was run.
    nodes
        Machines that the predicted ranks are on.
    output
        Write the fit to this .json file, which dtlab plan --calibration takes.
    table_rows
        With --output and your own Parquet: rows of all embedding tables together.
    json
        Print one JSON object instead of tables.
    """
    from dtlab.commands.calibration_file import check_output, write_calibration
    from dtlab.cost.run_fit import fit_runs
    from dtlab.diagnose.record_file import read_record
    from dtlab.diagnose.record_steps import run_steps, same_job

    if len(records) < 2:
        raise UserError(
            f"records: {len(records)} given; give two runs or more, such as one global batch on 1 and 2 ranks"
        )
    for name, values in (("ranks", ranks), ("batch", batch), ("nodes", (nodes,))):
        for value in values:
            if not 1 <= value <= _MOST:
                raise UserError(f"{name} = {value}: give a whole number from 1 to {_MOST:,}")
    if output is not None:
        check_output(output)
    found = [read_record(path) for path in records]
    same_job(found)
    runs = [run_steps(record) for record in found]
    fitted = fit_runs(runs)
    batches = batch or (max(run.global_batch for run in runs),)
    predictions = [
        fitted.predict(many, size, nodes)
        for size in batches
        for many in (ranks or [each for each in _RANKS if each <= size])
    ]
    if output is not None:
        write_calibration(output, _calibration(fitted, found, table_rows))
    if json:
        numbers = {name: getattr(fitted, name) for name in ("fixed", "per_sample", "latency", "volume")}
        print(
            json_module.dumps(
                {
                    "fit": {f"{name}_seconds": value for name, value in numbers.items()},
                    "runs": [
                        asdict(run)
                        | {"fitted_seconds": fitted.step(run.ranks, run.global_batch, run.nodes).step_seconds}
                        for run in runs
                    ],
                    "predictions": [
                        asdict(each)
                        | {"step_seconds": each.step_seconds, "samples_per_second": each.samples_per_second}
                        for each in predictions
                    ],
                }
            )
        )
        return
    print(
        f"a step on one rank: {fitted.fixed * 1e3:.2f} ms and {fitted.per_sample * 1e6:.3f} us a sample; "
        f"waiting for data {fitted.wait_per_sample * 1e6:.3f} us a sample"
    )
    print(
        f"{'run':<24}{'ranks':>6}{'batch':>8}{'measured':>12}{'fitted':>12}{'communication':>16}{'spread':>8}"
    )
    for run in runs:
        again = fitted.step(run.ranks, run.global_batch, run.nodes).step_seconds
        print(
            f"{run.name[:23]:<24}{run.ranks:>6}{run.global_batch:>8}{_ms(run.step_seconds)}{_ms(again)}"
            f"{_ms(run.communication_seconds, 16)}{run.spread:>8.0%}"
        )
    print(
        f"{'predicted':<24}{'ranks':>6}{'batch':>8}{'step':>12}{'error':>12}{'communication':>16}  samples/s"
    )
    for each in predictions:
        print(
            f"{'':<24}{each.ranks:>6}{each.global_batch:>8}{_ms(each.step_seconds)}{f'+-{each.error:.0%}':>12}"
            f"{_ms(each.communication_seconds, 16)}  {each.samples_per_second:,.0f}"
        )
    print("error: nine of ten such runs are expected within it; it grows with the distance from your runs")
    for note in dict.fromkeys(note for each in predictions for note in each.notes):
        print(f"note: {note}")
    if fitted.per_sample == 0:
        print(
            "note: a step with more samples took no longer; give runs of larger batches, on an idle machine"
        )
    if output is not None:
        print(f"written to {output}, for dtlab plan --calibration {output}")


def _calibration(fitted: RunFit, records: Sequence[RunRecord], table_rows: int | None) -> OwnCalibration:
    """The fit as the planner takes it, with the model, the card and the day of the records."""
    from dtlab.commands.plan_config import model_of
    from dtlab.cost.own_calibration import own_calibration
    from dtlab.train.config import TrainConfig

    start = records[-1].start
    config = TrainConfig.from_dict(start.value("config"))
    model, _ = model_of(config, records[-1].path.parent.name, table_rows)
    newest = max(record.path.stat().st_mtime for record in records)
    return own_calibration(
        fitted,
        model,
        card=start.text("environment", "card"),
        precision="fp32" if config.precision.name == "fp32" else "amp",
        optimizer="adam" if config.optim.name == "adamw" else "sgd",
        torch=start.text("environment", "torch") or "",
        date=f"{datetime.fromtimestamp(newest):%Y-%m-%d}",
    )


def _ms(seconds: float, width: int = 12) -> str:
    return f"{seconds * 1e3:.2f} ms".rjust(width)
