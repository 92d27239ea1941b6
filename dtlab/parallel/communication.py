"""How long gradients travel: a clock on the all-reduces of a data-parallel model (lessons 03 and 10).

The time runs from the moment a bucket is full on this rank until its mean is there, so it holds the wait for
the slower rank. With one bucket, which is what dtlab uses on a CPU, nothing of it hides behind backward.
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
        self._by_hand = model if isinstance(model, HandDDP) else None
        if isinstance(model, DistributedDataParallel):
            group = model.process_group
            model.register_comm_hook((self, group, dist.get_world_size(group)), _timed_mean)

    @property
    def seconds(self) -> float:
        return self._by_hand.communication_seconds if self._by_hand is not None else self._seconds


def _timed_mean(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook (divide, then sum), with the clock running."""
    clock, group, size = state
    started = time.perf_counter()
    work = dist.all_reduce(bucket.buffer().div_(size), group=group, async_op=True)

    def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        clock._seconds += time.perf_counter() - started
        return future.value()[0]

    return work.get_future().then(arrived)
