"""Reading one checkpoint: is it whole, and what are the states of its parts (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks import agreement
from dtlab.train import checkpoint_sharded as sharding
from dtlab.train.checkpoint_entry import together
from dtlab.train.checkpoint_files import check_file, tensor_reader
from dtlab.train.checkpoint_parts import bare, is_per_rank, is_shared_out, state_of
from dtlab.train.checkpoint_store import SHARDED, TENSORS, describe
from dtlab.train.state import unflatten

__all__ = ["problem_with", "read_part", "read_states"]


def problem_with(path: Path, rank: int = 0, world_size: int = 1) -> str | None:
    """What keeps this rank from using a checkpoint, or None; the ranks share the reading of its files."""
    try:
        _, content = describe(path)
    except UserError as error:
        return str(error)
    for number, (name, expected) in enumerate(sorted(content["files"].items())):
        if number % world_size == rank:
            problem = check_file(path / name, expected)
            if problem is not None:
                return problem
        elif not (path / name).is_file():
            return f"{name} is missing"
    return None


def read_part(path: str | Path, name: str) -> Any:
    """The state of one shared part, read in one process without a group; sharded tensors come whole.

    Raises:
        UserError: no such part, or the checkpoint is damaged.
    """
    path = Path(path)
    problem = problem_with(path)
    if problem is not None:
        raise UserError(f"checkpoint {str(path)!r}: {problem}; name another")
    _, content = describe(path)
    if name not in content["parts"]:
        raise _unknown(path, name, content["parts"])
    wanted = [key for key in content["sharded"] if key.startswith(f"{name}/")]
    shards = sharding.targets(path / SHARDED, wanted, {})
    if wanted:
        sharding.load_sharded(path / SHARDED, shards, None)
    read = tensor_reader(path / TENSORS)
    return unflatten(content["parts"][name], lambda key: shards[key] if key in shards else read(key))


def read_states(path: Path, parts: Mapping[str, Any], group: dist.ProcessGroup | None) -> dict[str, Any]:
    """The states of ``parts``, tensors laid out as the parts have them (collective). Nothing is changed.

    Of a per-rank part a rank gets its own state if the world size is the one that saved it, else rank 0's. Of
    a part that is shared out it gets None for the tensors of other ranks.

    Raises:
        UserError: on every rank: a part is not there, does not fit, or cannot be read.
    """
    rank, size = agreement.rank(group), agreement.world_size(group)
    content: dict[str, Any] = {}

    def look() -> None:
        try:
            content.update(describe(path)[1])
        except UserError as error:
            raise UserError(f"checkpoint {str(path)!r}: {error}; name another") from None
        known = {**content["parts"], **(content["ranks"][0] if content["ranks"] else {})}
        for name in parts:
            if name not in known:
                raise _unknown(path, name, known)

    together(group, path.parent, look)
    live: dict[str, Tensor] = {}
    shared_out = {name for name, part in parts.items() if is_shared_out(part)}
    is_cut = bool(shared_out) or any(sharding.is_sharded(tensor) for tensor in _parameters(parts))
    if content["sharded"] or is_cut:
        for name, part in parts.items():
            if not is_per_rank(part):
                live |= sharding.templates(name, bare(part), state_of(name, part))

    def is_elsewhere(path: str) -> bool:
        return path.split("/", 1)[0] in shared_out and not sharding.is_known(live, path)

    wanted = [name for name in content["sharded"] if name.split("/", 1)[0] in parts]
    mine = [name for name in wanted if not is_elsewhere(name)]
    shards: dict[str, Tensor] = {}
    together(group, path.parent, lambda: shards.update(sharding.targets(path / SHARDED, mine, live)))
    if wanted:
        sharding.load_sharded(path / SHARDED, shards, group)
    states: dict[str, Any] = {}

    def read_all() -> None:
        read = tensor_reader(path / TENSORS)

        def get(name: str) -> Any:
            if name in shards:
                return shards[name]
            if is_elsewhere(name):
                return None
            tensor = read(name)
            return sharding.lay_out(tensor, sharding.like(live, name, tensor.shape)) if live else tensor

        ranks = content["ranks"] or [{}]
        own = ranks[rank if len(ranks) == size else 0]
        for name, part in parts.items():
            tree = own[name] if is_per_rank(part) else content["parts"][name]
            states[name] = unflatten(tree, get)

    together(group, path.parent, read_all)
    return states


def _unknown(path: Path, name: str, known: Mapping[str, Any]) -> UserError:
    return UserError(f"checkpoint {str(path)!r} has no part {name!r}: it has {', '.join(sorted(known))}")


def _parameters(parts: Mapping[str, Any]) -> list[Tensor]:
    return [p for part in parts.values() if hasattr(part, "parameters") for p in part.parameters()]
