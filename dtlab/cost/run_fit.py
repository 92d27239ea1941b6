"""Fit the time of a step to your own runs, and predict another batch or number of ranks (lessons 01 and 10).

The model, for N ranks with b = global batch / N samples each:

    step = slow(N) * own(N) * (fixed + b * per_sample) + communication(N) + wait

- `slow(N)` is N / cores where ranks without cards share fewer cores than they are, and 1 otherwise.
- `own(N)` brings the line to what the runs on N ranks took (threads, shared memory); other N take that of
  the largest number of ranks that was run. It is 1 where line and runs agree.
- The line is fitted to runs with one number of threads a rank, where two batches of such were run. Where not,
  threads cannot be told from the batch: `fixed` is 0 then, and larger batches come out a little too slow.
- `communication(N)` is what the runs on N ranks saw, the wait for a slower rank included. Another N gets
  ``slow(N) * (a * 2(N-1) + w * 2(N-1)/N)``: latency and bandwidth of a ring, fitted, both 0 or more; a
  message is taken up when its receiver has a core.
- `wait` for data is a time for each sample of a rank.

Two batches a rank are needed to tell `fixed` from `per_sample`: one global batch on 1 and on 2 ranks has two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from dtlab.cost.run_error import prediction_error
from dtlab.cost.run_steps import RunSteps, StepPrediction, alike, mixed, slowdown
from dtlab.errors import UserError

__all__ = ["RunFit", "RunSteps", "StepPrediction", "fit_runs", "slowdown"]


@dataclass(frozen=True, kw_only=True)
class RunFit:
    """The fitted numbers, in seconds: see the text of the module; `runs` are what they were fitted to."""

    fixed: float
    per_sample: float
    latency: float
    volume: float
    wait_per_sample: float
    own: dict[int, float]
    seen: dict[int, float]
    cores: int | None
    runs: tuple[RunSteps, ...]

    def communication(self, ranks: int, nodes: int = 1) -> float:
        """Seconds of communication in a step among `ranks`: as seen, else by the fitted ring."""
        if ranks in self.seen or ranks == 1:
            return self.seen.get(ranks, 0.0)
        ring = 2 * (ranks - 1) * self.latency + 2 * (ranks - 1) / ranks * self.volume
        return slowdown(ranks, nodes, self.cores) * ring

    def step(self, ranks: int, global_batch: int, nodes: int = 1) -> StepPrediction:
        """The step of `ranks` ranks at that global batch, without its error.

        Raises:
            UserError: a number below 1, or fewer samples than ranks.
        """
        for name, value in (("ranks", ranks), ("global_batch", global_batch), ("nodes", nodes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} = {value!r}: give a whole number of 1 or more")
        if global_batch < ranks:
            raise UserError(f"global_batch = {global_batch} on {ranks} ranks: give at least {ranks}")
        alone = self.fixed + self.per_sample * global_batch / ranks
        alone *= self.own.get(ranks, self.own[max(self.own)])
        return StepPrediction(
            ranks=ranks,
            global_batch=global_batch,
            compute_seconds=slowdown(ranks, nodes, self.cores) * alone,
            communication_seconds=self.communication(ranks, nodes),
            wait_seconds=self.wait_per_sample * global_batch / ranks,
        )

    def predict(self, ranks: int, global_batch: int, nodes: int = 1) -> StepPrediction:
        """`step` with its error, and with notes on what it could not know.

        `run_error` says what the error is made of.

        Raises:
            UserError: see `step`.
        """
        found = self.step(ranks, global_batch, nodes)
        error = prediction_error(self, found, nodes, fit_runs)
        return replace(found, error=error, notes=self._notes(ranks, global_batch, nodes))

    def _notes(self, ranks: int, global_batch: int, nodes: int) -> tuple[str, ...]:
        notes = []
        largest = max(run.local_batch for run in self.runs)
        if global_batch / ranks > 4 * largest:
            notes.append(f"{global_batch / ranks:g} samples a rank are over 4 times the most that was run")
        if ranks > 1 and ranks not in self.seen:
            known = sorted(self.seen)
            notes.append(
                f"communication among {ranks} ranks follows a ring fitted to {' and '.join(map(str, known))}"
                if known
                else f"no run had two ranks: communication among {ranks} is taken as 0"
            )
        if slowdown(ranks, nodes, self.cores) > 1:
            notes.append(f"{ranks} ranks share {self.cores} cores: computing is taken as that much slower")
        if mixed(self.runs):
            notes.append(
                "the runs had different numbers of threads, so the fixed part of a step is taken as 0; "
                "set OMP_NUM_THREADS=1 for all, or add a run of another batch"
            )
        return tuple(notes)


def fit_runs(runs: Sequence[RunSteps]) -> RunFit:
    """Fit the model of this module to two runs or more.

    >>> one = RunSteps(ranks=1, global_batch=4096, step_seconds=0.050)
    >>> two = RunSteps(ranks=2, global_batch=4096, step_seconds=0.033, communication_seconds=0.003)
    >>> fit = fit_runs([one, two])
    >>> round(fit.fixed, 4), round(fit.per_sample * 1e6, 2)
    (0.01, 9.77)
    >>> round(fit.predict(ranks=2, global_batch=16384).step_seconds, 3)
    0.093

    Raises:
        UserError: one run, or runs that all have the same batch a rank.
    """
    runs = tuple(runs)
    if len({run.local_batch for run in runs}) < 2:
        raise UserError(
            f"records: all {len(runs)} have one batch a rank; give runs with two or more, for example the "
            "same optim.global_batch on 1 and on 2 ranks"
        )
    if not any(run.compute_seconds > 0 for run in runs):
        raise UserError("records: communication and waiting fill every step, so there is no compute to fit")
    line = [(run.local_batch, run.compute_seconds) for run in alike(runs)]
    fixed, per_sample = (0.0, _single([x / y for x, y in line if y > 0])) if mixed(runs) else _line(line)
    waits = [run.wait_seconds / run.local_batch for run in runs]
    seen = {
        ranks: sum(several) / len(several)
        for ranks in sorted({run.ranks for run in runs} - {1})
        if (several := [run.communication_seconds for run in runs if run.ranks == ranks])
    }
    latency, volume = _ring(
        {ranks: talk / slowdown(ranks, runs[0].nodes, runs[0].cores) for ranks, talk in seen.items()}
    )
    own = {
        ranks: prod(ratios) ** (1 / len(ratios))
        for ranks in sorted({run.ranks for run in runs})
        if (
            ratios := [
                run.compute_seconds / (fixed + per_sample * run.local_batch)
                for run in runs
                if run.ranks == ranks and run.compute_seconds > 0
            ]
        )
    }
    return RunFit(
        fixed=fixed, per_sample=per_sample, latency=latency, volume=volume, own=own,
        wait_per_sample=median(waits), seen=seen, cores=runs[0].cores, runs=runs,
    )  # fmt: skip


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fixed part and slope by least squares of the relative error, both 0 or more."""
    rows = [(1 / y, x / y) for x, y in points if y > 0]
    one, slope = _two(rows)
    if one < 0:
        return 0.0, _single([v for _, v in rows])
    if slope < 0:
        return _single([u for u, _ in rows]), 0.0
    return one, slope


def _ring(seen: dict[int, float]) -> tuple[float, float]:
    """Latency and volume of a ring from what was seen; a single number of ranks gives all to the volume."""
    rows = [(2 * (n - 1) / t, 2 * (n - 1) / n / t) for n, t in seen.items() if t > 0]
    if not rows:
        return 0.0, 0.0
    if len(rows) == 1:
        return 0.0, 1 / rows[0][1]
    latency, volume = _two(rows)
    if latency < 0:
        return 0.0, _single([v for _, v in rows])
    if volume < 0:
        return _single([u for u, _ in rows]), 0.0
    return latency, volume


def _two(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(p, q) that brings all u*p + v*q nearest to 1."""
    uu, uv, vv = (sum(a * b for a, b in pairs) for pairs in _products(rows))
    u, v = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return -1.0, 0.0
    return (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant


def _products(rows: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    return [[(u, u) for u, _ in rows], list(rows), [(v, v) for _, v in rows]]


def _single(values: Sequence[float]) -> float:
    return sum(values) / sum(value * value for value in values)
