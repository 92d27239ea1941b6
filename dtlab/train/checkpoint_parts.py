"""The parts of a run as states and back: model, optimizer, schedule, sampler, generators ... (lesson 13)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.sharded import check_whole
from dtlab.train.state import flatten

__all__ = [
    "Stateful",
    "Taken",
    "apply",
    "bare",
    "is_per_rank",
    "is_shared_out",
    "joined",
    "state_of",
    "take",
]


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state. With the attribute ``per_rank = True`` each rank's own state is kept.

    Such a part also has ``rederive(state, *, step, rank, world_size)`` for another world size.
    With ``is_shared_out = True`` the ranks' dicts together are the state, each tensor in it a DTensor; a rank
    gets back None for a tensor that it does not hold. ``layouts()`` says how tensors shall be laid out that
    the part does not have yet, by their path in it, or the beginning of one.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """The state: tensors, arrays, numbers, strings, lists, dicts."""

    def load_state_dict(self, state: Any) -> Any:
        """Take a state back."""


@dataclass
class Taken:
    """What :func:`take` found on one rank."""

    trees: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    own_trees: dict[str, Any] = field(default_factory=dict)
    """Parts that every rank has for itself."""
    own_tensors: dict[str, Tensor] = field(default_factory=dict)
    shared_out: dict[str, Any] = field(default_factory=dict)
    """Parts of which every rank has some."""

    def checksums(self) -> dict[str, int]:
        """A short number per shared part: equal where the part is equal, tensors' values aside."""
        return {name: zlib.crc32(json.dumps(tree).encode()) for name, tree in self.trees.items()}


def bare(part: Any) -> Any:
    """A module without the wrappers of data parallelism and ``torch.compile``; anything else as it is.

    So keys carry no ``module.`` of a wrapper, while a model's own child of that name keeps it.
    """
    while isinstance(part, nn.Module):
        inner = unwrap(part)
        inner = inner._modules.get("_orig_mod", inner) or inner
        if inner is part:
            break
        part = inner
    return part


def is_per_rank(part: Any) -> bool:
    """Whether each rank has a state of its own in this part."""
    return bool(getattr(part, "per_rank", False))


def is_shared_out(part: Any) -> bool:
    """Whether the ranks' states of this part together are its state."""
    return bool(getattr(part, "is_shared_out", False))


def joined(trees: Sequence[Any]) -> Any:
    """One tree of the ranks' trees: dicts are joined, of anything else the first rank's counts.

    >>> joined([{"a": 1, "lr": {"x": 2}}, {"b": 3, "lr": {"y": 4}}])
    {'a': 1, 'lr': {'x': 2, 'y': 4}, 'b': 3}
    """
    if not all(isinstance(tree, dict) for tree in trees):
        return trees[0]
    names = dict.fromkeys(name for tree in trees for name in tree)
    return {name: joined([tree[name] for tree in trees if name in tree]) for name in names}


def state_of(name: str, part: Any) -> Any:
    """The state of a part: its ``state_dict()``, or itself when it is a dict.

    Raises:
        UserError: it is neither, or a model of which this rank holds parts that do not say so.
    """
    part = bare(part)
    if isinstance(part, nn.Module):
        check_whole(part)
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, Mapping):
        return part
    raise UserError(
        f"part {name!r} is a {type(part).__name__}: give a dict, or an object with state_dict() and "
        "load_state_dict()"
    )


def take(parts: Mapping[str, Any], rank: int) -> Taken:
    """The states of all parts, flat. The tensors still share memory with the parts.

    Raises:
        UserError: something that a checkpoint cannot hold, by its path.
    """
    taken = Taken()
    for name, part in parts.items():
        if not name or "/" in name or name.startswith("$"):
            raise UserError(f"part {name!r}: name a part without '/' and without a leading '$'")
        state = state_of(name, part)
        if is_per_rank(part):
            tensors, taken.own_trees[name] = flatten(state, f"rank{rank}/{name}")
            taken.own_tensors |= {path: tensor.cpu().clone() for path, tensor in tensors.items()}
        elif is_shared_out(part):
            tensors, taken.shared_out[name] = flatten(state, name)
            taken.tensors |= tensors
        else:
            tensors, taken.trees[name] = flatten(state, name)
            taken.tensors |= tensors
    return taken


def _load_optimizer(optimizer: Optimizer, state: Any) -> None:
    """torch takes over the groups of another kind of optimizer, and fails in the next step, or never."""
    before = optimizer.state_dict()
    optimizer.load_state_dict(state)
    # What a newer torch added, the optimizer has filled in itself by now.
    lacking = sorted(
        {key for key in optimizer.defaults for group in optimizer.param_groups if key not in group}
    )
    if lacking:
        optimizer.load_state_dict(before)
        raise ValueError(
            f"it was saved by another optimizer, without {', '.join(lacking)}, which "
            f"{type(optimizer).__name__} needs"
        )


def apply(name: str, part: Any, state: Any) -> None:
    """Put a state back into its part; a dict is filled anew.

    Raises:
        UserError: the part does not fit: another model, other keys or shapes.
    """
    part = bare(part)
    if hasattr(part, "load_state_dict"):
        try:
            if isinstance(part, Optimizer):
                _load_optimizer(part, state)
            else:
                part.load_state_dict(state)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"part {name!r} does not fit: {reason[:600]}; load it into what it was saved from"
            ) from error
    elif not isinstance(state, Mapping):
        raise UserError(f"part {name!r} does not fit: it was saved as a {type(state).__name__}, not a dict")
    else:
        part.clear()
        part.update(state)
