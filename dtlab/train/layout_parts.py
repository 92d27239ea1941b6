"""Model, optimizer and best weights as parts of a checkpoint that any layout can load (lessons 09, 13).

- Everything goes by the names that one process would use: parameters, and an optimizer's moments too. So what
  two stages saved loads into four shards, or into one process.
- A rank of a pipeline, or of matrices cut by hand, gives what it holds; the ranks' entries together are the
  state (``is_shared_out``). Each tensor goes as a DTensor, which says what it is a part of, so that
  ``torch.distributed.checkpoint`` writes every number once and reads only what a rank needs.
- A matrix that embedding and head share is saved under both names: a pipeline's last stage knows it by the
  second.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.pipelined_model import PipelinedModel
from dtlab.parallel.sharded import local_part
from dtlab.train.checkpoint_parts import bare
from dtlab.train.layout import RunLayout

__all__ = ["BestWeights", "ModelPart", "OptimizerPart"]

State = dict[str, Any]
_STAGE = ("dp_replicate", "dp_shard", "tp")
"""Axes of the mesh along which ranks hold the same stage."""


class ModelPart:
    """The weights of ``model`` in ``layout``, as a part for ``Checkpointer``.

    >>> part = ModelPart(nn.Linear(2, 1))
    >>> sorted(part.state_dict())
    ['bias', 'weight']
    """

    def __init__(self, model: nn.Module, layout: RunLayout | None = None) -> None:
        self.module = bare(model)
        cut_by_hand = any(hasattr(parameter, "shard_dim") for parameter in self.module.parameters())
        self.is_shared_out = isinstance(self.module, PipelinedModel) or cut_by_hand
        """Whether the state is that of all ranks together."""
        self._mesh = layout.mesh if layout is not None else None

    def state_dict(self) -> State:
        """Weights and buffers by name; they share their memory with the model."""
        if not self.is_shared_out:
            return self.module.state_dict()
        return {name: self.laid_out(tensor, tensor) for name, tensor in self._tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what this rank holds.

        Raises:
            KeyError: a weight is not in the state.
        """
        if not self.is_shared_out:
            self.module.load_state_dict(state)
            return
        with torch.no_grad():
            for name, tensor in self._tensors():
                local_part(tensor).copy_(local_part(state[name]))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank."""
        return self.module.parameters()

    def names(self) -> dict[int, list[str]]:
        """The names of each parameter, by its ``id``: two for a tied matrix."""
        found: dict[int, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(name)
        return found

    def laid_out(self, tensor: Any, like: Any) -> Any:
        """``tensor`` as a DTensor cut as the parameter ``like`` is, where the ranks share out the state."""
        if not self.is_shared_out or not isinstance(tensor, Tensor) or hasattr(tensor, "full_tensor"):
            return tensor.detach() if isinstance(tensor, Tensor) else tensor
        from torch.distributed.tensor import DTensor, Replicate, Shard

        assert self._mesh is not None, "a model in parts has a mesh"
        mesh: DeviceMesh = self._mesh[_STAGE]
        placements: list[Any] = [Replicate()] * len(_STAGE)
        if hasattr(like, "shard_dim") and tensor.shape == like.shape:
            whole = tensor.shape[like.shard_dim] * mesh["tp"].size()
            if getattr(like, "whole_size", whole) != whole:
                raise UserError("a matrix padded to be cut by hand cannot be saved: take engine 'dtensor'")
            placements[-1] = Shard(like.shard_dim)
        return DTensor.from_local(tensor.detach(), mesh, placements, run_check=False)

    def layouts(self) -> dict[str, Tensor]:
        """The DTensors of :meth:`state_dict`, by name: how what is loaded shall be laid out."""
        return {name: tensor for name, tensor in self.state_dict().items() if hasattr(tensor, "full_tensor")}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.state_dict(keep_vars=True).items()


class OptimizerPart:
    """The state of ``optimizer`` by the names of the parameters of ``weights``.

    >>> layer = nn.Linear(2, 1)
    >>> part = OptimizerPart(ModelPart(layer), torch.optim.SGD(layer.parameters(), lr=0.1))
    >>> part.state_dict()["param_groups"][0]["lr"]
    0.1
    """

    def __init__(self, weights: ModelPart, optimizer: Optimizer) -> None:
        self._weights, self._optimizer = weights, optimizer
        self.is_shared_out = weights.is_shared_out

    def state_dict(self) -> State:
        """``{"state": {name: moments}, "param_groups": options}`` (collective for ``ShardedOptimizer``)."""
        own = self._optimizer.state_dict()
        state: State = {}
        for number, (parameter, names) in enumerate(self._named()):
            moments = own["state"].get(number)
            if moments is not None:
                laid = {key: self._weights.laid_out(value, parameter) for key, value in moments.items()}
                state |= dict.fromkeys(names, laid)
        options = [{k: v for k, v in group.items() if k != "params"} for group in own["param_groups"]]
        return {"state": state, "param_groups": options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of this rank's parameters.

        Raises:
            ValueError: another number of parameter groups.
        """
        groups, number = [], 0
        for group, options in zip(self._optimizer.param_groups, state["param_groups"], strict=True):
            members = list(range(number, number + len(group["params"])))
            number += len(members)
            groups.append({**options, "params": members})
        moments = {}
        for place, (parameter, names) in enumerate(self._named()):
            found = next((state["state"][name] for name in names if name in state["state"]), None)
            if found is not None:
                is_dtensor = hasattr(parameter, "full_tensor")
                moments[place] = {k: v if is_dtensor else _plain(v) for k, v in found.items()}
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank."""
        return self._weights.parameters()

    def layouts(self) -> dict[str, Tensor]:
        """By the beginning of a path: moments are laid out as their parameter."""
        found: dict[str, Tensor] = {}
        for parameter, names in self._named():
            laid = self._weights.laid_out(parameter, parameter)
            if hasattr(laid, "full_tensor"):
                found |= {f"state/{name}/": laid for name in names}
        return found

    def _named(self) -> list[tuple[Tensor, list[str]]]:
        known = self._weights.names()
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return [(parameter, known[id(parameter)]) for parameter in parameters]


class BestWeights:
    """A copy of the weights of the best epoch so far, or nothing."""

    def __init__(self, weights: ModelPart) -> None:
        self._weights = weights
        self.is_shared_out = weights.is_shared_out
        self._kept: State = {}

    def keep(self) -> None:
        """Copy the weights as they are."""
        self._kept = copy.deepcopy(self._weights.state_dict())

    def put_back(self) -> None:
        """Load the copy into the model, if there is one."""
        if self._kept:
            self._weights.load_state_dict(self._kept)

    def state_dict(self) -> State:
        """The copy by name, {} without one."""
        return self._kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy back, of what this rank holds."""
        self._kept = {name: value for name, value in state.items() if value is not None}

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of the model."""
        return self._weights.parameters()

    def layouts(self) -> dict[str, Tensor]:
        """As the weights'."""
        return self._weights.layouts()


def _plain(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = local_part(value)
    return value if value.dim() else value.cpu()  # step counts live there
