"""A model that the ranks share out, and its optimizer, as one part of a checkpoint (lesson 16).

``Checkpointer`` refuses a model of which each rank holds a part that does not say so, such as a table of
``shard_embeddings``: one part would be kept under the name of the whole. ``WholeState`` puts it together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from dtlab.ranks import agreement
from dtlab.train.full_state import gather_state, scatter_state

if TYPE_CHECKING:
    from dtlab.parallel.pipeline import Pipeline

__all__ = ["WholeState"]


class WholeState:
    """What one process would have saved of ``model`` and, if given, of its ``optimizer``.

    - ``model``: in any layout, wrapped or not, or this rank's ``Pipeline``.
    - For tables and layouts that :func:`dtlab.train.full_state.gather_state` knows. The whole state is in the
      memory of every rank while it is saved or loaded.
    - A run goes on from it on any number of ranks, and in another layout.

    >>> layer, twin = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> WholeState(twin).load_state_dict(WholeState(layer).state_dict())
    >>> bool((layer.weight == twin.weight).all())
    True
    """

    def __init__(self, model: nn.Module | Pipeline, optimizer: Optimizer | None = None) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """``{"model": ..., "optimizer": ...}`` with whole tensors, the same on every rank (collective)."""
        return agreement.broadcast(gather_state(self._model, self._optimizer))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back, each rank its part (collective).

        Raises:
            UserError: on every rank: names or shapes of another model.
        """
        scatter_state(state, self._model, self._optimizer)
