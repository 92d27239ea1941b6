"""The fastest way to train a model on given machines, without trying what cannot be it (lesson 14).

For each type and number of machines every way of `plan_space.options` is covered: counted out because it does
not fit, because even its products of matrices take longer than the best way found on these machines, or
predicted. On given machines dollars follow seconds, so that the fastest way there is the cheapest too.

Two rules of prudence:

- The predicted time of a pipeline is a bound, and published ones took up to three times as long: pipelines
  are set aside on machines where any other way fits, unless `Space.pp` asks for them.
- Ways within 1 % of the fastest are equal, as predictions are off by more: the plainest of them that keeps
  deadline and budget is taken.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dtlab.cost import billing
from dtlab.cost.beside import Rates
from dtlab.cost.catalogue import Instance
from dtlab.cost.memory import Precision
from dtlab.cost.plan_job import Job, Space
from dtlab.cost.plan_space import Option, options
from dtlab.cost.prices import Price
from dtlab.cost.spot_plan import plan_spot
from dtlab.cost.strategy import Strategy

WITHOUT_BF16 = ("T4", "V100")
EQUAL = 1.01  # steps that differ by less are taken as equal


class Predictor(Protocol):
    """What the planner asks of the models of memory and time; `plan_model.Models` is dtlab's own."""

    def state_bytes(self, job: Job, strategy: Strategy) -> float:
        """Of a checkpoint, all ranks together."""
        ...

    def peak_bytes(self, job: Job, strategy: Strategy) -> float:
        """On the rank that needs most."""
        ...

    def step_seconds(self, job: Job, strategy: Strategy, machines: Instance, count: int) -> float:
        """One optimizer step on `count` machines."""
        ...

    def step_parts(self, job: Job, strategy: Strategy, machines: Instance, count: int) -> Mapping[str, float]:
        """Seconds of a step by part; parts that overlap count whole."""
        ...

    def step_error(self, job: Job, strategy: Strategy, machines: Instance) -> str:
        """How far to trust the seconds, in words."""
        ...

    def memory_items(self, job: Job, strategy: Strategy) -> Mapping[str, float]:
        """Bytes of the fullest rank by item."""
        ...

    def floor_seconds(self, job: Job, precision: Precision, machines: Instance, count: int) -> float:
        """Never more than a step of effort 1 takes."""
        ...


@dataclass(frozen=True)
class Candidate:
    """The best way on given machines: seconds and dollars of the whole run, start-up included.

    `items`: what `usd` is made of, "compute" first; the others are those of `Job.beside`.
    `trust` says how far the predicted time was off in measured runs, or that there are none like it.
    """

    instance: Instance
    count: int
    strategy: Strategy
    step_seconds: float
    peak_bytes: float
    seconds: float
    usd: float
    price: Price
    trust: str = ""
    items: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def gpus(self) -> int:
        return self.instance.gpus * self.count

    @property
    def name(self) -> str:
        return f"{self.count} x {self.instance.name}"


class Search:
    """Tries machines one kind and number at a time, and counts what it did."""

    def __init__(self, job: Job, space: Space, predictor: Predictor) -> None:
        self.job, self.space, self.predictor = job, space, predictor
        self.precisions = space.precisions or job.usual_precisions
        self.rates = Rates(job.beside, space.region)
        self.found: list[Candidate] = []
        self.dots: list[tuple[float, float]] = []
        self.covered = self.refused = self.no_room = self.too_slow = self.set_aside = 0
        self.endless = 0  # runs that interruptions would never let end
        self._options: dict[tuple[int, int], list[Option]] = {}
        self._peaks: dict[int, float] = {}
        self._smallest: tuple[float, Instance, Strategy] | None = None

    def on(self, found: Instance, count: int, price: Price) -> None:
        """Find the fastest way on these machines, and keep it."""
        job = self.job
        world = found.gpus * count
        key = (world, found.gpus)
        if key not in self._options:
            self._options[key] = options(job, self.space, world, found.gpus)
        ways = self._options[key]
        self.covered += len(ways)
        room = found.gpu_memory_bytes * self.space.fits_below
        reading = job.global_batch / (job.reader_per_host * count)
        floors = {
            precision: self.predictor.floor_seconds(job, precision, found, count)
            for precision in self.precisions
            if not (precision.startswith("bf16") and found.gpu in WITHOUT_BF16)
        }
        whole = [way for way in ways if way[1].pp == 1]
        cut = [way for way in ways if way[1].pp > 1]
        if self.space.pp or self.space.layout is not None:
            whole, cut = ways, []
        tried = self._try(whole, found, count, floors, room, reading)
        if tried:
            self.set_aside += len(cut)
        else:
            tried = self._try(cut, found, count, floors, room, reading)
        if not tried:
            return
        runs: list[tuple[float, Strategy, float, float, float]] = []
        for step, strategy in tried:
            seconds, usd = self._run(step, found, count, price, strategy)
            if not math.isfinite(seconds):
                self.endless += 1
                continue
            total = self.rates.usd(usd, price.usd_per_hour * count, count, seconds / 3600)
            self.dots.append((seconds, total))
            runs.append((step, strategy, seconds, usd, total))
        if not runs:
            return
        # A plainer way that is 1 % slower is no reason to miss a limit that the fastest keeps.
        kept = [run for run in runs if run[2] <= job.deadline_seconds and run[4] <= job.budget_usd] or runs
        start = job.start_seconds
        equal = EQUAL * min(run[2] - start for run in kept)  # on spot with saves: they differ by precision
        near = (run for run in kept if run[2] - start <= equal)
        step, chosen, seconds, usd, total = min(near, key=lambda run: (self._plainness(run[1]), run[2]))
        trust = self.predictor.step_error(self.job, chosen, found)
        peak = self.peak(chosen)
        items = self.rates.items(usd, price.usd_per_hour * count, count, seconds / 3600)
        self.found.append(Candidate(found, count, chosen, step, peak, seconds, total, price, trust, items))

    def _try(
        self,
        ways: list[Option],
        found: Instance,
        count: int,
        floors: dict[Precision, float],
        room: float,
        reading: float,
    ) -> list[tuple[float, Strategy]]:
        """Seconds of a step of the ways that fit and may be among the fastest."""
        tried: list[tuple[float, Strategy]] = []
        limit = math.inf
        for effort, strategy in ways:
            floor = floors.get(strategy.precision)
            if floor is None:
                self.refused += 1
            elif floor * effort >= limit:
                self.too_slow += 1
            elif self.peak(strategy) > room:
                self.no_room += 1
                self._note(strategy, found)
            else:
                step = max(self.predictor.step_seconds(self.job, strategy, found, count), reading)
                tried.append((step, strategy))
                limit = min(limit, EQUAL * step)
        return tried

    def _plainness(self, strategy: Strategy) -> tuple[int, ...]:
        """Smaller is plainer: fewer kinds of parallelism, no recomputation, less accumulation."""
        kinds = (strategy.tp > 1) + (strategy.pp > 1) + (strategy.zero > 0)
        kinds += strategy.dp_shard > 1 and strategy.dp_replicate > 1
        return (
            kinds,
            strategy.recompute != "none",
            strategy.num_micro_batches,
            self.precisions.index(strategy.precision),
            strategy.zero,
        )

    def peak(self, strategy: Strategy) -> float:
        """Each strategy is asked for once: its memory does not depend on the machines."""
        known = self._peaks.get(id(strategy))  # the options are kept, so an id is not used twice
        if known is None:
            known = self._peaks[id(strategy)] = self.predictor.peak_bytes(self.job, strategy)
        return known

    def _run(
        self, step: float, found: Instance, count: int, price: Price, strategy: Strategy
    ) -> tuple[float, float]:
        """Seconds of the whole run, and dollars of its machines."""
        job, spot = self.job, self.space.spot
        seconds = job.start_seconds + job.steps * step
        if spot is None:
            billed = max(seconds, billing.MINIMUM_SECONDS)
            return seconds, price.usd_per_hour / 3600 * billed * count
        expected = plan_spot(
            job.steps * step,
            on_demand_usd_per_hour=price.usd_per_hour,  # only the time is taken from it
            spot_usd_per_hour=price.usd_per_hour,
            interruptions_per_hour=spot.interruptions_per_hour,
            hosts=count,
            state_bytes=self.predictor.state_bytes(job, strategy),
            write_bytes_per_second=spot.write_bytes_per_second,
            start_seconds=job.start_seconds,
            break_even=False,
        )
        seconds = job.start_seconds + 3600 * expected.billed_hours
        return seconds, price.usd_per_hour / 3600 * max(seconds, billing.MINIMUM_SECONDS) * count

    def _note(self, strategy: Strategy, found: Instance) -> None:
        over = self.peak(strategy) / found.gpu_memory_bytes
        if self._smallest is None or over < self._smallest[0]:
            self._smallest = (over, found, strategy)

    def why_nothing(self, fewest: int) -> str:
        """Why there is no candidate; `fewest` cards has the smallest machine of the space."""
        job, space = self.job, self.space
        if self.endless:
            rate = space.spot.interruptions_per_hour if space.spot else 0.0
            return (
                f"interruptions_per_hour = {rate:g}: no run would ever end; give those of one host, such as "
                "0.05"
            )
        if self._smallest is not None:
            over, found, strategy = self._smallest
            return (
                f"model = {job.model.name!r}: nothing fits; the nearest takes {over:.0%} of one {found.gpu} "
                f"of {found.name} on {strategy.world_size} GPUs (limit {space.fits_below:.0%}); allow more "
                "GPUs, larger cards, or smaller micro-batches"
            )
        if space.layout is not None:
            return (
                f"layout = {space.layout.line()!r} of the [parallel] table: no machines here have a number "
                f"of GPUs that it gives with global_batch = {job.global_batch}, tp within a machine; leave "
                "one degree out as the rest of the ranks, or give --counts, --max-gpus or other --instances"
            )
        least = min(space.counts, default=1)
        if fewest * least > space.max_gpus:
            hosts = "one machine" if least == 1 else f"{least:,} machines"
            return (
                f"max_gpus = {space.max_gpus}: {hosts} of the types here have {fewest * least:,} or more; "
                "give more GPUs, fewer machines or smaller types"
            )
        for name in ("tp", "pp"):
            if not job.model.layers and (wanted := getattr(space, name)) and 1 not in wanted:
                return f"{name} = {wanted[0]}: {job.model.name} has no equal layers to cut; take {name} = 1"
        asked = {"tp": space.tp, "pp": space.pp, "micro_batches": space.micro_batches, "counts": space.counts}
        said = [f"{name} = {', '.join(map(str, values))}" for name, values in asked.items() if values]
        sizes = f"{job.model.heads} heads and an FFN of {job.model.ffn:,}"
        given = "".join(f", {one}" for one in said)
        return (
            f"global_batch = {job.global_batch}{given}: no way was left to try; "
            "the batch must be divisible by the data-parallel ranks and their micro-batches"
            + (f", and tp must divide {job.model.name}'s {sizes}" if space.tp and job.model.layers else "")
        )
