"""Are ranks that share a model given the same samples? Asked at the first call and each 100th (lesson 07).

Ranks of one tensor-parallel group or one pipeline work on one batch together. Given different batches they go
on without an error, with numbers that belong to none of them: a sampler that shares rows out over all ranks
does that. One all-gather of 8 bytes a rank finds it.
"""

import zlib

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.parallel.sharded import local_part
from dtlab.ranks.groups import wire_device, world_size

__all__ = ["SameBatch"]

_EVERY = 100  # calls between two comparisons


class SameBatch:
    """Compares what the ranks of ``group`` are given; ``what`` names the group for people."""

    def __init__(self, group: dist.ProcessGroup | None, what: str) -> None:
        self._group, self._what, self._calls = group, what, 0

    @torch.compiler.disable
    def check(self, *tensors: Tensor) -> None:
        """Compare ``tensors`` if it is time to (then collective); every rank calls it for every batch.

        Raises:
            UserError: on every rank: they differ; it names the ranks.
        """
        self._calls += 1
        size = world_size(self._group)
        if size == 1 or self._calls % _EVERY != 1:
            return
        own = torch.tensor([_digest(tensors)], device=wire_device(self._group))
        gathered = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(gathered, own, group=self._group)
        ranks = dist.get_process_group_ranks(self._group or dist.group.WORLD)
        holders: dict[int, list[str]] = {}
        for rank, digest in zip(ranks, gathered, strict=True):
            holders.setdefault(int(digest), []).append(str(rank))
        if len(holders) == 1:
            return
        sets = "; ".join(f"rank {', '.join(those)}" for those in holders.values())
        raise UserError(
            f"the ranks of one {self._what} were given different batches (call {self._calls}; equal among: "
            f"{sets}), and they compute on one together: give the sampler rank and world_size from "
            "dtlab.parallel.parallelize.data_rank(mesh)"
        )


def _digest(tensors: tuple[Tensor, ...]) -> int:
    """Another number as soon as a shape, a dtype, a value or the order of the values differs."""
    number = 0
    for tensor in tensors:
        plain = local_part(tensor).detach().cpu().contiguous()
        number = zlib.crc32(f"{plain.dtype} {tuple(plain.shape)}".encode(), number)
        number = zlib.crc32(plain.flatten().view(torch.uint8).numpy().tobytes(), number)
    return number
