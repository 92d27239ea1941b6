"""State dicts of a model and its optimizer in any layout, by one call that every rank makes (lesson 09).

``gather_state(model, optimizer)`` gives what one process would have: whole tensors under the model's names. A
layout that saved it does not matter to the one that takes it with ``scatter_state``.

- Rank 0 alone holds whole tensors; the others get an empty dict. A tensor is put together, taken by rank 0
  and dropped elsewhere, before the next one starts.
- With ``full=False`` nothing is gathered: each rank gets its own parts. ``Checkpointer`` saves those.
- Works for replicas, DTensors (FSDP, HSDP, tensor parallelism), matrices cut by hand, pipeline stages,
  ``ShardedOptimizer``, and embedding tables of ``shard_embeddings`` with what an optimizer keeps for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.pipeline import Pipeline
from dtlab.parallel.sharded import check_whole, local_part, shard_table
from dtlab.parallel.whole import part_of, whole
from dtlab.ranks import agreement
from dtlab.train.checkpoint_entry import enter_all
from dtlab.train.checkpoint_parts import bare

__all__ = ["gather_state", "scatter_state"]

State = dict[str, Any]


class _Entry(NamedTuple):
    path: tuple[str, ...]  # ("model", name), or ("optimizer", name, "exp_avg")
    tensor: Tensor
    layout: Tensor  # the parameter that says how the tensor is cut


def gather_state(
    model: nn.Module | Pipeline,
    optimizer: Optimizer | None = None,
    *,
    full: bool = True,
    enter_seconds: float = 10.0,
) -> State:
    """``{"model": {name: tensor}, "optimizer": {"state": ..., "param_groups": ...}}`` (collective).

    Args:
        model: in any layout, wrapped or not, or this rank's ``Pipeline``.
        optimizer: over parameters of ``model``; its state goes by their names.
        full: whole tensors on the CPU of rank 0 and {} on the others; False: each rank's own parts, which
            share their memory with the model.
        enter_seconds: how long to wait for a rank that does not come, before it is named (gloo).

    Raises:
        LateRankError: a rank did not call this.
        UserError: a part that does not say what it is part of, a parameter that is not the model's.

    >>> layer = nn.Linear(2, 1)
    >>> state = gather_state(layer)  # a world of one
    >>> sorted(state["model"])
    ['bias', 'weight']
    """
    enter_all("gather_state()", enter_seconds)
    modules = _modules(model)
    whole_state = optimizer.state_dict() if optimizer is not None else {}  # ShardedOptimizer: collective
    names = _names(modules, optimizer)
    entries = list(_entries(modules, names, whole_state.get("state", {})))
    if not full:
        return _nested(
            {entry.path: entry.tensor for entry in entries}, _groups(whole_state, names), optimizer
        )
    rank = agreement.rank()
    seen: dict[int, Tensor] = {}
    owners = _owners([entry.path for entry in entries])
    own: dict[tuple[str, ...], Tensor] = {}
    for entry in entries:
        if id(entry.tensor) not in seen:  # a tied matrix: once
            value = whole(entry.tensor, entry.layout)
            is_kept = owners[entry.path] == rank
            seen[id(entry.tensor)] = _on_cpu(value) if is_kept else value.new_empty(0)
        if owners[entry.path] == rank:
            own[entry.path] = seen[id(entry.tensor)]
    found = _collected(own, owners)
    groups = agreement.gather(_groups(whole_state, names)) or []
    return _nested(found, _merged(groups), optimizer) if rank == 0 else {}


def scatter_state(
    state: Mapping[str, Any],
    model: nn.Module | Pipeline,
    optimizer: Optimizer | None = None,
    *,
    enter_seconds: float = 60.0,
) -> None:
    """Put what ``gather_state`` gave into ``model`` and ``optimizer``, in any layout (collective).

    Rank 0's ``state`` counts and is sent tensor by tensor; give {} on the other ranks. A rank that does not
    come within ``enter_seconds`` is named (gloo).

    Raises:
        LateRankError: a rank did not call this.
        UserError: on every rank: names or shapes of another model. Then nothing has been changed.

    >>> layer, twin = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> scatter_state(gather_state(layer), twin)
    >>> torch.equal(layer.weight, twin.weight)
    True
    """
    enter_all("scatter_state()", enter_seconds)
    modules = _modules(model)
    names = _names(modules, optimizer)
    values = _flat(state) if agreement.rank() == 0 else {}
    index = agreement.broadcast({path: tuple(value.shape) for path, value in values.items()})
    groups = agreement.broadcast(state.get("optimizer", {}).get("param_groups"))
    mine = {entry.path: entry for entry in _entries(modules, names, {})}
    _check(mine, index, has_groups=groups is not None, wants_groups=optimizer is not None)
    layouts = {path[1]: entry.layout for path, entry in mine.items()}
    moments: dict[str, dict[str, Any]] = {}
    for path in index:
        value = agreement.broadcast(values.get(path))
        assert value is not None  # rank 0 has what it indexed
        if path in mine:
            with torch.no_grad():
                target = local_part(mine[path].tensor)
                target.copy_(local_part(part_of(value, mine[path].layout)))
        elif path[0] == "optimizer" and path[1] in layouts:
            moments.setdefault(path[1], {})[path[2]] = part_of(value, layouts[path[1]])
    if optimizer is not None:
        _fill(optimizer, names, moments, groups)


def _modules(model: nn.Module | Pipeline) -> list[nn.Module]:
    found = model.stages.values() if isinstance(model, Pipeline) else [model]
    modules = [bare(module) for module in found]
    for module in modules:
        if any(
            hasattr(p, "shard_group") and not hasattr(p, "shard_dim") and shard_table(p) is None
            for p in module.parameters()
        ):
            check_whole(module)
    return modules


def _names(modules: list[nn.Module], optimizer: Optimizer | None) -> list[str]:
    """The name of each parameter of the optimizer, in its order."""
    if optimizer is None:
        return []
    known = {id(p): name for module in modules for name, p in module.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(id(p) not in known for p in parameters):
        raise UserError("optimizer: a parameter is not the model's; give the model that it was made for")
    return [known[id(p)] for p in parameters]


def _entries(modules: list[nn.Module], names: list[str], moments: Mapping[int, Any]) -> Iterator[_Entry]:
    parameters: dict[str, Tensor] = {}
    for module in modules:
        for name, tensor in module.state_dict(keep_vars=True).items():
            parameters[name] = tensor
            yield _Entry(("model", name), tensor, tensor)
    aliases: dict[int, list[str]] = {}
    for name, tensor in parameters.items():
        aliases.setdefault(id(tensor), []).append(name)
    for number, name in enumerate(names):
        for key, value in moments.get(number, {}).items():
            if not isinstance(value, Tensor):
                value = torch.tensor(value)
            # Under every name of a tied matrix: of a pipeline's stages one may know it by another.
            for alias in aliases[id(parameters[name])]:
                yield _Entry(("optimizer", alias, key), value, parameters[name])


def _groups(state: Mapping[str, Any], names: list[str]) -> list[State]:
    groups = state.get("param_groups", [])
    return [{**group, "params": [names[number] for number in group["params"]]} for group in groups]


def _merged(ranks: list[list[State]]) -> list[State]:
    """Rank 0's groups with the parameters of all ranks: those of a pipeline's other stages too."""
    merged = [dict(group) for group in ranks[0]] if ranks else []
    for number, group in enumerate(merged):
        lists = [groups[number]["params"] for groups in ranks if number < len(groups)]
        group["params"] = list(dict.fromkeys(name for names in lists for name in names))
    return merged


def _nested(
    found: Mapping[tuple[str, ...], Tensor], groups: list[State], optimizer: Optimizer | None
) -> State:
    state: State = {"model": {path[1]: value for path, value in found.items() if path[0] == "model"}}
    if optimizer is not None:
        moments: dict[str, State] = {}
        for path, value in found.items():
            if path[0] == "optimizer":
                moments.setdefault(path[1], {})[path[2]] = value
        state["optimizer"] = {"state": moments, "param_groups": groups}
    return state


def _flat(state: Mapping[str, Any]) -> dict[tuple[str, ...], Tensor]:
    flat: dict[tuple[str, ...], Tensor] = {
        ("model", name): value for name, value in state.get("model", {}).items()
    }
    for name, moments in state.get("optimizer", {}).get("state", {}).items():
        flat |= {("optimizer", name, key): value for key, value in moments.items()}
    return flat


def _owners(paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """For each path the lowest rank that has it."""
    owners: dict[tuple[str, ...], int] = {}
    for rank, theirs in enumerate(agreement.gather(paths, dst=None) or []):
        for path in theirs:
            owners.setdefault(path, rank)
    return owners


def _collected(
    own: dict[tuple[str, ...], Tensor], owners: dict[tuple[str, ...], int]
) -> dict[tuple[str, ...], Tensor]:
    """All tensors on rank 0: those of a pipeline's other stages are sent, one at a time."""
    found = {}
    for path, owner in owners.items():
        value = own.get(path) if owner == 0 else agreement.broadcast(own.get(path), src=owner)
        if agreement.rank() == 0:
            found[path] = value
    return found  # type: ignore[return-value]


def _check(
    mine: Mapping[tuple[str, ...], _Entry],
    index: Mapping[tuple[str, ...], tuple[int, ...]],
    *,
    has_groups: bool,
    wants_groups: bool,
) -> None:
    problem = None
    if wants_groups and not has_groups:
        problem = "state has no optimizer; gather it with one, or give none"
    for path, entry in mine.items():
        shape = tuple(entry.tensor.shape)
        layout: Any = entry.layout
        if shard_table(layout) is not None:
            shape = (shard_table(layout).num_embeddings, shard_table(layout).embedding_dim)
        elif hasattr(layout, "shard_dim"):
            ranks = agreement.world_size(layout.shard_group)
            size = getattr(layout, "whole_size", shape[layout.shard_dim] * ranks)
            shape = (*shape[: layout.shard_dim], size, *shape[layout.shard_dim + 1 :])
        if path not in index:
            problem = problem or f"{path[1]} is missing in state"
        elif index[path] != shape:
            there = list(index[path])
            problem = problem or f"{path[1]} has shape {there} in state, the model's has {list(shape)}"
    names = agreement.gather([path[1] for path in mine], dst=None) or []
    known = {name for theirs in names for name in theirs}
    unknown = next((path[1] for path in index if path[0] == "model" and path[1] not in known), None)
    if unknown is not None:
        problem = problem or f"{unknown} is not in the model"
    problems = [text for text in agreement.gather(problem, dst=None) or [] if text is not None]
    if problems:
        raise UserError(f"state is of another model: {problems[0]}")


def _fill(optimizer: Optimizer, names: list[str], moments: Mapping[str, State], groups: list[State]) -> None:
    own = optimizer.state_dict()
    if len(groups) != len(own["param_groups"]):
        raise UserError(
            f"state has {len(groups)} parameter groups, the optimizer {len(own['param_groups'])}: make it so"
        )
    new = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": mine["params"]}
        for group, mine in zip(groups, own["param_groups"], strict=True)
    ]
    state = {number: moments[name] for number, name in enumerate(names) if name in moments}
    optimizer.load_state_dict({"state": state, "param_groups": new})


def _on_cpu(value: Tensor) -> Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)
