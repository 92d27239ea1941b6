"""Data parallelism by hand: what ``DistributedDataParallel`` does, in one readable class (lesson 03).

1. **Broadcast**: at the start every rank takes rank 0's parameters and buffers.
2. **Buckets**: parameters are put together, last layer first, because backward meets them in that order.
3. **Hooks**: when the last gradient of a bucket has arrived, its all-reduce starts and runs while backward
   computes the layers below. Buckets start in the same order on every rank, whatever order gradients
   come in.
4. **Mean**: each rank divides by the number of ranks, then the sum is taken.
5. **Only when due**: inside ``no_sync()`` gradients stay and accumulate on their rank.

Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.checks import mutable_buffers, sparse_parameters, unused_message
from dtlab.parallel.same_model import check_same_model
from dtlab.parallel.sharded import is_sharded, local_part

__all__ = ["HandDDP", "broadcast_state"]


class HandDDP(nn.Module):
    """``module`` with gradients that are the mean over the ranks of ``group`` after each backward.

    ``bucket_mb``: most MB (1e6 bytes) in one all-reduce, None for all in one. ``find_unused``: parameters
    that this backward did not reach count as zero; one that no rank used, in this or an accumulating
    micro-batch, keeps its gradient as it was.

    ``UserError`` when the ranks hold different models; and, at the end of the backward, naming parameters
    without a gradient when ``find_unused`` is off. As with torch's DDP, run the forward of an accumulating
    micro-batch inside ``no_sync()`` too.

    >>> model = HandDDP(nn.Linear(2, 1))  # doctest: +SKIP
    >>> with model.no_sync():  # doctest: +SKIP
    ...     model(torch.ones(1, 2)).sum().backward()  # stays on this rank
    >>> model(torch.ones(1, 2)).sum().backward()  # both micro-batches, averaged  # doctest: +SKIP
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_mb: float | None = None,
        find_unused: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self.size = dist.get_world_size(group)
        self.find_unused = find_unused
        self.all_reduces = 0
        """Gradient all-reduces started so far: one for each bucket and due backward."""
        self.communication_seconds = 0.0
        """Seconds spent waiting for all-reduces at the end of backwards: what computing did not hide."""
        check_same_model(module, group)
        broadcast_state(module, group)
        self._changing = mutable_buffers(module)
        self._buckets = _fill_buckets(module, bucket_mb, group)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._is_accumulating = False  # inside no_sync()
        self._is_due = False  # whether the backward of the last forward synchronises
        self._is_running = False  # whether that backward has begun
        self._accumulated: set[nn.Parameter] = set()  # reached by backwards that did not synchronise
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        self._is_due = not self._is_accumulating and torch.is_grad_enabled()
        if self._is_due:
            self._prepare()
            if self.training:
                # BatchNorm's running statistics are of this rank's samples: rank 0's are everybody's.
                # `data`, because autograd would take a second forward's broadcast for a change of what the
                # first one saved.
                for name in self._changing:
                    dist.broadcast(self.module.get_buffer(name).data, group=self.group, group_src=0)
        return self.module(*inputs, **named_inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward leaves gradients on their rank; the first backward after it shares them all."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    def _prepare(self) -> None:
        self._is_running = False
        self._next = 0  # the bucket whose turn it is
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)

    def _arrived(self, parameter: nn.Parameter) -> None:
        """Called by autograd when ``parameter.grad`` is complete for this backward."""
        if not self._is_due:
            self._accumulated.add(parameter)
            return
        if not self._is_running:
            self._is_running = True
            # Not a documented name of torch, but what its own FSDP uses to act at the end of a backward.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._bucket_of[parameter].missing.discard(parameter)
        self._start_complete_buckets()

    def _start_complete_buckets(self) -> None:
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._buckets[self._next].start(self.size, self.group)
            self.all_reduces += 1
            self._next += 1

    def _finish(self) -> None:
        """Called by autograd at the end of the backward: wait, and put the means into ``grad``."""
        missing = [parameter for bucket in self._buckets for parameter in bucket.missing]
        if missing and not self.find_unused:
            self._prepare()
            order = {name: place for place, name in enumerate(self._names.values())}
            raise UserError(unused_message(sorted((self._names[p] for p in missing), key=order.__getitem__)))
        unused_everywhere: set[nn.Parameter] = set()
        if self.find_unused:
            for bucket in self._buckets:
                bucket.missing = set()
            self._start_complete_buckets()
            unused_everywhere = self._nobody_used(set(missing) - self._accumulated)
        started = time.perf_counter()
        for bucket in self._buckets:
            bucket.finish(unused_everywhere)
        self._accumulated.clear()
        self.communication_seconds += time.perf_counter() - started
        self._prepare()

    def _nobody_used(self, missing: set[nn.Parameter]) -> set[nn.Parameter]:
        parameters = list(self._bucket_of)
        used = torch.tensor([parameter not in missing for parameter in parameters], dtype=torch.int32)
        used = used.to(parameters[0].device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self.group)
        return {parameter for parameter, by_any in zip(parameters, used.tolist(), strict=True) if not by_any}


class _Bucket:
    """Parameters whose gradients travel in one all-reduce."""

    def __init__(self, parameters: list[nn.Parameter], *, is_sparse: bool) -> None:
        self.parameters = parameters
        self.is_sparse = is_sparse
        self.missing = set(parameters)
        self.flat = torch.empty(0)
        self.work: dist.Work | None = None

    def start(self, size: int, group: dist.ProcessGroup | None) -> None:
        if self.is_sparse:
            (parameter,) = self.parameters
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.sparse_coo_tensor(
                    torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
                    parameter.new_empty(0, *parameter.shape[1:]),
                    parameter.shape,
                )
            self.flat = gradient / size
        else:
            gradients = [
                p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self.parameters
            ]
            self.flat = torch.cat(gradients).div_(size)
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, unused_everywhere: set[nn.Parameter]) -> None:
        assert self.work is not None
        self.work.wait()
        if self.is_sparse:
            means = [self.flat]
        else:
            parts = self.flat.split([parameter.numel() for parameter in self.parameters])
            # Views of the bucket, so nothing is copied back.
            means = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]
        for parameter, mean in zip(self.parameters, means, strict=True):
            if parameter not in unused_everywhere:
                parameter.grad = mean
        self.work = None
        self.flat = torch.empty(0)


def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank of ``group`` its rank 0's parameters and buffers, but for what they hold in parts."""
    shared = [parameter for parameter in module.parameters() if not is_sharded(parameter, group)]
    tensors: list[Tensor] = [*shared, *module.buffers()]
    for tensor in tensors:
        data = local_part(tensor.detach())
        sent = data.contiguous()
        dist.broadcast(sent, group=group, group_src=0)
        if sent is not data:
            data.copy_(sent)


def _fill_buckets(
    module: nn.Module, bucket_mb: float | None, group: dist.ProcessGroup | None
) -> list[_Bucket]:
    """Trainable parameters, last first, in buckets of one dtype and device; each sparse table by itself."""
    most = float("inf") if bucket_mb is None else bucket_mb * 1e6
    sparse = set(sparse_parameters(module))
    buckets: list[_Bucket] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[_Bucket, int]] = {}
    for name, parameter in reversed(list(module.named_parameters())):
        if not parameter.requires_grad or is_sharded(parameter, group):
            continue
        if name in sparse:
            buckets.append(_Bucket([parameter], is_sparse=True))
            continue
        kind = (parameter.dtype, parameter.device)
        bucket, filled = open_buckets.get(kind, (None, 0))
        if bucket is None or filled + parameter.nbytes > most:
            bucket, filled = _Bucket([], is_sparse=False), 0
            buckets.append(bucket)
        bucket.parameters.append(parameter)
        open_buckets[kind] = (bucket, filled + parameter.nbytes)
    return buckets
