"""A few steps of a ``dtlab train`` configuration on ranks: for loss parity and for a step profile.

Nothing is written, no epoch is chosen, no test row is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtlab.diagnose.parity import LIMIT, ROUNDING, Parity, loss_parity
from dtlab.diagnose.profiler import step_profile
from dtlab.diagnose.step_profile import StepProfile
from dtlab.diagnose.trajectory import Trajectory, TrajectoryRecorder
from dtlab.errors import UserError
from dtlab.ranks.launcher import launch
from dtlab.ranks.worlds import World, world
from dtlab.train.config import TrainConfig
from dtlab.train.parts import Parts, build_parts
from dtlab.train.tasks import load_task
from dtlab.train.trainer import global_steps

__all__ = ["config_parity", "config_profile"]


def config_parity(
    config: TrainConfig,
    nproc: int = 2,
    *,
    steps: int = 10,
    limit: float = LIMIT,
    rounding: float = ROUNDING,
    device: str | None = "cpu",
    timeout: float = 300.0,
) -> Parity:
    """Loss parity of a configuration, see :func:`loss_parity`; dropout is set to 0, where parity holds.

    ``steps``: of the first epoch. ``device``: "cpu", "cuda", or None for the ranks' own choice.

    Raises:
        UserError: the configuration or an argument is wrong.
        RankError: a run failed.
    """
    _check_steps(steps)
    model = replace(config.model, dropout=0.0, embedding_dropout=0.0)
    return loss_parity(
        _trajectory, nproc, replace(config, model=model), steps, device, limit=limit, rounding=rounding,
        timeout=timeout,
    )  # fmt: skip


def config_profile(
    config: TrainConfig,
    nproc: int = 1,
    *,
    steps: int = 20,
    device: str | None = None,
    timeout: float = 300.0,
) -> list[StepProfile]:
    """The step profile of every rank for ``steps`` steps of a configuration, without the first one.

    Raises:
        UserError: the configuration or an argument is wrong.
        RankError: the run failed.

    Example::

        print(bound_verdict(config_profile(TrainConfig(), nproc=2)))
    """
    _check_steps(steps)
    return list(launch(_profile, nproc, config, steps, device, timeout=timeout, echo=False))


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps = {steps!r}: give 1 or more")


# -- inside a rank -------------------------------------------------------------------------------------


def _trajectory(config: TrainConfig, steps: int, device: str | None) -> Trajectory:
    with world(device=device, seed=config.run.seed) as w:
        parts = _parts(config, w)
        recorder = TrajectoryRecorder(parts.trainer.model)
        for batch, rows in global_steps(parts.loader, steps):
            recorder.add(parts.trainer.step(batch, rows), len(batch))
        return recorder.result()


def _profile(config: TrainConfig, steps: int, device: str | None) -> StepProfile:
    with world(device=device, seed=config.run.seed) as w:
        parts = _parts(config, w)
        with step_profile(parts.trainer.model) as profiler:
            parts.trainer.train_epoch(profiler.steps(parts.loader), max_steps=steps)
        return profiler.profile()


def _parts(config: TrainConfig, w: World) -> Parts:
    def ignore(_what: Any) -> None:
        pass

    return build_parts(config, w, load_task(config), on_reading=ignore, tell=ignore)
