"""The parts of one phase of a run, built from the configuration: model, optimizer, schedule, loader ..."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtlab.data.coverage import Coverage
from dtlab.data.stream_loader import AnyLoader
from dtlab.ranks.groups import has_group
from dtlab.ranks.seeds import seed_everything
from dtlab.ranks.worlds import World
from dtlab.train.config import TrainConfig
from dtlab.train.flags import Flags
from dtlab.train.generators import Generators
from dtlab.train.layout import lay_out
from dtlab.train.layout_parts import ModelPart, OptimizerPart
from dtlab.train.meter import Reading
from dtlab.train.scaling import scaled_lr
from dtlab.train.schedule import Schedule
from dtlab.train.tasks import Task
from dtlab.train.trainer import Trainer

__all__ = ["Parts", "build_parts", "interval_too_long"]


@dataclass
class Parts:
    """What one phase trains with."""

    task: Task
    trainer: Trainer
    loader: AnyLoader
    coverage: Coverage
    schedule: Schedule | None
    weights: ModelPart

    def states(self) -> dict[str, Any]:
        """What a checkpoint holds of them, by name; the generators come last."""
        states = {
            "model": self.weights,
            "optimizer": OptimizerPart(self.weights, self.trainer.optimizer),
            "precision": self.trainer.precision,
            "sampler": self.loader,
            "trainer": self.trainer,
            "coverage": self.coverage,
        }
        if self.schedule is not None:
            states["schedule"] = self.schedule
        return {**states, "generators": Generators()}


def build_parts(
    config: TrainConfig,
    w: World,
    task: Task,
    *,
    on_reading: Callable[[Reading], None],
    tell: Callable[[str], None],
) -> Parts:
    """Build the parts, with weights drawn anew (collective). The buckets are settled.

    Raises:
        UserError: the configuration does not fit the data or the device.
    """
    seed, optim = config.run.seed, config.optim
    # Weights start from the same draw on every world size; what else is drawn differs from rank to rank.
    seed_everything(seed, 0)
    model = task.model().to(w.device)
    layout = task.layout
    if layout.mesh is not None:
        model = lay_out(model, layout, config, task.output_loss)
    seed_everything(seed, w.rank)
    training = task.training(w.device)
    loader, coverage = training.loader, Coverage(training.ids)
    optimizer = _optimizer(config, model)
    schedule = _schedule(config, loader.sampler.steps_per_epoch)
    has_dropout = config.model.dropout > 0 or config.model.embedding_dropout > 0
    trainer = Trainer(
        model,
        optimizer,
        loss=task.loss,
        engine=config.run.engine,
        precision="fp32" if config.run.dtype == "float64" else config.precision.name,
        clip=optim.clip,
        schedule=schedule,
        micro_batch=optim.micro_batch,
        checkpoint_activations=config.precision.checkpoint_activations,
        compile=config.precision.compile,
        non_finite=config.stopping.non_finite,
        seed=seed if has_dropout else None,
        flags=Flags(),
        log_every=config.run.log_every,
        on_batch=(lambda batch: coverage.add(batch.ids)) if layout.counts_samples else None,
        on_reading=on_reading,
        tell=tell,
        layout=layout,
    )
    trainer.settle(training.some)
    return Parts(task, trainer, loader, coverage, schedule, ModelPart(trainer.model, layout))


def _optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    optim, schedule = config.optim, config.schedule
    lr = scaled_lr(optim.lr, schedule.scaling, schedule.base_batch, optim.global_batch, optim.name)
    kind = torch.optim.SGD if optim.name == "sgd" else torch.optim.AdamW
    options: dict[str, Any] = {"lr": lr, "weight_decay": optim.weight_decay}
    parameters = list(model.parameters())
    if config.parallel.zero1 and has_group():
        from dtlab.parallel.zero import ShardedOptimizer

        return ShardedOptimizer(parameters, kind, **options)
    if any(hasattr(parameter, "full_tensor") for parameter in parameters):
        options["foreach"] = False  # one kernel over many tensors does not take DTensors of several meshes
    return kind(parameters, **options)


def _schedule(config: TrainConfig, steps_per_epoch: int) -> Schedule | None:
    """None where the rate never moves.

    The plan is for max_epochs, also in the refit, which stops at the epoch that validation chose: it is to
    repeat what was validated, so its rates must be those.
    """
    optim, schedule = config.optim, config.schedule
    if schedule.kind == "constant" and not schedule.warmup:
        return None
    total = config.run.max_steps or optim.max_epochs * steps_per_epoch
    lr = scaled_lr(optim.lr, schedule.scaling, schedule.base_batch, optim.global_batch, "sgd")
    return Schedule(schedule, lr, total, steps_per_epoch=steps_per_epoch)


def interval_too_long(config: TrainConfig, steps_per_epoch: int) -> str | None:
    """A line when checkpoints are further apart than the run is long."""
    every = config.checkpoint.every_steps
    total = config.run.max_steps or config.optim.max_epochs * steps_per_epoch
    if every is None or every <= total:
        return None
    return (
        f"checkpoint.every_steps = {every}, but the run makes at most {total} steps: nothing is saved unless "
        "it is stopped; choose a smaller interval"
    )
