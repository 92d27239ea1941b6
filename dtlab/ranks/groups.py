"""Rank and size in a process group, and where its small messages live; without a group: one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["has_group", "rank", "wire_device", "world_size"]


def has_group() -> bool:
    """Whether a process group exists."""
    return dist.is_available() and dist.is_initialized()


def rank(group: dist.ProcessGroup | None = None) -> int:
    """This process's rank; 0 without a group."""
    return dist.get_rank(group) if has_group() else 0


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of ranks; 1 without a group."""
    return dist.get_world_size(group) if has_group() else 1


def wire_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Where small messages must live: the CPU if the group has a CPU backend, else the current CUDA card."""
    if has_group():
        backends = dist.get_backend_config(group)
        if "cpu:" not in backends and "nccl" in backends:
            return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
