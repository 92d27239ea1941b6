"""What runs of your own say of a card, kept in a file that the planner takes (lessons 10 and 14).

`dtlab cost fit RUN RUN --output FILE` writes it, `dtlab plan --calibration FILE` reads it: JSON with the
runs, where they ran, and the two numbers that the planner's model needs of a card:

- `eta`: the share of the card's peak that products reach, so that a sample takes what it took in the runs;
- `fixed_seconds`: what each step took beside that, the update of the weights left out, which is modelled.

It counts for one card, one precision and one kind of model; all else stays with the package's table. Runs on
CPUs say nothing of any card: they are told as what they are, and change no price.
"""

import re
from dataclasses import dataclass

from dtlab.cost.calibration import Calibration, Format, ModelKind
from dtlab.cost.catalogue import instances
from dtlab.cost.machines import machine
from dtlab.cost.memory import Optimizer, Precision
from dtlab.cost.presets import Preset
from dtlab.cost.run_fit import RunFit, RunSteps, fit_runs
from dtlab.cost.step_time import StepModel
from dtlab.cost.strategy import Strategy
from dtlab.cost.work import work_of
from dtlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class OwnCalibration:
    """The runs, their model and place; `eta` and `fixed_seconds` are None for runs without a card.

    - `card`: as its driver names it; `gpu`: as the catalogue does.
    - `error`: expected of a run like the fastest of them, as a share of its step.
    """

    runs: tuple[RunSteps, ...]
    model: str
    parameters: int
    kind: ModelKind
    form: Format
    card: str | None
    gpu: str | None
    eta: float | None
    fixed_seconds: float | None
    error: float
    torch: str = ""
    date: str = ""

    @property
    def source(self) -> str:
        """Where the numbers are from, in words."""
        cores = self.runs[0].cores
        place = self.card or (f"{cores} CPU cores" if cores else "CPUs")
        names = ", ".join(run.name or "a run" for run in self.runs)
        with_torch = f", torch {self.torch}" if self.torch else ""
        return f"your runs {names} of {self.model} on {place}, {self.date or 'undated'}{with_torch}"

    def row(self, model: Preset) -> Calibration | None:
        """The row for `model`; None for runs on CPUs and another kind of model."""
        if self.gpu is None or self.eta is None or work_of(model).kind != self.kind:
            return None
        other = (
            "" if model.parameters == self.parameters else f", and this is another model than {self.model}"
        )
        return Calibration(
            gpu=self.gpu, software="eager", form=self.form, model=self.kind, eta=self.eta,
            fixed_seconds=self.fixed_seconds or 0.0, kind="measured", layouts="ddp",
            error=f"{self.error:.0%} expected of runs like {self.source}{other}".replace("%", " %", 1),
            source=self.source,
        )  # fmt: skip

    def fit(self) -> RunFit:
        """The runs, fitted again."""
        return fit_runs(self.runs)


def gpu_of(card: str) -> str | None:
    """The catalogue's name of a card that a driver names; None where it has none like it.

    >>> gpu_of("NVIDIA A100-SXM4-40GB"), gpu_of("Tesla T4"), gpu_of("NVIDIA GeForce RTX 3090")
    ('A100', 'T4', None)
    """
    words = re.split(r"[^a-z0-9]+", card.lower())
    known = sorted({found.gpu for found in instances() if found.gpu and "rainium" not in found.gpu})
    if "6000" in words and "pro" in words:
        return next((name for name in known if name.startswith("RTX PRO")), None)
    return next((name for name in known if name.lower() in words), None)


def own_calibration(
    fitted: RunFit,
    model: Preset,
    *,
    card: str | None,
    precision: Precision,
    optimizer: Optimizer = "adam",
    torch: str = "",
    date: str = "",
) -> OwnCalibration:
    """The two numbers of a fit, for the planner.

    Raises:
        UserError: the card is none that the catalogue knows, or the fit says nothing of its products.
    """
    form: Format = "fp32" if precision == "fp32" else "half"
    name = None if card is None else gpu_of(card)
    if card is not None and name is None:
        raise UserError(f"card = {card!r}: is none of the catalogue; see dtlab instances for those it knows")
    eta = fixed = None
    if name is not None:
        eta, fixed = _share_of_peak(fitted, model, name, precision, optimizer, form)
    run = min(fitted.runs, key=lambda run: run.step_seconds / run.global_batch)
    return OwnCalibration(
        runs=fitted.runs, model=model.name, parameters=model.parameters, kind=work_of(model).kind, form=form,
        card=card, gpu=name, eta=eta, fixed_seconds=fixed, torch=torch, date=date,
        error=fitted.predict(run.ranks, run.global_batch, run.nodes).error,
    )  # fmt: skip


def _share_of_peak(
    fitted: RunFit, model: Preset, name: str, precision: Precision, optimizer: Optimizer, form: Format
) -> tuple[float, float]:
    """(eta, fixed seconds) with which the planner's model takes the time of the fit on one card."""
    bare = Calibration(gpu=name, software="eager", form=form, model=work_of(model).kind, eta=1.0)
    place = next(found.name for found in instances() if found.gpu == name)
    step = StepModel(model, machine(place), calibration=bare)
    one, two = (
        step.parts(Strategy(precision=precision, optimizer=optimizer, micro_batch=size)) for size in (1, 2)
    )
    products, rest = one[0], sum(two) - sum(one) - (two[0] - one[0])
    left = fitted.per_sample - rest
    if not left > 0 or products / left > 1:
        raise UserError(
            f"records: {fitted.per_sample * 1e6:.3g} us a sample are less than the products of {model.name} "
            f"take at the peak of one {name}; give runs with larger batches, far apart"
        )
    return products / left, max(0.0, fitted.fixed - (sum(one) - one[0] - rest))
