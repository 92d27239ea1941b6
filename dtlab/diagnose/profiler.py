"""Measure the parts of each step, in a loop of your own or in the Trainer (lesson 10).

``with step_profile(model) as profiler:`` and ``for batch in profiler.steps(loader):``; the body stays as it
is. What leads to a backward is forward, what leads to an optimizer's step belongs to the optimizer, and the
rest of the body is other.

- While the block runs, ``torch.autograd.backward`` is wrapped, since ``loss.backward()`` calls it and torch
  has no hook for its begin and end. The optimizer is seen through torch's own step hooks.
- On a CPU the times are those of ``perf_counter``. On CUDA they are events on the compute stream, read later:
  nothing waits for the card. Data is then the time that the card stood idle for it, and communication the
  time for which NCCL held up the compute stream.
- Seen are the gradients of ``data_parallel`` (torch's DDP, HandDDP). Communication inside forward or backward
  (FSDP, tensor and pipeline parallelism) counts there. For an all-reduce of your own, put it into
  ``with profiler.part("communication"):``.
- Cost: some ten microseconds a step, one call of a hook for each parameter with several ranks, no message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dtlab.diagnose.step_profile import PARTS, StepProfile
from dtlab.errors import UserError, require_whole
from dtlab.parallel.by_hand_ddp import HandDDP
from dtlab.ranks import agreement

__all__ = ["StepProfiler", "step_profile"]

Lap = tuple[str, Any]


class StepProfiler:
    """Made by :func:`step_profile`; the block says for how long it watches."""

    def __init__(self, model: nn.Module, skip: int) -> None:
        self._model, self._skip = model, skip
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._clock = _CudaClock(device) if device.type == "cuda" else _CpuClock()
        self._device = device.type
        is_wrapped = isinstance(model, DistributedDataParallel | HandDDP)
        group = getattr(model, "process_group", getattr(model, "group", None)) if is_wrapped else None
        self._synchronises = is_wrapped and dist.get_world_size(group) > 1
        self._thread = threading.get_ident()
        self._laps: list[Lap] | None = None  # of the step that runs; the first one is its begin
        self._ended: list[list[Lap]] = []
        self._rows: list[list[float]] = []
        self._depth = 0  # backwards inside a backward: activation checkpointing makes them
        self._last_gradient: Any = None
        self._undo: list[Any] = []

    def __enter__(self) -> StepProfiler:
        original = torch.autograd.backward

        def backward(*arguments: Any, **named: Any) -> None:
            with self._backward():
                original(*arguments, **named)

        torch.autograd.backward = backward
        self._undo.append(lambda: setattr(torch.autograd, "backward", original))
        self._undo.append(register_optimizer_step_pre_hook(self._optimizer_event).remove)
        self._undo.append(register_optimizer_step_post_hook(self._optimizer_event).remove)
        if self._synchronises:
            for parameter in self._model.parameters():
                if parameter.requires_grad:  # before accumulation, which fills the bucket and sends it
                    self._undo.append(parameter.register_hook(self._gradient).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._close()
        while self._undo:
            self._undo.pop()()

    def steps(self, loader: Any) -> Any:
        """``loader`` with its steps watched: iterate over it, or hand it to ``Trainer.train_epoch``.

        A step lasts from asking for its batch to asking for the next; the last one, to its last part.
        """
        return _Watched(loader, self)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count a block of the body as the part ``name``, such as an all-reduce of your own."""
        if name not in PARTS:
            raise UserError(f"{name!r} is no part of a step: there are {', '.join(PARTS)}")
        had_backward = any(part == "backward" for part, _ in self._laps or ())
        self._lap("other" if had_backward else "forward")
        try:
            yield
        finally:
            self._lap(name)

    def profile(self) -> StepProfile:
        """What was measured so far, without the first ``skip`` steps.

        Raises:
            UserError: no step was complete.
        """
        self._read(wait=True)
        if not self._rows:
            raise UserError(
                "no step was profiled: iterate over profiler.steps(loader) inside the with block, with a "
                "backward or an optimizer step in its body"
            )
        seconds = np.asarray(self._rows, dtype=np.float64)
        found = StepProfile(seconds, agreement.rank(), agreement.world_size(), self._device)
        return found.without_first(self._skip)

    # -- what happens in a step ----------------------------------------------------------------------------

    def _ask(self) -> None:
        """The loop asks for a batch: the step before is over."""
        self._lap("other")
        self._end()
        self._laps = [("begin", self._clock.now())]

    def _lap(self, part: str, now: Any = None) -> None:
        if self._laps is not None:
            self._laps.append((part, self._clock.now() if now is None else now))

    def _close(self) -> None:
        """No batch is asked for any more: what runs is a step if its model was trained."""
        if any(part in ("backward", "optimizer") for part, _ in self._laps or ()):
            self._end()
        self._laps = None

    def _end(self) -> None:
        if self._laps is not None:
            self._ended.append(self._laps)
            self._read(wait=False)

    @contextmanager
    def _backward(self) -> Iterator[None]:
        is_outermost = self._depth == 0 and threading.get_ident() == self._thread
        if is_outermost:
            self._lap("forward")
            self._last_gradient = None
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if is_outermost:
                if self._last_gradient is not None:
                    self._lap("backward", self._last_gradient)
                self._lap("communication" if self._last_gradient is not None else "backward")

    def _gradient(self, _gradient: torch.Tensor) -> None:
        """A gradient was computed; called in autograd's thread, on the stream of the computation."""
        is_due = self._model._is_due if isinstance(self._model, HandDDP) else self._is_due_in_ddp()
        if is_due and self._laps is not None:
            self._last_gradient = self._clock.again(self._last_gradient)

    def _is_due_in_ddp(self) -> bool:
        return bool(getattr(self._model, "require_backward_grad_sync", True))  # False inside no_sync()

    def _optimizer_event(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._lap("optimizer")

    def _read(self, *, wait: bool) -> None:
        while self._ended and (wait or self._clock.is_past(self._ended[0][-1][1])):
            laps = self._ended.pop(0)
            row = dict.fromkeys(PARTS, 0.0)
            for (_, start), (part, stop) in pairwise(laps):
                row[part] += max(0.0, self._clock.seconds(start, stop))
            self._rows.append(list(row.values()))


class _Watched:
    """A loader, step by step; everything but iterating is the loader's own."""

    def __init__(self, loader: Iterable[Any], profiler: StepProfiler) -> None:
        self._loader, self._profiler = loader, profiler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        profiler, end = self._profiler, object()
        profiler._ask()
        batches = iter(self._loader)
        try:
            while (batch := next(batches, end)) is not end:
                profiler._lap("data")
                yield batch
                profiler._ask()
        finally:
            profiler._close()


class _CpuClock:
    """Seconds of ``perf_counter``."""

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    @staticmethod
    def again(_mark: float | None) -> float:
        return time.perf_counter()

    @staticmethod
    def is_past(_mark: float) -> bool:
        return True

    @staticmethod
    def seconds(start: float, stop: float) -> float:
        return stop - start


class _CudaClock:
    """Events on the stream that is current where they are recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        return self.again(None)

    def again(self, mark: torch.cuda.Event | None) -> torch.cuda.Event:
        """Move a mark to this moment, or make one."""
        mark = torch.cuda.Event(enable_timing=True) if mark is None else mark
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    @staticmethod
    def is_past(mark: torch.cuda.Event) -> bool:
        return mark.query()

    @staticmethod
    def seconds(start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3


def step_profile(model: nn.Module, *, skip: int = 1) -> StepProfiler:
    """Watch the steps of ``model`` while a ``with`` block runs; enter it in the thread that trains.

    ``model``: what ``data_parallel`` returned, or a plain module. ``skip``: first steps that the profile
    leaves out, because they allocate and warm up; one step is always kept. ``UserError`` when it is none of
    0, 1, 2 ...

    >>> model = nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with step_profile(model) as profiler:
    ...     for batch in profiler.steps(torch.randn(5, 8, 4)):
    ...         optimizer.zero_grad()
    ...         model(batch).square().mean().backward()
    ...         optimizer.step()
    >>> len(profiler.profile()), profiler.profile().share("communication")
    (4, 0.0)

    In the Trainer::

        with step_profile(trainer.model) as profiler:
            trainer.train_epoch(profiler.steps(loader))
    """
    require_whole("skip", skip, 0, "steps to leave out")
    return StepProfiler(model, skip)
