"""Activation checkpointing: keep a block's input, compute the rest again in backward (lesson 06).

It trades about a third more computing (a second forward) for the memory of everything inside the blocks but
their inputs. Values and gradients stay the same, dropout included: the generator's state is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtlab.errors import UserError

__all__ = ["recompute_blocks"]


def recompute_blocks(model: nn.Module, blocks: bool | Sequence[str] = True) -> list[str]:
    """Let the named blocks of ``model`` forget their activations; returns their names.

    Args:
        model: changed in place; its parameters and their names stay.
        blocks: names of submodules, or True for the members of ``model.blocks``.

    Raises:
        UserError: the model has no ``blocks``, or no submodule of a name.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> recompute_blocks(model, ["0"])
    ['0']
    """
    if blocks is True:
        found = getattr(model, "blocks", None)
        if not isinstance(found, nn.ModuleList) or not len(found):
            raise UserError(
                f"checkpoint_activations = True: {type(model).__name__} has no list of blocks called "
                "'blocks'; name the submodules instead, or leave it off"
            )
        names = [f"blocks.{number}" for number in range(len(found))]
    else:
        names = list(blocks) if blocks else []
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            raise UserError(f"checkpoint_activations: {type(model).__name__} has no submodule {name!r}")
        block = known[name]
        block.forward = _recomputing(block.forward)  # type: ignore[method-assign]
    return names


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return wrapped
