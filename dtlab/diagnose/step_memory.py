"""How many bytes a training step takes at its peak, of how many, and whether an error says they ran out.

- On a CUDA card: what ``nvidia-smi`` shows. That is the peak of torch's allocator plus all else that lives on
  the card (the context, NCCL's buffers, other processes), out of the whole card.
- On a CPU: the tensors that are alive (:mod:`dtlab.diagnose.memory_trace`), out of this rank's part of what
  is free on the host. Python, the data set and what a kernel uses for itself while it runs are not counted,
  so the number is the same in every run. The limit is enforced: the step ends at the operation that passes
  it, and the host never comes to kill a process.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dtlab.diagnose.memory_trace import trace_memory
from dtlab.ranks import agreement
from dtlab.ranks.host_memory import available_bytes

__all__ = ["is_out_of_memory", "memory_limit", "step_bytes"]


def step_bytes(
    step: Callable[[], None], held: Iterable[Tensor], device: torch.device, limit: int
) -> int | None:
    """Run ``step`` and return the most bytes in use meanwhile; None when memory ran out.

    ``held``: tensors from before the step that count on a CPU; on a card all of them do anyway.
    """
    peak: int | None = None
    try:
        peak = _on_card(step, device) if device.type == "cuda" else _counted(step, held, limit)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    if peak is None and device.type == "cuda":
        gc.collect()  # what the failed step still held, in cycles
        torch.cuda.empty_cache()
    return peak


def _counted(step: Callable[[], None], held: Iterable[Tensor], limit: int) -> int:
    with trace_memory(limit) as trace:
        trace.label("held", held)
        step()
    return trace.peak


def _on_card(step: Callable[[], None], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    step()
    torch.cuda.synchronize(device)
    return others + torch.cuda.max_memory_reserved(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: torch's own, NumPy's, or a library's on the card.

    >>> is_out_of_memory(torch.OutOfMemoryError()), is_out_of_memory(ValueError("bad shape"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def memory_limit(device: torch.device, held: Iterable[Tensor] = ()) -> int:
    """Bytes that this rank may use: its card's, or an equal part of what is free on the host.

    ``held``: tensors of this rank that take memory already: not free, but its own.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    own = sum(tensor.nbytes for tensor in held)
    return own + available_bytes() // _ranks_here()


def _ranks_here() -> int:
    """Ranks on this host as the launcher says, else all of them."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) else agreement.world_size()
