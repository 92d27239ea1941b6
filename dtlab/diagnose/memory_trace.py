"""Bytes of the tensors that are alive, operation by operation: what a step really holds (lesson 06).

``with trace_memory(budget) as trace`` counts every tensor that an operation of torch makes inside the block,
from its birth to its death, on any device. So it sees activations, gradients, an optimizer's state and the
buckets that DDP makes in C++, and it gives the same integers on every machine with one version of torch.

- A storage counts once, however many views it has, and with the bytes that were asked for: no allocator's
  rounding, no cache, no CUDA context. Of a DTensor the part of this rank counts. FSDP gives a block's memory
  back by setting a storage's size to 0: that is seen at its next message, and before a peak is noted.
- Tensors from before the block are not seen until an operation returns them or :meth:`MemoryTrace.label`
  names them.
- With a ``budget`` the operation that exceeds it raises :class:`OverBudget`: a card's out-of-memory error, on
  a machine without a card.
- It sees the thread that entered it and the autograd threads of its backward. Every operation makes a detour
  through Python: count here, measure time elsewhere.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dtlab.errors import UserError
from dtlab.parallel.sharded import local_part

__all__ = ["MemoryTrace", "OverBudget", "trace_memory"]

REST = "activations"
Tensors = Iterable[Tensor] | Callable[[], Iterable[Tensor]]


class OverBudget(MemoryError):
    """More bytes are alive than the budget allows; the message lists them by item."""


class _Storage(NamedTuple):
    number: int  # never used twice, unlike an address
    size: int
    reference: Any


class _Ledger:
    """Births and deaths of storages, and a copy of what was alive at the peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.item_of: dict[int, str] = {}
        self.item: str | None = None
        self.labels: list[tuple[str, Tensors]] = []
        self._alive: dict[int, _Storage] = {}
        self._at_peak: dict[int, int] = {}
        self._is_at_peak = False
        self._births = 0

    def see(self, value: Any) -> None:
        """Add the storages of a tensor, or of all tensors in a list, that are not known yet."""
        if isinstance(value, list | tuple):
            for entry in value:
                self.see(entry)
        elif isinstance(value, Tensor):
            for storage in _storages(value):
                if storage._cdata not in self._alive and storage.nbytes():
                    self._born(storage)

    def _born(self, storage: torch.UntypedStorage) -> None:
        # An address may be used again, but only after the death of its storage has been told.
        key, size = storage._cdata, storage.nbytes()
        if self.now + size > self.peak and "torch.distributed.fsdp" in sys.modules:
            self.resize()
        reference = weakref.ref(storage, lambda _: self._died(key))
        self._alive[key] = _Storage(self._births, size, reference)
        if self.item is not None:
            self.item_of[self._births] = self.item
        self._births += 1
        self.now += size
        if self.now > self.peak:
            self.peak, self._is_at_peak = self.now, True

    def _died(self, key: int) -> None:
        self._keep_peak()
        self.now -= self._alive.pop(key).size

    def resize(self) -> None:
        """Take over the sizes of storages that were made smaller or larger since; no operation tells."""
        changed = []
        for key, stored in list(self._alive.items()):
            storage = stored.reference()
            if storage is not None and storage.nbytes() != stored.size:
                changed.append((key, storage.nbytes() - stored.size))
        for key, more in sorted(changed, key=lambda change: change[1]):  # what shrank, first
            if key in self._alive:
                self._keep_peak()
                self._alive[key] = self._alive[key]._replace(size=self._alive[key].size + more)
                self.now += more
        if self.now > self.peak:
            self.peak, self._is_at_peak = self.now, True

    def _keep_peak(self) -> None:
        # Up to the peak there are only births, so a copy at the first death after it is enough.
        if self._is_at_peak:
            self._at_peak = {storage.number: storage.size for storage in list(self._alive.values())}
            self._is_at_peak = False

    def close(self) -> None:
        """Follow nothing any more; the numbers stay as they are."""
        self._alive.clear()
        self.labels.clear()

    def bill(self) -> dict[str, int]:
        """The bytes of the peak by item, the labelled items first."""
        self._keep_peak()
        item_of = dict(self.item_of)
        for item, tensors in self.labels:
            for tensor in tensors() if callable(tensors) else tensors:
                for storage in _storages(tensor):
                    known = self._alive.get(storage._cdata)
                    if known is not None:
                        item_of[known.number] = item
        found = dict.fromkeys([item for item, _ in self.labels], 0)
        for number, size in self._at_peak.items():
            item = item_of.get(number, REST)
            found[item] = found.get(item, 0) + size
        return {item: size for item, size in found.items() if size}


@dataclass
class MemoryTrace:
    """What was alive in a block. Can be sent between processes."""

    peak: int = 0
    """Most bytes that were alive at once."""
    items: dict[str, int] = field(default_factory=dict)
    """The bytes of the peak by item, known when the block is over. What nobody labelled is "activations":
    those, and what an operation needed meanwhile."""
    timeline: list[int] = field(default_factory=list)
    """Bytes alive after each operation, in order."""
    marks: list[tuple[str, int]] = field(default_factory=list)
    """What was given to :meth:`mark`, each with its place in ``timeline``."""
    _ledger: _Ledger = field(default_factory=_Ledger, repr=False, compare=False)

    @property
    def now(self) -> int:
        """Bytes alive now, or at the end of the block."""
        return self._ledger.now

    def mark(self, name: str) -> None:
        """Note that ``name`` begins here."""
        self.marks.append((name, len(self.timeline)))

    def label(self, item: str, tensors: Tensors) -> None:
        """Count ``tensors`` under ``item``; those from before the block are alive from here on.

        Give a function for tensors that come later, such as gradients: it is asked when the bill is made.
        """
        if not callable(tensors):
            tensors = list(tensors)
            self._ledger.see(tensors)
        self._ledger.labels.append((item, tensors))

    @contextmanager
    def allocating(self, item: str) -> Iterator[None]:
        """Count under ``item`` what is made in here and is still alive at the peak; a label comes first."""
        ledger = self._ledger
        before, ledger.item = ledger.item, item
        try:
            yield
        finally:
            ledger.item = before

    def __getstate__(self) -> dict[str, Any]:
        # What is alive stays in its process; the numbers travel.
        numbers = _Ledger()
        numbers.now, numbers.peak = self._ledger.now, self._ledger.peak
        return {**vars(self), "_ledger": numbers}


@contextmanager
def trace_memory(budget: int | None = None) -> Iterator[MemoryTrace]:
    """Trace what is alive in the ``with`` block, and stop at ``budget`` bytes if one is given.

    Raises:
        UserError: a budget that is not positive.
        OverBudget: from the operation after which more than ``budget`` bytes are alive.

    >>> with trace_memory() as trace:
    ...     kept = torch.ones(100) * 2.0  # two tensors of 400 bytes, and one of them dies
    >>> trace.peak, trace.now, trace.timeline[-1]
    (800, 400, 800)
    """
    if budget is not None and not budget > 0:
        raise UserError(f"budget = {budget!r}: give a number of bytes above 0, or None for no limit")
    trace = MemoryTrace()
    try:
        with _Tracing(trace, budget):
            yield trace
    finally:
        trace.peak, trace.items = trace._ledger.peak, trace._ledger.bill()
        trace._ledger.close()


class _Dispatch:
    # Beside the mode and not in it: torch wraps a mode's own __torch_dispatch__ so that its first call
    # imports torch._dynamo, which takes seconds in every rank.
    trace: MemoryTrace
    budget: int | None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        ledger = self.trace._ledger
        if func.namespace != "aten":
            ledger.resize()
        ledger.see(result)
        self.trace.timeline.append(ledger.now)
        if self.budget is not None and ledger.now > self.budget:
            budget, self.budget = self.budget, None  # once: what follows cleans up
            raise OverBudget(_over(ledger, budget, func))
        return result


class _Tracing(_Dispatch, TorchDispatchMode):
    def __init__(self, trace: MemoryTrace, budget: int | None) -> None:
        super().__init__()
        self.trace, self.budget = trace, budget


def _over(ledger: _Ledger, budget: int, func: Any) -> str:
    listed = ", ".join(f"{item} {size / 1e6:.2f}" for item, size in ledger.bill().items())
    operation = str(func).removeprefix("aten.").split(".")[0]
    return (
        f"{ledger.now / 1e6:.2f} MB alive after {operation}, the budget is {budget / 1e6:.2f} MB "
        f"(in MB: {listed})"
    )


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages behind a tensor: one, those of a sparse tensor's parts, or none where there is no data."""
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            tensor = local_part(tensor)
    if tensor.layout == torch.sparse_coo:
        return [*_storages(tensor._indices()), *_storages(tensor._values())]
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return []
    return [tensor.untyped_storage()]
