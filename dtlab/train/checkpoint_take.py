"""What a save takes from the parts before it is written; training then goes on without it (lesson 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from dtlab.errors import UserError, require_whole
from dtlab.ranks import agreement
from dtlab.train import checkpoint_sharded as sharding
from dtlab.train.checkpoint_entry import differing
from dtlab.train.checkpoint_parts import joined, take
from dtlab.train.checkpoint_write import Job
from dtlab.train.staging import Stage, as_written

__all__ = ["check_head", "take_job"]


def check_head(parts: Any, step: Any, samples: Any) -> None:
    """Refuse what no checkpoint can be found again under.

    Raises:
        UserError: ``parts`` are no dict, or ``step`` or ``samples`` no whole number from 0 on.

    >>> check_head({"model": None}, 10, samples=640)
    """
    if not isinstance(parts, Mapping):
        raise UserError(f"parts = a {type(parts).__name__}: give a dict, for example {{'model': model}}")
    for name in parts:
        if not isinstance(name, str):
            raise UserError(f"parts: {name!r} is a {type(name).__name__}; name every part by a text")
    require_whole("step", step, 0, "optimizer steps done")
    require_whole("samples", samples, 0, "samples seen by all ranks")


def take_job(
    parts: Mapping[str, Any],
    group: dist.ProcessGroup | None,
    together: Callable[[Callable[[], Any]], list[Any]],
    head: Mapping[str, Any],
    stage: Stage | None,
    stager: Any,
) -> tuple[Job, Any, list[str]]:
    """Everything that a save of ``parts`` needs (collective).

    Args:
        together: runs an action on all ranks and gives everybody's result, or raises on all.
        head: step, samples and reason.
        stage: where plain tensors are copied; None writes from the tensors themselves.
        stager: of sharded tensors, from the save before; None first.

    Returns:
        The job, the stager for the next save, and the names of parts that differ between the ranks.

    Raises:
        UserError: on every rank: a part cannot be saved, the ranks name different steps or samples.
    """
    rank = agreement.rank(group)
    taken: Any = None

    def describe_mine() -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        nonlocal taken
        taken = take(parts, rank)
        cut = [name for name, tensor in taken.tensors.items() if sharding.is_sharded(tensor)]
        return {"step": head["step"], "samples": head["samples"], **taken.checksums()}, taken.shared_out, cut

    told = together(describe_mine)
    differ = differing([values for values, _, _ in told])
    for name in ("step", "samples"):
        if name in differ:
            shown = [values[name] for values, _, _ in told]
            raise UserError(f"{name} = {shown} on the ranks: give the same to save() on every rank")
    sharded = {name: tensor for name, tensor in taken.tensors.items() if sharding.is_sharded(tensor)}
    plain = {name: tensor for name, tensor in taken.tensors.items() if name not in sharded and rank == 0}
    if sharded:
        stager, sharded = sharding.stage_sharded(stager, sharded)
    whole = {
        **head,
        "world_size": agreement.world_size(group),
        "parts": {**taken.trees, **joined([trees for _, trees, _ in told])},
        "sharded": sorted({name for _, _, names in told for name in names}),
    }
    plain = stage.copy(plain) if stage is not None else as_written(plain)
    return Job(whole, plain, sharded, taken.own_trees, taken.own_tensors), stager, differ
