"""How far step times are off on published runs: a part of ``benchmarks.accuracy``.

- ``step_scores``: runs in the columns of ``h100-nanotron-runs.csv``, read as by ``measured_memory``: other
  models by the columns of their shape, other lengths by seq_len, other cards by gpu. In scope: no pipeline,
  tp <= 8, at most 16 machines, no ``exclude_reason``. The constants of ``calibrations.csv`` were fitted on
  the rows in ``benchmarks/data``: for those the error is in-sample; ``step_rows_fitted_on`` counts them.
  *Leave one model out*: the constants are fitted on the rows here of the other models.
- ``other_scores``: decoders in the columns of ``published-runs.csv``; see ``benchmarks.measured_time``.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median

from benchmarks.accuracy_collectives import DATA, Row, Scored, mape
from benchmarks.common import Figure, say
from benchmarks.measured_memory import strategy_of, tokens_of
from benchmarks.measured_time import MACHINES, MOST_RANKS, card_of, speed_of, timed_runs
from benchmarks.run_table import place, read_rows, whole
from benchmarks.shapes import shape_of
from dtlab.cost.calibration import Calibration, calibration
from dtlab.cost.machines import machine
from dtlab.cost.presets import Preset
from dtlab.cost.step_time import StepModel
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError

MOST_NODES, CARDS = 16, 8  # of the cluster that nanotron's runs were measured on
NOTES = [
    "step time: fitted on the rows that step_rows_fitted_on counts; with one model left out, on the others.",
    "  llm-foundry: fitted on these. torchtitan: never fitted. Other nanotron rows: in part the same runs.",
    "collectives: every second size is held out of the fit; plain alpha + k S / B has 21 to 30 % elsewhere.",
    "others on 220 nanotron rows: one median MFU 46 %, MFU 0.43 101 %, no launch time 38 %. Calculators have",
    "  no launch time, llm-analysis no gradient messages and no bubble.",
]
# -- step time -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One published run: what it was, the measured seconds of a step, and the row it came from.

    `machine`: None for the cluster of nanotron's runs.
    """

    model: str
    strategy: Strategy
    seconds: float
    row: tuple[tuple[str, str], ...]
    shape: Preset
    seq_len: int
    machine: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal runs, however their rows are written."""
        return self.shape, self.seq_len, self.machine, self.strategy, round(self.seconds, 6)

    @cached_property
    def step_model(self) -> StepModel:
        """Its model on its machines; in a pipeline the embedding is untied."""
        return _model(self.shape, self.seq_len, self.machine, self.strategy.pp > 1)


def nanotron_runs(
    rows: Iterable[Row], *, pipeline: bool = False, left_out: list[str] | None = None
) -> list[Run]:
    """The rows in scope; with ``pipeline`` those with one instead of those without.

    Args:
        left_out: takes a line for each row that cannot be read or lacks a speed.
    """
    found = []
    for at, row in enumerate(rows, 1):
        if row.get("exclude_reason"):
            continue
        try:
            pp, tp = whole(row, "pp") or 1, whole(row, "tp") or 1
            if (pp > 1) != pipeline or tp > CARDS or (whole(row, "nodes") or 1) > MOST_NODES:
                continue
            run = _nanotron_run(row)
        except UserError as error:
            if left_out is not None:
                left_out.append(f"{place(row, at)}: {error}")
        else:
            if run.strategy.world_size <= MOST_NODES * CARDS:
                found.append(run)
    return found


def _nanotron_run(row: Row) -> Run:
    speed = speed_of(row)
    strategy = strategy_of(row, "nanotron", "", 1)
    shape = shape_of(row, "nanotron")
    replace(strategy, pp=1, schedule="1f1b", stages_per_rank=1).check(shape)
    batch = whole(row, "gbs_seqs") or strategy.global_batch
    if strategy.world_size > MOST_RANKS:
        raise UserError(f"dp = {strategy.dp}: {strategy.world_size} ranks are of no real run")
    if strategy.global_batch != batch:
        raise UserError(f"gbs_seqs = {batch}: dp * mbs * grad_accum is {strategy.global_batch}")
    card = card_of(row) if row.get("gpu") else "H100"
    if card is None:
        raise UserError(f"gpu = {row['gpu']!r}: has no calibration; known are {', '.join(MACHINES)}")
    seq_len = tokens_of(row) or shape.seq_len
    return Run(
        row["model"], strategy, batch * seq_len / speed, tuple(sorted(row.items())), shape, seq_len,
        None if card == "H100" else MACHINES[card],
    )  # fmt: skip


@cache
def _model(shape: Preset, seq_len: int, on: str | None, pipeline: bool) -> StepModel:
    if pipeline and shape.tied:
        table = shape.vocab * shape.hidden
        shape = replace(shape, tied=False, parameters=shape.parameters + table)
    return StepModel(shape, machine(on or "HF H100 cluster"), seq_len=seq_len)


def run_errors(runs: Iterable[Run], row: Calibration | None = None) -> list[float]:
    """(predicted - measured) / measured of each run; ``row`` in place of the shipped constants."""
    models: dict[StepModel, StepModel] = {}
    errors = []
    for run in runs:
        own = run.step_model
        model = own if row is None else models.setdefault(own, own.calibrated(row))
        errors.append(model.seconds(run.strategy) / run.seconds - 1)
    return errors


def fit_calibration(runs: Sequence[Run], start: Calibration | None = None) -> Calibration:
    """The constants with the least mean error on ``runs``: one after another, in ever smaller steps."""
    best = start or replace(
        calibration("H100"), eta=0.5, launch_seconds=2e-3, fixed_seconds=0.02, exposed=0.5
    )
    value = _mean_error(runs, best)
    for factor in (1.2, 1.1, 1.05, 1.02, 1.01):
        moved = True
        while moved:
            moved = False
            for name in ("eta", "launch_seconds", "fixed_seconds", "exposed"):
                for change in (factor, 1 / factor):
                    tried = replace(best, **{name: getattr(best, name) * change})
                    reached = _mean_error(runs, tried)
                    if reached < value - 1e-6:
                        best, value, moved = tried, reached, True
    return best


def _mean_error(runs: Sequence[Run], row: Calibration) -> float:
    errors = run_errors(runs, row)
    return sum(map(abs, errors)) / len(errors)


def step_scores(rows: Iterable[Row], *, aloud: bool = False) -> tuple[dict[str, Figure], list[Scored]]:
    """``step_mape`` and what stands beside it, and every scored run; ``aloud`` names rows left out."""
    rows, out = list(rows), list[str]()
    runs, own = nanotron_runs(rows, left_out=out), nanotron_runs(read_rows(DATA / "h100-nanotron-runs.csv"))
    known = {run.key for run in own}
    errors = run_errors(runs)
    left_out: dict[str, list[float]] = {}
    fitted: dict[frozenset[Preset], Calibration] = {}
    for name in sorted({run.model for run in runs}):
        some = [run for run in runs if run.model == name and run.machine is None]
        shapes = {run.shape for run in some}
        others = [run for run in own if run.shape not in shapes]
        seen = frozenset(run.shape for run in others)
        if seen not in fitted:
            fitted[seen] = fit_calibration(others)
        left_out[name] = run_errors(some, fitted[seen])
    unknown = [error for run, error in zip(runs, errors, strict=True) if run.key not in known]
    figures: dict[str, Figure] = {
        "step_mape": mape(errors),
        "step_median": median(map(abs, errors)) if errors else None,
        "step_within_25": sum(abs(error) <= 0.25 for error in errors) / len(errors) if errors else None,
        "step_rows": len(runs),
        "step_rows_fitted_on": sum(run.key in known for run in runs),
        "step_mape_rows_not_fitted_on": mape(unknown),
        "step_mape_one_model_left_out": mape([error for some in left_out.values() for error in some]),
    }
    figures |= {f"step_mape_left_out_{name}": mape(some) for name, some in left_out.items()}
    figures |= _baselines([run for run in runs if run.machine is None], own)
    pipelines = nanotron_runs(rows, pipeline=True, left_out=out)
    out = list(dict.fromkeys(out))
    figures["step_rows_left_out"] = len(out)
    for line in out if aloud else []:
        say(f"left out of step times: {line}")
    bounds = run_errors(pipelines)
    figures["pipeline_rows"] = len(bounds)
    for name, most in (
        ("pipeline_rows_at_least_the_bound", 0.0),
        ("pipeline_rows_at_least_090_of_it", 1 / 0.9 - 1),
    ):
        figures[name] = sum(error <= most for error in bounds) / len(bounds) if bounds else None
    scored: list[Scored] = [
        {
            "model": run.model, "ranks": run.strategy.world_size, "tp": run.strategy.tp,
            "zero": run.strategy.zero, "micro_batch": run.strategy.micro_batch, "seconds": run.seconds,
            "error": error, "in_fit": run.key in known,
        }
        for run, error in zip(runs, errors, strict=True)
    ]  # fmt: skip
    return figures, scored


def _baselines(runs: Sequence[Run], own: Sequence[Run]) -> dict[str, Figure]:
    """What else one might do: one MFU for all, or the model without its launch time."""
    if not runs:
        return {}
    mfu = median(_ideal(run) / run.seconds for run in own)
    row = calibration("H100")
    return {
        "step_mape_constant_median_mfu": mape([_ideal(run) / mfu / run.seconds - 1 for run in runs]),
        "step_mape_constant_mfu_043": mape([_ideal(run) / 0.43 / run.seconds - 1 for run in runs]),
        "step_mape_without_launch": mape(
            run_errors(runs, replace(row, launch_seconds=0.0, fixed_seconds=0.0))
        ),
    }


def _ideal(run: Run) -> float:
    model = run.step_model
    flops = model.work.flops * run.strategy.global_batch
    return flops / run.strategy.world_size / model.machine.gpu.half


# -- other programs ----------------------------------------------------------------------------------------


def other_scores(rows: Iterable[Row], *, aloud: bool = False) -> tuple[dict[str, Figure], list[Scored]]:
    """Errors by program; ``other_mape`` is of all runs on at most 128 cards; ``aloud`` as above."""
    timed, left_out = timed_runs(rows)
    for line in left_out if aloud else []:
        say(f"left out of step times: {line}")
    scored: list[Scored] = [
        {"program": run.program, "model": run.model.preset.name, "ranks": run.strategy.world_size,
         "gpu": run.model.machine.gpu.name, "seconds": run.seconds, "error": run.error,
         "in_scope": run.strategy.world_size <= 128}
        for run in timed
    ]  # fmt: skip
    groups: dict[str, list[float]] = defaultdict(list)
    for run in timed:
        groups[f"{run.program}_{run.model.machine.gpu.name}".lower()].append(run.error)
    in_scope = [run.error for run in timed if run.strategy.world_size <= 128]
    figures: dict[str, Figure] = {"other_mape": mape(in_scope), "other_rows": len(in_scope)}
    figures["other_rows_left_out"] = len(left_out)
    for name, errors in sorted(groups.items()):
        figures |= {f"other_rows_{name}": len(errors), f"other_mape_{name}": mape(errors)}
    return figures, scored
