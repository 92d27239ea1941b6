"""Loss parity: does the same training on N ranks take the same course as on one? (lessons 03 and 12)

S0 asks that the loss curves of one card and of many differ by less than 5 %. With equal global batches, order
and rate they agree to about 1e-6 (float32 sums in another order), so 5 % passes what is broken. Hence two
limits: more than ``limit`` fails, more than ``rounding`` is a warning, because rounding does not explain it.

- **Losses** are means over all ranks' rows. One rank's own loss is noisier by sqrt(N), and no measure.
- **The gradient of the first step** finds what a loss curve hides: AdamW divides a wrong factor out again.
- **Replicas**: without a sync every rank's loss falls, and the ranks train different models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dtlab.diagnose.checks import FAIL, OK, WARN, Line
from dtlab.diagnose.doctor import Report
from dtlab.diagnose.trajectory import Trajectory
from dtlab.errors import UserError, require_number
from dtlab.ranks.launcher import launch

__all__ = ["LIMIT", "ROUNDING", "Parity", "compare", "loss_parity", "relative_difference", "require_limits"]

LIMIT = 0.05
ROUNDING = 1e-4
_SMALL = 1e-3
"""A parameter whose norm is below this share of the whole is measured against that share: some gradients are
zero but for rounding, such as the key bias of attention."""


@dataclass(frozen=True)
class Parity:
    """One rank against N ranks. Printing it gives the findings with their fixes.

    Attributes:
        nproc: N.
        losses: of each step (one rank, N ranks): mean loss over all rows.
        loss_difference: largest relative difference of these.
        gradient_difference: largest relative difference of a parameter's gradient in the first step.
        gradient_factor: the N ranks' gradient as a multiple of the single process's.
        parameter_difference: norm of the difference of all parameters at the end over their norm.
        replicas_equal: whether the N ranks ended with the same bits.
        lines: the findings.
    """

    nproc: int
    losses: tuple[tuple[float, float], ...]
    loss_difference: float
    gradient_difference: float
    gradient_factor: float
    parameter_difference: float
    replicas_equal: bool
    lines: tuple[Line, ...]

    @property
    def status(self) -> str:
        """The worst status of the findings."""
        found = {line.status for line in self.lines}
        return FAIL if FAIL in found else WARN if WARN in found else OK

    @property
    def failed(self) -> bool:
        return self.status == FAIL

    @property
    def report(self) -> Report:
        """The findings as a doctor's report: text, table or JSON."""
        return Report(self.lines, good="parity holds", bad="no parity")

    def __str__(self) -> str:
        return str(self.report)


def loss_parity(
    train: Callable[..., Trajectory],
    nproc: int = 2,
    *args: Any,
    limit: float = LIMIT,
    rounding: float = ROUNDING,
    timeout: float = 300.0,
    **kwargs: Any,
) -> Parity:
    """Run ``train(*args, **kwargs)`` on 1 and on ``nproc`` ranks and compare them.

    ``train`` runs on every rank, trains with the same model, data, seed and *global* batch whatever the world
    size, without dropout, and returns ``recorder.result()`` of a :class:`TrajectoryRecorder`. Ten steps are
    enough. For a configuration of ``dtlab train`` see :func:`dtlab.diagnose.short_run.config_parity`.

    Args:
        limit: relative difference that fails.
        rounding: relative difference of losses and gradients that is still rounding in float32; with bf16 or
            fp16 arithmetic give 1e-2.
        timeout: seconds for each of the two runs.

    Raises:
        UserError: an argument is wrong, or ``train`` returns something else.
        RankError: a run failed.

    Example::

        def train():
            with dtlab.world() as w:
                ...
                recorder = TrajectoryRecorder(model)
                for batch, rows in global_steps(loader, 10):
                    loss_sum = trainer.step(batch, rows)
                    recorder.add(loss_sum, len(batch))
                return recorder.result()

        print(loss_parity(train, 2))
    """
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 2:
        raise UserError(f"nproc = {nproc!r}: give 2 or more ranks to compare with one")
    require_limits(rounding, limit)
    runs = [launch(train, n, *args, timeout=timeout, echo=False, **kwargs) for n in (1, nproc)]
    return compare(runs[0], runs[1], limit=limit, rounding=rounding)


def require_limits(rounding: float, limit: float) -> None:
    """Refuse limits that would let everything pass, or nothing.

    Raises:
        UserError: not 0 < rounding <= limit < 1.

    >>> require_limits(ROUNDING, LIMIT)
    """
    need = "relative differences with 0 < rounding <= limit < 1, for example 1e-4 and 0.05"
    require_number("limit", limit, lambda x: 0 < x < 1, need)
    require_number("rounding", rounding, lambda x: 0 < x <= float(limit), f"{need} (limit = {limit})")


def compare(
    single: Sequence[Trajectory],
    many: Sequence[Trajectory],
    *,
    limit: float = LIMIT,
    rounding: float = ROUNDING,
) -> Parity:
    """Compare what one rank and what N ranks returned, both in rank order.

    Raises:
        UserError: not a list of trajectories, or one without a step.
    """
    for each in [*single, *many]:
        if not isinstance(each, Trajectory):
            raise UserError(
                f"train returned a {type(each).__name__}: return recorder.result() of a TrajectoryRecorder"
            )
        if not each.rows:
            raise UserError(f"train made no step on rank {each.rank}: call recorder.add once a step")
    one, several = single[0], many[0]
    steps = min(len(each.rows) for each in [one, *many])
    losses = tuple((_mean_loss([one], step), _mean_loss(many, step)) for step in range(steps))
    differences = [_apart(a, b) for a, b in losses]
    by_name, factor = _gradients(one.gradient, several.gradient)
    worst = max(by_name, key=by_name.__getitem__, default="")
    whole = _norm(one.parameters)
    apart = _norm({n: one.parameters[n] - several.parameters[n] for n in _common(one, several)})
    found = Parity(
        nproc=len(many),
        losses=losses,
        loss_difference=max(differences),
        gradient_difference=by_name.get(worst, 0.0),
        gradient_factor=factor,
        parameter_difference=apart / whole if whole else apart,
        replicas_equal=len({each.hash for each in many}) == 1,
        lines=(),
    )
    lines = _judge(found, one, many, differences, worst, limit, rounding)
    return Parity(**{**vars(found), "lines": tuple(lines)})


def relative_difference(wanted: Tensor, found: Tensor, whole: float) -> float:
    """Norm of the difference over the norm of ``wanted``, or over 1e-3 of ``whole`` where that is more.

    >>> import torch
    >>> relative_difference(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]), whole=5.0)
    0.1
    """
    size = max(float(wanted.norm()), _SMALL * whole)
    apart = float((wanted - found).norm())
    return apart / size if size else math.inf if apart else 0.0


def _judge(
    found: Parity,
    one: Trajectory,
    many: Sequence[Trajectory],
    differences: list[float],
    worst: str,
    limit: float,
    rounding: float,
) -> list[Line]:
    def status(value: float) -> str:
        return FAIL if not value <= limit else WARN if value > rounding else OK

    lines = []
    pairs = {
        "rows in the first step": (one.rows[0], sum(each.rows[0] for each in many)),
        "steps": (len(one.rows), len(many[0].rows)),
    }
    for what, (alone, together) in pairs.items():
        if alone != together:
            value = f"{alone:g} with one rank, {together:g} with {found.nproc}"
            fix = "give every rank its part of one global batch (GlobalBatchSampler), not a batch of its own"
            lines.append(Line(FAIL, what, value, fix))
    first = differences[0]
    value = f"largest difference {found.loss_difference:.2g} over {len(differences)} steps"
    fix = "a later step differs first: look at the sync, at dropout, and at what only one rank does"
    if not first <= rounding:
        fix = (
            f"step 0 differs by {first:.2g} before any update: other rows, other weights, or a loss that is "
            "not the sum over this rank's rows"
        )
    lines.append(_line(status(found.loss_difference), "loss", value, fix))
    value = f"largest difference {found.gradient_difference:.2g}" + (f" ({worst})" if worst else "")
    is_off = status(found.gradient_difference)
    lines.append(_line(is_off, "gradient", value, _gradient_fix(found, len(many))))
    apart = found.parameter_difference
    value = f"difference {apart:.2g} of the norm after {len(differences)} steps"
    lines.append(_line(FAIL if not apart <= limit else OK, "parameters", value, "mend what is above it"))
    value = "the same bits on all ranks" if found.replicas_equal else "the ranks ended with different models"
    fix = "no sync: wrap the model with data_parallel before the optimizer is built, and train the wrapper"
    lines.append(_line(OK if found.replicas_equal else FAIL, "replicas", value, fix))
    return lines


def _line(status: str, name: str, value: str, fix: str) -> Line:
    return Line(status, name, value, "" if status == OK else fix)


def _gradient_fix(found: Parity, nproc: int) -> str:
    factor = found.gradient_factor
    if not found.replicas_equal:
        return "the ranks hold different gradients: see replicas"
    if abs(factor - nproc) < 0.02 * nproc:
        return f"it is {factor:.3g} times that of one rank: the gradients are summed, divide by the ranks"
    if abs(factor * nproc - 1) < 0.02:
        return (
            f"it is {factor:.3g} times that of one rank: divided by the ranks twice; scale each rank's loss "
            "sum by world_size / rows of the global batch"
        )
    if abs(factor - 1) > 1e-3:
        return (
            f"it is {factor:.3g} times that of one rank: divide the loss sum by the rows of the global "
            "batch, not of this rank or of one micro-batch"
        )
    return "ranks of unequal size? weigh each by its rows; BatchNorm and dropout also differ between ranks"


def _mean_loss(ranks: Sequence[Trajectory], step: int) -> float:
    rows = sum(each.rows[step] for each in ranks)
    return sum(each.loss_sums[step] for each in ranks) / rows if rows else math.nan


def _apart(one: float, other: float) -> float:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), 1e-12)


def _gradients(one: dict[str, Tensor], several: dict[str, Tensor]) -> tuple[dict[str, float], float]:
    """The difference of each parameter's gradient, and the multiple that fits all of them best."""
    whole = _norm(one)
    differences = {
        name: relative_difference(wanted, several[name], whole) if name in several else math.inf
        for name, wanted in one.items()
    }
    differences |= {name: math.inf for name in several if name not in one}
    differences = {name: value if value == value else math.inf for name, value in differences.items()}
    both = [name for name in one if name in several]
    product = sum(float((one[name] * several[name]).sum()) for name in both)
    return {
        n: v if v == v else math.inf for n, v in differences.items()
    }, product / whole**2 if whole else 1.0


def _norm(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))


def _common(one: Trajectory, several: Trajectory) -> list[str]:
    names = list(one.parameters)
    if names != list(several.parameters) or any(
        one.parameters[name].shape != several.parameters[name].shape for name in names
    ):
        raise UserError("train built different models with one rank and with several: build the same one")
    return names
