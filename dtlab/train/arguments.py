"""What a trainer is given, checked before the first step: one line for each way in which it can be wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from dtlab.errors import DtlabWarning, UserError, require_number, require_whole
from dtlab.ranks import agreement
from dtlab.train.schedule import Schedule

__all__ = ["check_alike", "check_arguments", "check_rows", "require_alike"]


def check_arguments(
    model: Any,
    optimizer: Any,
    *,
    loss: Any,
    clip: Any,
    schedule: Any,
    micro_batch: Any,
    count: Any,
    seed: Any,
    log_every: Any,
) -> None:
    """Refuse arguments of :class:`dtlab.Trainer` that it could not train with.

    Raises:
        UserError: one is of another kind or out of range, or the optimizer was built on other parameters than
            the model's.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model = {_named(model)}: give a torch.nn.Module, built")
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, LBFGS):
        fix = "which evaluates the loss by itself" if isinstance(optimizer, LBFGS) else "which is none"
        raise UserError(
            f"optimizer = {_named(optimizer)}, {fix}: give one built on model.parameters(), for example "
            "torch.optim.AdamW(model.parameters(), lr=1e-3)"
        )
    for name, value in (("loss", loss), ("count", count)):
        if not callable(value) and (name == "loss" or value is not None):
            raise UserError(f"{name} = {value!r}: give a function")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise UserError(
            f"schedule = {_named(schedule)}: give a dtlab.Schedule(config, base_lr, total_steps), or step "
            "one of torch's yourself after each step"
        )
    if micro_batch is not None:
        require_whole("micro_batch", micro_batch, 1, "rows of one forward")
    if clip is not None and not (isinstance(clip, float) and clip == math.inf):  # inf only measures
        require_number("clip", clip, lambda norm: norm > 0, "a positive norm, for example 1.0, or None")
    if seed is not None:
        require_whole("seed", seed, 0, "a seed")
    require_whole("log_every", log_every, 1, "steps")
    _check_parameters(model, optimizer)


def _check_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not own:
        raise UserError(f"model = {_named(model)}: it has no parameters, so there is nothing to train")
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    others = [parameter for parameter in moved if id(parameter) not in own]
    if len(others) == len(moved):
        raise UserError(
            f"optimizer: none of its {len(moved)} parameters is one of {type(model).__name__}'s, so nothing "
            "would be trained; build it on model.parameters(), after the model was moved or parallelized"
        )
    if not any(parameter.requires_grad for parameter in moved):
        raise UserError(
            f"optimizer: none of its parameters of {type(model).__name__} requires a gradient, so there is "
            "nothing to train; unfreeze some"
        )
    if others:
        warnings.warn(
            f"optimizer: {len(others)} of its {len(moved)} parameters are not {type(model).__name__}'s: "
            "their gradients are not averaged over the ranks; make them part of the model",
            DtlabWarning,
            stacklevel=4,
        )


def check_alike(
    optimizer: Optimizer, schedule: Schedule | None, options: Mapping[str, Any], *, is_whole: bool
) -> None:
    """Refuse ranks that would train differently: their replicas drift apart without a word (collective).

    Args:
        optimizer: of this rank.
        schedule: of this rank, or None.
        options: others by name, as plain values.
        is_whole: every rank holds the whole model, so its optimizer has the same groups.

    Raises:
        UserError: on every rank, with what each has.
    """
    if agreement.world_size() == 1:
        return
    mine = {name: str(value) for name, value in options.items()}
    mine["optimizer"] = type(optimizer).__name__
    mine["schedule"] = str(None if schedule is None else schedule.state_dict()["plan"])
    for number, group in enumerate(optimizer.param_groups if is_whole else []):
        for name, value in group.items():
            if isinstance(value, bool | int | float | tuple | None | Tensor):
                plain = float(value) if isinstance(value, Tensor) else value
                mine[f"{name} of param group {number}"] = str(plain)
    require_alike("the trainer's ", mine)


def require_alike(whose: str, mine: Mapping[str, str]) -> None:
    """Refuse ranks whose values differ (collective): ``whose`` stands before the name in the message.

    Raises:
        UserError: on every rank, with what each has.
    """
    everybody = agreement.gather(dict(mine), dst=None) or []
    for name in dict.fromkeys(name for each in everybody for name in each):
        values = {rank: each.get(name, "none") for rank, each in enumerate(everybody)}
        if len(set(values.values())) > 1:
            raise UserError(f"ranks disagree on {whose}{name}: {values}; give every rank the same")


def check_rows(mine: int, rows: Any) -> None:
    """Refuse a row count of the global batch that cannot be one.

    Raises:
        UserError: no whole number, below 1, or below the rows of this rank's part.
    """
    require_whole("rows", rows, 1, "rows: a step needs at least one row over all ranks")
    if rows < mine:
        raise UserError(
            f"rows = {rows}: this rank alone holds {mine} rows; give the row count of the global "
            "batch, over all ranks together"
        )


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
