"""What a run leaves on the disk while it goes on, and finds there when it is started again (lesson 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.errors import UserError
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.pipelined_model import PipelinedModel
from dtlab.train.checkpoint import CheckpointInfo
from dtlab.train.full_state import gather_state
from dtlab.train.record import environment, git_state
from dtlab.train.resume import changes

if TYPE_CHECKING:
    from dtlab.train.job import Job

__all__ = ["find_checkpoint", "save", "saved_parts", "take_back", "whole_weights", "write_start"]


def find_checkpoint(job: Job) -> CheckpointInfo | None:
    """Where an interrupted run goes on; its place is read first, since it says what to build (collective)."""
    info = job.checkpoints.latest() if job.checkpoints is not None else None
    if info is None or job.checkpoints is None:
        return None
    run = job.config.run
    if run.max_steps is not None and run.max_steps < info.step:
        raise UserError(
            f"run.max_steps = {run.max_steps}: the checkpoint in {str(job.folder)!r} is at step {info.step} "
            f"already; give {info.step} or more, or start a new run"
        )
    if run.resume and run.folder is None:
        job.say(
            f"going on in {job.folder}, the newest interrupted run in {run.output}; another one: --run.folder"
        )
    saved: dict[str, Any] = {}
    job.checkpoints.load({"job": saved}, info)
    for line in changes(saved, job.state):
        job.say(f"the run goes on with {line}")
    job.state = {**job.state, **saved, "config": job.state["config"]}
    return info


def take_back(job: Job, info: CheckpointInfo) -> None:
    """Put the state of a checkpoint back into the parts (collective); what this configuration says counts.

    The optimizer's state holds the rate and the weight decay of before: a line said that the run goes on with
    others. A schedule that the saved run did not have begins at this step of its plan.
    """
    assert job.checkpoints is not None
    trainer, schedule = job.parts.trainer, job.parts.schedule
    parts = saved_parts(job)
    del parts["job"]  # it was read first
    if "schedule" not in info.parts:
        parts.pop("schedule", None)
    groups = trainer.optimizer.param_groups
    wanted = [(group["lr"], group["weight_decay"]) for group in groups]
    job.checkpoints.load(parts, info)
    for group, (lr, weight_decay) in zip(trainer.optimizer.param_groups, wanted, strict=True):
        group["weight_decay"] = weight_decay
        if schedule is None:
            group["lr"] = lr
    if schedule is not None and "schedule" not in info.parts:
        schedule.step = trainer.steps_done


def saved_parts(job: Job) -> dict[str, Any]:
    """Everything that a checkpoint of the run holds and gives back."""
    return {"job": job.state, "stopping": job.stopping, "best": job.best, **job.parts.states()}


def save(job: Job, reason: str) -> None:
    """Save the whole state as it is after this step (collective); nothing for a run without a folder."""
    if job.checkpoints is None:
        return
    trainer = job.parts.trainer
    trainer.tally.fold()
    job.parts.coverage.fold()
    kept = job.state["seconds"]
    job.state["seconds"] = job.world.broadcast(job.budget.seconds)
    features = job.task.features
    parts = {"features": {"json": None if features is None else features.to_json()}}
    step = job.state["steps_before"] + trainer.steps_done
    samples = job.state["samples_before"] + trainer.samples
    job.checkpoints.save({**parts, **saved_parts(job)}, step, samples=samples, reason=reason)
    job.state["seconds"] = kept
    job.record.write("checkpoint", step=step, samples=samples, reason=reason)


def whole_weights(job: Job) -> dict[str, Any]:
    """The model's state dict on rank 0, gathered where the ranks hold parts of it (collective)."""
    model = unwrap(job.parts.trainer.model)
    if job.layout.mesh is None:
        return model.state_dict()
    state = gather_state(model.pipe if isinstance(model, PipelinedModel) else model, enter_seconds=60.0)
    weights: dict[str, Any] = state.get("model", {})
    return weights


def write_start(job: Job, info: CheckpointInfo | None) -> None:
    """The first line of the record, or the one that says from where the run goes on."""
    job.record.write(
        "start" if info is None else "resume",
        config=job.config.to_dict(),
        seed=job.config.run.seed,
        data={"name": job.task.data.name, "version": job.task.data.version},
        world_size=job.world.size,
        layout=job.layout.words,
        num_nodes=job.world.num_nodes,
        launcher=job.world.launcher,
        checkpoint=None if info is None else info.path.name,
        environment=environment(),
        **(git_state() if job.world.is_main else {}),
    )
