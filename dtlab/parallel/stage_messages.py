"""Messages between pipeline stages that cannot deadlock (lesson 08).

- A send never waits (``isend``), so two ranks that send to each other at once both go on. A receive waits; in
  a legal schedule what it waits for comes.
- Every message has a tag of its own (stage, micro-batch, direction): the order of arrival does not matter.
- Between two stages of one rank nothing travels: the tensor itself is handed over.
- In the first step with micro-batches of a new shape, a header with the shape goes ahead of each activation.
  So micro-batches may be of unequal size.

Gloo only: NCCL has no tags and runs the messages of two ranks in one order.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.parallel.actions import Schedule

__all__ = ["StageMessages"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MOST_DIMENSIONS = 6
_SHAPE, _ACTIVATION, _GRADIENT = range(3)


class StageMessages:
    """What one rank sends to and receives from the stages before and after its own.

    Args:
        schedule: says which stage is on which rank.
        rank: this rank in ``group``.
        group: the ranks of the pipeline; None for all.
    """

    def __init__(self, schedule: Schedule, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._schedule, self._rank, self._group = schedule, rank, group
        self._sent: dict[int, tuple[dist.Work, Tensor]] = {}
        self._handed_over: dict[int, Tensor] = {}
        self._shapes: dict[tuple[int, torch.Size], tuple[torch.Size, torch.dtype]] = {}
        self._told: set[tuple[int, torch.Size]] = set()

    def send_activation(self, to_stage: int, micro_batch: int, tensor: Tensor, shape: torch.Size) -> None:
        """Hand ``tensor`` to ``to_stage``; ``shape`` is that of the micro-batch on the first stage."""
        if tensor.dtype not in _DTYPES or tensor.dim() > _MOST_DIMENSIONS:
            raise UserError(
                f"stage {to_stage - 1} gave a tensor of {tensor.dtype} with {tensor.dim()} dimensions: a "
                f"stage hands on floating point numbers with at most {_MOST_DIMENSIONS}"
            )
        if (to_stage, shape) not in self._told:
            sizes = [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
            header = torch.tensor(sizes + [0] * (_MOST_DIMENSIONS + 2 - len(sizes)))
            self._send(to_stage, to_stage, micro_batch, _SHAPE, header)
        self._send(to_stage, to_stage, micro_batch, _ACTIVATION, tensor)

    def receive_activation(self, stage: int, micro_batch: int, shape: torch.Size) -> Tensor:
        """The input of ``stage``; waits for it."""
        key = (stage, shape)
        if key not in self._told:
            header = torch.zeros(_MOST_DIMENSIONS + 2, dtype=torch.int64)
            code, dims, *sizes = self._receive(stage - 1, stage, micro_batch, _SHAPE, header).tolist()
            self._shapes[key] = (torch.Size(sizes[:dims]), _DTYPES[code])
        size, dtype = self._shapes[key]
        return self._receive(stage - 1, stage, micro_batch, _ACTIVATION, torch.empty(size, dtype=dtype))

    def send_gradient(self, from_stage: int, micro_batch: int, tensor: Tensor) -> None:
        """Hand the gradient of ``from_stage``'s input to the stage before."""
        self._send(from_stage - 1, from_stage, micro_batch, _GRADIENT, tensor)

    def receive_gradient(self, stage: int, micro_batch: int, output: Tensor) -> Tensor:
        """The gradient of ``output``, which ``stage`` had sent on; waits for it."""
        gradient = self._receive(stage + 1, stage + 1, micro_batch, _GRADIENT, torch.empty_like(output))
        # The next stage has answered, so the activation has arrived and need not be kept for sending.
        sent = self._sent.pop(self._tag(stage + 1, micro_batch, _ACTIVATION), None)
        if sent is not None:
            sent[0].wait()
        return gradient

    def finish(self, shapes: set[torch.Size]) -> None:
        """End of a step with micro-batches of these shapes: wait until all that was sent has gone."""
        for work, _ in self._sent.values():
            work.wait()
        self._sent.clear()
        self._told |= {(stage, shape) for stage in range(self._schedule.num_stages) for shape in shapes}

    def _tag(self, stage: int, micro_batch: int, what: int) -> int:
        return (stage * self._schedule.num_micro_batches + micro_batch) * 3 + what

    def _send(self, to_stage: int, stage: int, micro_batch: int, what: int, tensor: Tensor) -> None:
        tag, peer = self._tag(stage, micro_batch, what), self._schedule.rank_of(to_stage)
        if peer == self._rank:
            self._handed_over[tag] = tensor
            return
        tensor = tensor.contiguous()
        work = dist.isend(tensor, group=self._group, group_dst=peer, tag=tag)
        assert work is not None, "this rank is in the group"
        self._sent[tag] = (work, tensor)

    def _receive(self, from_stage: int, stage: int, micro_batch: int, what: int, buffer: Tensor) -> Tensor:
        tag, peer = self._tag(stage, micro_batch, what), self._schedule.rank_of(from_stage)
        if peer == self._rank:
            return self._handed_over.pop(tag)
        dist.recv(buffer, group=self._group, group_src=peer, tag=tag)
        return buffer
