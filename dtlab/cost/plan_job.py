"""What is to be trained, and what may be tried for it: the two inputs of the planner (lesson 14).

`Job` is the work, with its deadline and budget; `Space` is what the planner may choose from. Both are checked
where they are built.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dtlab.cost.beside import Beside
from dtlab.cost.billing import BillKind
from dtlab.cost.catalogue import DEFAULT_REGION
from dtlab.cost.memory import FITS_BELOW, Optimizer, Precision
from dtlab.cost.plan_layout import Layout
from dtlab.cost.presets import Preset
from dtlab.cost.strategy import Recompute, Zero
from dtlab.errors import UserError

Goal = Literal["cheapest", "fastest"]
MOST_GPUS = 16_384
_MOST_SAMPLES = 1e18
_MOST_BATCH = 10**9


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work to be bought.

    - `samples`: all passes together (sequences, images, rows); `global_batch`: of one optimizer step. Neither
      is the planner's to change: they decide what is learned.
    - `deadline_seconds` and `budget_usd` bound the run; `goal` chooses among what they leave.
    - `start_seconds`: from the start of the bill to the first step: image, data, process group, compile.
    - `reader_per_host`: samples per second that one machine can read and prepare; infinite: never the limit.
    - `sparse_table`: ranks exchange the rows of an embedding table that a batch touched, not all of it.
    - `beside`: storage, egress and idle hours, which belong to the price of the run and count for the budget.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> Job(model=LLAMA_7B, samples=1e6, global_batch=256).steps
    3907
    """

    model: Preset
    samples: float
    global_batch: int
    deadline_seconds: float = math.inf
    budget_usd: float = math.inf
    goal: Goal = "cheapest"
    optimizer: Optimizer = "adam"
    start_seconds: float = 300.0
    reader_per_host: float = math.inf
    sparse_table: bool = False
    beside: Beside = field(default_factory=Beside)

    def __post_init__(self) -> None:
        _above("samples", self.samples, math.isfinite)
        _whole("global_batch", self.global_batch)
        if self.samples > _MOST_SAMPLES:
            raise UserError(
                f"samples = {self.samples:g}: give at most {_MOST_SAMPLES:g}, all epochs together"
            )
        if self.global_batch > _MOST_BATCH:
            raise UserError(f"global_batch = {self.global_batch}: give the samples of one step, at most 1e9")
        _above("deadline_seconds", self.deadline_seconds)
        _above("budget_usd", self.budget_usd)
        _above("reader_per_host", self.reader_per_host)
        if not 0 <= self.start_seconds < math.inf:
            raise UserError(f"start_seconds = {self.start_seconds!r}: give 0 or more seconds")
        _one_of("goal", self.goal, get_args(Goal))
        _one_of("optimizer", self.optimizer, get_args(Optimizer))

    @property
    def usual_precisions(self) -> tuple[Precision, ...]:
        """What is tried unless the space says otherwise."""
        return ("bf16-mixed", "amp") if self.model.layers else ("amp", "fp32")

    @property
    def steps(self) -> int:
        """Optimizer steps; the last one may be part-filled."""
        return math.ceil(self.samples / self.global_batch)


@dataclass(frozen=True, kw_only=True)
class Spot:
    """How a run on spot hosts is counted.

    - `fraction`: spot price over on demand; None: the catalogue's median where it has one, else 0.35.
    - `interruptions_per_hour`: of one host. There is no default: nobody publishes it.
    """

    interruptions_per_hour: float
    fraction: float | None = None
    write_bytes_per_second: float = 0.2e9

    def __post_init__(self) -> None:
        if not 0 <= self.interruptions_per_hour < math.inf:
            raise UserError(
                f"interruptions_per_hour = {self.interruptions_per_hour!r}: give 0 or more, of one host"
            )
        _above("write_bytes_per_second", self.write_bytes_per_second)
        if self.fraction is not None and not 0 < self.fraction <= 2:
            raise UserError(f"fraction = {self.fraction!r}: give spot over on demand, above 0 and up to 2")


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be tried. Empty means: everything sensible.

    - `instances`: machine types or families ("g5"); by default all that are sold, have GPUs and a price.
    - `counts`: machines of a type; by default 1, 2, 3, 4, 6, 8, 12, ... while `max_gpus` allows.
    - `tp`, `pp`, `micro_batches`: degrees and sizes; by default powers of two, tp within a machine.
    - `precisions`, the first preferred: by default bf16-mixed and amp for models with layers, whose products
      half precision never slows down, amp and fp32 for others.
    - `zeros`: 0 DDP, 1 and 2 ZeRO, 3 FSDP (whole, and sharded within a machine: HSDP).
    - `fits_below`: share of a card's memory up to which a prediction counts as fitting.
    - `spot`: must be given with kind "spot", and only then.
    - `layout`: degrees that a run already has, in place of `tp`, `pp`, `zeros` and `micro_batches`.

    >>> Space(tp=(3,)).tp
    (3,)
    """

    instances: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    max_gpus: int = 512
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()
    zeros: tuple[Zero, ...] = (0, 1, 3)
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    precisions: tuple[Precision, ...] = ()
    fits_below: float = FITS_BELOW
    kind: BillKind = "sagemaker"
    region: str = DEFAULT_REGION
    spot: Spot | None = field(default=None)
    layout: Layout | None = None

    def __post_init__(self) -> None:
        _whole("max_gpus", self.max_gpus)
        if self.max_gpus > MOST_GPUS:
            raise UserError(f"max_gpus = {self.max_gpus}: the models were held against up to {MOST_GPUS:,}")
        for name in ("counts", "tp", "pp", "micro_batches"):
            for value in getattr(self, name):
                _whole(name, value)
        for name, known in (
            ("zeros", get_args(Zero)), ("recomputes", get_args(Recompute)),
            ("precisions", get_args(Precision)),
        ):  # fmt: skip
            if not getattr(self, name) and name != "precisions":
                raise UserError(f"{name} is empty: give one or more of {', '.join(map(str, known))}")
            for value in getattr(self, name):
                _one_of(name, value, known)
        if not 0 < self.fits_below <= 1:
            raise UserError(f"fits_below = {self.fits_below!r}: give a share of the card above 0, at most 1")
        _one_of("kind", self.kind, get_args(BillKind))
        if self.kind == "spot" and self.spot is None:
            raise UserError(
                "interruptions_per_hour is needed with kind = 'spot': a spot price without interruptions is "
                "no cost; give those of one host, for example 0.05"
            )
        if self.kind != "spot" and self.spot is not None:
            raise UserError(f"interruptions_per_hour goes with kind = 'spot', not with {self.kind!r}")


def _above(name: str, value: Any, also: Any = lambda _: True) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value > 0 or not also(value):
        raise UserError(f"{name} = {value!r}: give a number above 0")


def _whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise UserError(f"{name} = {value!r}: give a whole number of 1 or more")


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known or isinstance(value, bool):
        raise UserError(f"{name} = {value!r}: use one of {', '.join(map(str, known))}")
