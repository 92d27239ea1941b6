"""A copy of the state in host memory, so that training goes on while the copy is written (lesson 13).

The buffers are kept between saves: filling fresh memory costs two to three times as much as filling memory
that the process already has. The price is one copy of the state in the memory of the rank that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Stage", "as_written"]


class Stage:
    """Buffers by name; :meth:`copy` fills them. What it returned is overwritten by the next copy.

    >>> stage = Stage()
    >>> weight = torch.ones(2)
    >>> kept = stage.copy({"weight": weight})
    >>> _ = weight.zero_()
    >>> kept["weight"]
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of all tensors on the CPU, contiguous; returns when they are complete."""
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        cards = set()
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=True)
            if tensor.device.type == "cuda":
                cards.add(tensor.device)
        for card in cards:
            torch.cuda.synchronize(card)
        return dict(self._buffers)

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        old = self._buffers.get(name)
        if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
            return old
        # From pinned memory a card copies at full speed and all tensors at once.
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def as_written(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors themselves where a file can be written from them, else copies.

    The format wants contiguous tensors on the CPU, each with memory of its own (tied weights share theirs).
    """
    seen: set[int] = set()
    ready = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        if address in seen:
            plain = plain.clone()
        seen.add(address)
        ready[name] = plain
    return ready
