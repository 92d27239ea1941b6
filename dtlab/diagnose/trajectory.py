"""What a training function leaves for a comparison of one rank with many: losses, a gradient, weights.

Make a :class:`TrajectoryRecorder` before the first step, call ``add`` once a step, return ``result()``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.replicas import parameter_hash
from dtlab.ranks import agreement

__all__ = ["Trajectory", "TrajectoryRecorder"]


@dataclass
class Trajectory:
    """One rank's run. The tensors are rank 0's; the other ranks send a hash of theirs."""

    rank: int
    world_size: int
    loss_sums: list[float] = field(default_factory=list)
    """Of each step: the sum of this rank's rows' losses, before the update."""
    rows: list[float] = field(default_factory=list)
    """Of each step: this rank's rows (or tokens)."""
    gradient: dict[str, Tensor] = field(default_factory=dict)
    """Of the first step, by parameter; what the optimizer saw, or left."""
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """After the last step."""
    hash: str = ""
    """Of parameters and buffers after the last step."""


class TrajectoryRecorder:
    """Notes the steps of ``model`` on this rank.

    >>> model = nn.Linear(2, 1)
    >>> recorder = TrajectoryRecorder(model)
    >>> loss = model(torch.ones(3, 2)).sum()
    >>> loss.backward()
    >>> recorder.add(loss, 3)
    >>> recorder.result().rows, sorted(recorder.result().gradient)
    ([3.0], ['bias', 'weight'])
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = unwrap(model)
        self._own = Trajectory(agreement.rank(), agreement.world_size())

    def add(self, loss_sum: Tensor | float, rows: float) -> None:
        """Note one step: the SUM of this rank's losses and its number of rows (or tokens).

        Call it after the backward and before the gradients are cleared. After the optimizer's step is fine.

        Raises:
            UserError: at the first step, when no parameter holds a gradient.
        """
        own = self._own
        if not own.rows and own.rank == 0:
            own.gradient = {
                name: _plain(parameter.grad)
                for name, parameter in self._model.named_parameters()
                if parameter.grad is not None
            }
            if not own.gradient:
                raise UserError(
                    "recorder.add: no parameter holds a gradient; call it after backward and before zero_grad"
                )
        own.loss_sums.append(float(loss_sum.detach() if isinstance(loss_sum, Tensor) else loss_sum))
        own.rows.append(float(rows))

    def result(self) -> Trajectory:
        """What this rank's training function returns to :func:`dtlab.diagnose.parity.loss_parity`."""
        own = self._own
        own.hash = parameter_hash(self._model, 16)
        if own.rank == 0:
            own.parameters = {name: _plain(p) for name, p in self._model.named_parameters()}
        return own


def _plain(tensor: Tensor) -> Tensor:
    found = tensor.detach()
    if found.is_sparse:
        found = found.to_dense()
    return found.to("cpu", torch.float64, copy=True)
