"""Bytes that autograd keeps between forward and backward: the activations, counted by themselves (lesson 09).

Process memory holds parameters, gradients and the allocator's reserve too. Here each saved tensor is counted
when the graph takes it and discounted when it lets go, so that ``peak`` is what a closed form predicts.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dtlab.parallel.sharded import local_part

__all__ = ["SavedBytes"]


class SavedBytes:
    """Counts the tensors saved for backward inside the block; views of one tensor count once.

    ``modules``: their parameters are not counted, also when FSDP has gathered them.

    >>> layer = nn.Linear(3, 2)
    >>> with SavedBytes([layer]) as saved:
    ...     loss = layer(torch.ones(5, 3)).square().sum()
    >>> saved.now, saved.peak  # the input, 15 numbers of 4 bytes, and the output, 10
    (100, 100)
    >>> loss.backward()
    >>> saved.now
    0
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._held: dict[int, int] = {}  # address -> how many saved tensors begin there
        self.now = self.peak = 0

    def __enter__(self) -> "SavedBytes":
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: Tensor) -> "_Saved":
        part = local_part(tensor.detach())
        address, size = part.data_ptr(), min(part.nbytes, part.untyped_storage().nbytes())
        own = {
            local_part(parameter.detach()).data_ptr()
            for module in self._modules
            for parameter in module.parameters()
        }
        if address in own or not size:
            return _Saved(tensor)
        number = self._held.get(address, 0)
        self._held[address] = number + 1
        if number == 0:
            self.now += size
            self.peak = max(self.peak, self.now)
        return _Saved(tensor, self, address, size)

    def _let_go(self, address: int, size: int) -> None:
        self._held[address] -= 1
        if self._held[address] == 0:
            del self._held[address]
            self.now -= size


class _Saved:
    """One saved tensor; says so when the graph lets it go."""

    def __init__(
        self, tensor: Tensor, counter: SavedBytes | None = None, address: int = 0, size: int = 0
    ) -> None:
        self.tensor, self._counter, self._address, self._size = tensor, counter, address, size

    def __del__(self) -> None:
        if self._counter is not None:
            self._counter._let_go(self._address, self._size)


def _unpack(saved: _Saved) -> Tensor:
    return saved.tensor
