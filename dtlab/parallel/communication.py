"""How long gradients travel: a clock on the all-reduces of a data-parallel model (lessons 03 and 10).

The time runs from the moment a bucket is full on this rank until its mean is there, so it holds the wait for
the slower rank. With one bucket, which is what dtlab uses on a CPU, nothing of it hides behind backward.
On a card part of it does (``dtlab.diagnose.profiler`` tells how much), and it is timed on the card's streams:
NCCL's all-reduce returns to the host as soon as it is queued.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtlab.parallel.by_hand_ddp import HandDDP


class AllReduceClock:
    """Adds up the seconds that this rank's gradients spent in all-reduces; 0 for a model of a world of one.

    A clock takes the one place that DDP has for a communication hook, so give a model one clock at most.

    >>> AllReduceClock(nn.Linear(2, 1)).seconds
    0.0
    """

    def __init__(self, model: nn.Module) -> None:
        self._seconds = 0.0
        self._on_card: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # begun and ended, not read yet
        self._by_hand = model if isinstance(model, HandDDP) else None
        if isinstance(model, DistributedDataParallel):
            group = model.process_group
            model.register_comm_hook((self, group, dist.get_world_size(group)), _timed_mean)

    @property
    def seconds(self) -> float:
        """Until now; on a card, those of the all-reduces that it has finished. Nothing waits for the card."""
        self._read_finished()
        return self._by_hand.communication_seconds if self._by_hand is not None else self._seconds

    def mark(self) -> float:
        """This moment, for ``since``."""
        return self.seconds

    def since(self, mark: float) -> float:
        """Seconds from ``mark`` on."""
        return self.seconds - mark

    def _read_finished(self) -> None:
        while self._on_card and self._on_card[0][1].query():
            started, ended = self._on_card.pop(0)
            self._seconds += started.elapsed_time(ended) / 1e3


def _timed_mean(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook (divide, then sum), with the clock running."""
    clock, group, size = state
    buffer = bucket.buffer()
    event = _event() if buffer.is_cuda else None
    started = time.perf_counter()
    work = dist.all_reduce(buffer.div_(size), group=group, async_op=True)

    def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if event is not None:
            # The current stream is one that waits for the all-reduce.
            clock._on_card.append((event, _event()))
            if len(clock._on_card) > 64:
                clock._read_finished()
        else:
            clock._seconds += time.perf_counter() - started
        return future.value()[0]

    return work.get_future().then(arrived)


def _event() -> torch.cuda.Event:
    """This moment on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
