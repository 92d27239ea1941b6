"""The planner's view of the models of memory and step time (lesson 14).

Memory is `rank_memory`, time `step_time`; nothing is computed here but the floor below which no step can go.
"""

from collections.abc import Mapping
from dataclasses import fields

from dtlab.cost.catalogue import Instance
from dtlab.cost.machines import machine
from dtlab.cost.memory import Precision, state_bytes
from dtlab.cost.own_calibration import OwnCalibration
from dtlab.cost.plan_job import Job
from dtlab.cost.rank_memory import fullest, peak_bytes, rank_memory
from dtlab.cost.step_time import StepModel, StepTime
from dtlab.cost.strategy import Strategy


class Models:
    """dtlab's own predictor; keeps one step model for each type of machine.

    `own`: a calibration from runs of one's own, which goes before the table for its card and precision.

    >>> from dtlab.cost.catalogue import instance
    >>> from dtlab.cost.presets import LLAMA_7B
    >>> job = Job(model=LLAMA_7B, samples=1e6, global_batch=64)
    >>> strategy = Strategy(dp_shard=8, zero=3, num_micro_batches=8)
    >>> found, machines = Models(), instance("p5.48xlarge")
    >>> least = found.floor_seconds(job, "bf16-mixed", machines, 1)
    >>> least < found.step_seconds(job, strategy, machines, 1)
    True
    """

    def __init__(self, own: OwnCalibration | None = None) -> None:
        self.own = own
        self._models: dict[tuple[str, str, bool], StepModel] = {}

    def of(self, job: Job, machines: Instance) -> StepModel:
        """The step model of the job on machines of that type."""
        key = (job.model.name, machines.name, job.sparse_table)
        found = self._models.get(key)
        if found is None or found.preset is not job.model:
            own = None if self.own is None or self.own.gpu != machines.gpu else self.own.row(job.model)
            found = StepModel(job.model, machine(machines.name), sparse_table=job.sparse_table, own=own)
            self._models[key] = found
        return found

    def state_bytes(self, job: Job, strategy: Strategy) -> float:
        """Weights in fp32 and the optimizer's state of all parameters: what a checkpoint holds."""
        each = state_bytes(strategy.precision, strategy.optimizer)
        return float(job.model.parameters * (each.parameters + each.optimizer))

    def peak_bytes(self, job: Job, strategy: Strategy) -> float:
        return peak_bytes(job.model, strategy)

    def memory_items(self, job: Job, strategy: Strategy) -> Mapping[str, float]:
        return fullest(rank_memory(job.model, strategy))[1].items

    def step_seconds(self, job: Job, strategy: Strategy, machines: Instance, count: int) -> float:
        return self.of(job, machines).seconds(strategy)

    def step_parts(self, job: Job, strategy: Strategy, machines: Instance, count: int) -> Mapping[str, float]:
        names = [field.name.replace("_", " ") for field in fields(StepTime)]
        return dict(zip(names, self.of(job, machines).parts(strategy), strict=False))

    def step_error(self, job: Job, strategy: Strategy, machines: Instance) -> str:
        """How far to trust the time: an error that was measured, "estimate", or "bound only"."""
        return self.of(job, machines).error(strategy)

    def floor_seconds(self, job: Job, precision: Precision, machines: Instance, count: int) -> float:
        """The products of matrices alone, on cards that never wait."""
        one = self.of(job, machines).parts(Strategy(precision=precision, optimizer=job.optimizer))[0]
        return one * job.global_batch / (machines.gpus * count)
