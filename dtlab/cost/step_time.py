"""Seconds of one training step on many ranks, item by item (lessons 01, 08 and 09).

One micro-batch on a rank of a pipeline stage, and then the step (t tensor-parallel, p pipeline ranks):

- *compute* = FLOPs / (t p) / (share of peak * peak); full recomputation adds a third, selective 2 %;
- *launch*: what is missing to (layers / p) * launch time of a layer: small shards wait for their kernels;
- *tensor parallel* = layers / p * 8 s b h (t-1)/t elements over the cards' link; half as much again with
  full recomputation. Across machines it is refused: measured throughput falls by 43 % and more at the edge.
- *bubble*: (p-1)/v micro-batches, a lower bound (a third of that for zero-bubble schedules, none for zbv),
  and the messages that fill and drain the pipeline. Published runs took over 3 times as long for reasons of
  software: a step time with p > 1 is a bound.
- *data parallel*: what does not hide behind backward. DDP and ZeRO: ``max(exposed * T, T - 2/3 compute)`` of
  the gradients' messages T. FSDP: what exceeds the compute, and the gathering of one layer.
- *update*: bytes of weights, gradients and moments over 0.8 of the memory's bandwidth.
- *table*: rows of embedding tables read and written, and their gradients sent, dense or as touched rows.

`StepModel.parts` is the same in plain arithmetic, for searches. Calibrations: `dtlab.cost.calibration`.
"""

from copy import copy
from dataclasses import dataclass, fields, replace

from dtlab.cost.calibration import Calibration, Format, calibration
from dtlab.cost.machines import Machine, machine
from dtlab.cost.presets import Preset, preset
from dtlab.cost.strategy import Strategy
from dtlab.cost.sync_time import Key, Sync, SyncCosts, layout_key
from dtlab.cost.work import Work, work_of
from dtlab.errors import UserError

PIPELINE_BOUND = (
    "bound only: of 255 published pipeline runs 98 % took 0.9 of this or more, some over 3 times it"
)
FORMATS: dict[str, Format] = {"fp32": "fp32", "amp": "half", "bf16-mixed": "half", "bf16": "half"}
_RECOMPUTE = {"none": 0.0, "selective": 0.02, "full": 1 / 3}
_BUBBLE = {"zero_bubble": 1 / 3, "zbv": 0.0}
_MEMORY_SHARE = 0.8

Parts = tuple[float, float, float, float, float, float, float, float, float]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step by item, `samples` of it over all ranks, and how far to trust it.

    `error`: what predictions of this kind were found to be off by, "estimate" where nothing was measured, and
    "bound only" with a pipeline: then `seconds` is the least that the step can take.
    """

    compute: float
    recompute: float
    launch: float
    tensor_parallel: float
    bubble: float
    data_parallel: float
    update: float
    table: float
    fixed: float
    samples: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        return sum(self.items().values())

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    def items(self) -> dict[str, float]:
        """Seconds of each item by its name, in the order of the module's text."""
        return {item.name: getattr(self, item.name) for item in fields(self)[:9]}


def step_time(
    model: str | Preset,
    strategy: Strategy,
    on: str | Machine,
    *,
    seq_len: int | None = None,
    software: str | None = None,
    sparse_table: bool = False,
) -> StepTime:
    """The step of `model` under `strategy` on machines of one kind.

    Args:
        on: an instance type of the catalogue, or a `Machine`.
        software: "eager", "fused" or "compiled": which calibration; as the strategy says by default.
        sparse_table: a recommender sends and updates the rows that a batch touched, not the whole table.

    Raises:
        UserError: a strategy that does not fit the model, tensor parallelism beyond a machine, a model
            whose shape is not known, a machine without calibration.

    >>> found = step_time("Llama 7B", Strategy(tp=8, dp_replicate=2, zero=1), "ml.p5.48xlarge")
    >>> round(found.seconds, 2), max(found.items(), key=found.items().get)
    (0.23, 'fixed')
    """
    found = on if isinstance(on, Machine) else machine(on)
    whole = StepModel(model, found, seq_len=seq_len, software=software, sparse_table=sparse_table)
    strategy.check(whole.preset)
    return StepTime(*whole.parts(strategy), strategy.global_batch, whole.error(strategy))


class StepModel:
    """A model on one kind of machine; `parts` takes any number of strategies, a few microseconds each.

    The arguments are those of `step_time`; `calibration` is taken in place of all rows of the table, `own` in
    place of those of its kind of model: its precision as measured, others no faster.

    >>> model = StepModel("Llama 7B", machine("ml.p5.48xlarge"))
    >>> round(model.seconds(Strategy(tp=8, dp_replicate=2, zero=1)), 2)
    0.23
    """

    def __init__(
        self,
        model: str | Preset,
        on: Machine,
        *,
        seq_len: int | None = None,
        software: str | None = None,
        sparse_table: bool = False,
        calibration: Calibration | None = None,
        own: Calibration | None = None,
    ) -> None:
        self.preset = model if isinstance(model, Preset) else preset(model)
        self.machine, self.software, self.sparse = on, software, sparse_table
        self.work: Work = work_of(self.preset, seq_len)
        self._row, self._own = calibration, own
        self._syncs = SyncCosts(self.work, on)
        self._speeds: dict[tuple[str, bool], tuple[Calibration, float]] = {}
        self._cached: dict[Key, tuple[float, float, Sync, float]] = {}

    def calibrated(self, row: Calibration) -> "StepModel":
        """The same model with other constants; messages that were worked out are kept."""
        again = copy(self)
        again._row, again._speeds, again._cached = row, {}, {}
        return again

    def calibration(self, strategy: Strategy) -> Calibration:
        """The row that the strategy's precision and software take."""
        return self._speed(strategy.precision, strategy.compiled)[0]

    def error(self, strategy: Strategy) -> str:
        """How far to trust the prediction; see `StepTime`."""
        row = self.calibration(strategy)
        if strategy.pp > 1:
            return PIPELINE_BOUND
        if self.preset.family == "counted":
            return f"estimate: FLOPs as counted, at the share of peak of other models ({row.source})"
        if row.kind == "estimate":
            return f"estimate: no measured run of this kind ({row.source})"
        nodes = self.machine.nodes(strategy.world_size)
        if row.layouts != ("fsdp" if strategy.zero == 3 else "ddp"):
            return f"share of peak measured, but no run of this layout held against it ({row.source})"
        return row.error if nodes <= 16 else f"{row.error}; those had at most 16 machines, this one {nodes}"

    def seconds(self, strategy: Strategy) -> float:
        """Seconds of the step: the sum of `parts`."""
        return sum(self.parts(strategy))

    def parts(self, strategy: Strategy) -> Parts:
        """The items of `StepTime` in its order, unchecked but for tensor parallelism beyond a machine."""
        s = strategy
        key = layout_key(s)
        known = self._cached.get(key)
        if known is None:
            known = self._cached[key] = self._layout(strategy)
        flops_seconds, launch_floor, sync, update = known
        row = self._speeds[s.precision, s.compiled][0]
        b, m, work = s.micro_batch, s.num_micro_batches, self.work
        compute = flops_seconds * b
        recompute = compute * _RECOMPUTE[s.recompute]
        launch = launch_floor * (4 / 3 if s.recompute == "full" else 1) - compute - recompute
        launch = launch if launch > 0 else 0.0
        tensor = sync.tensor_per_sample * b * (1.5 if s.recompute == "full" else 1)
        bubble = 0.0
        if s.pp > 1:
            one = compute + recompute + launch + tensor
            rounds = (s.pp - 1) / s.stages_per_rank
            bubble = rounds * one * _BUBBLE.get(s.schedule, 1.0)
            bubble += 2 * (s.pp - 1) * (sync.stage_fixed + sync.stage_per_sample * b)
        busy = m * compute
        beside = m * max(compute, launch_floor)  # what messages hide behind, also where launches take longest
        if s.zero == 3:
            # Gathers for forward and backward and scatters of gradients hide behind the compute of layers.
            times = m if s.sync_every_micro_batch else 1
            total = m * sync.gather + times * sync.scatter
            data = total - beside if total > beside else 0.0
            data += sync.gather / max(1, work.layers) + sync.replicas * row.exposed
        else:
            data = sync.gradients
            hidden = data - 2 / 3 * beside
            data = max(row.exposed * data, hidden)
        table = 0.0
        if work.table_parameters:
            table = self._table(s)
        return (
            busy, m * recompute, m * launch, m * tensor, bubble, data, update, table, row.fixed_seconds
        )  # fmt: skip

    def _layout(self, s: Strategy) -> tuple[float, float, Sync, float]:
        """What does not depend on the batch: seconds of a sample's FLOPs, launch floor, messages, update."""
        if s.tp > self.machine.cards:
            raise UserError(
                f"tp = {s.tp} on {self.machine.name}: tensor parallelism may span its {self.machine.cards} "
                "cards at most, since beyond a machine measured throughput fell by 43 % and more; take tp = "
                f"{self.machine.cards} and more of pp or dp"
            )
        row, peak = self._speed(s.precision, s.compiled)
        work, cut = self.work, s.tp * s.pp
        width = work.hidden / (work.hidden + row.half_width) if work.hidden else 1.0
        flops = work.product_flops + row.attention * work.attention_flops
        sync = self._syncs.of(s)
        memory = _MEMORY_SHARE * self.machine.gpu.memory_bytes_per_second
        update = sync.update_bytes / memory
        return flops / cut / (row.eta * width * peak), work.layers / s.pp * row.launch_seconds, sync, update

    def _speed(self, precision: str, compiled: bool) -> tuple[Calibration, float]:
        known = self._speeds.get((precision, compiled))
        if known is None:
            form = FORMATS[precision]
            software = self.software or ("compiled" if compiled else "eager")
            row = (
                self._row
                or self._of_own(form)
                or calibration(self.machine.gpu.name, form, self.work.kind, software)
            )
            known = self._speeds[precision, compiled] = row, self.machine.gpu.peak(form)
        return known

    def _of_own(self, form: Format) -> Calibration | None:
        """The row of own runs; in another format than theirs as fast as they were, not as a table hopes."""
        own, card = self._own, self.machine.gpu
        if own is None or own.form == form:
            return own
        eta = min(1.0, own.eta * card.peak(own.form) / card.peak(form))
        source = f"taken to be as fast as in {own.form}: {own.source}"
        return replace(own, form=form, eta=eta, kind="estimate", layouts="", error="", source=source)

    def _table(self, s: Strategy) -> float:
        """Look-ups, gradients and update of embedding tables, and their messages among all ranks."""
        rows = s.micro_batch * s.num_micro_batches * self.work.table_bytes
        memory = _MEMORY_SHARE * self.machine.gpu.memory_bytes_per_second
        ranks, nodes = s.dp, self.machine.nodes(s.world_size)
        links = self.machine.network
        if self.sparse:  # read, gradient written and read, moments and weights of the touched rows
            return 8 * rows / memory + links.seconds("all_gather", ranks, ranks * rows, nodes)
        whole = 4.0 * self.work.table_parameters
        # Forward reads rows, backward fills a gradient as large as the table; Adam reads 4 numbers, writes 3.
        passes = {"sgd": 3, "momentum": 5, "adam": 7}[s.optimizer] + 1
        return (2 * rows + passes * whole) / memory + links.seconds("all_reduce", ranks, whole, nodes)
