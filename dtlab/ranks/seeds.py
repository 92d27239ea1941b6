"""Random streams that differ per rank and per loader worker, and repeat from run to run (lesson 04).

- ``seed_everything(seed, rank)``: Python, NumPy and torch of this process. A pre-forked worker server gives
  every rank a copy of one generator state, so ranks that are not seeded draw the same numbers.
- ``worker_init(worker_id)``: pass it to ``DataLoader(worker_init_fn=...)``.
- ``mix(...)``: one well-spread number out of several small ones.
"""

from __future__ import annotations

import hashlib
import random

_base_seed: int | None = None


def mix(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order.

    Neighbouring inputs give unrelated outputs, which ``seed + rank`` does not: seed 0 on rank 1 and seed 1 on
    rank 0 would share one stream.

    Example:
        >>> mix(0, 1) == mix(1, 0)
        False
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def base_seed() -> int | None:
    """The seed last given to ``seed_everything`` in this process, or None."""
    return _base_seed


def seed_everything(seed: int, rank: int = 0) -> int:
    """Seed Python, NumPy and torch (CPU and CUDA) of this process from (seed, rank).

    Args:
        seed: the run's seed, the same on every rank.
        rank: this process's rank; other ranks get unrelated streams.

    Returns:
        The mixed seed that torch was given.

    Example:
        >>> import torch
        >>> _ = seed_everything(0, rank=1); a = torch.rand(1)
        >>> _ = seed_everything(0, rank=1); bool(a == torch.rand(1))
        True
    """
    global _base_seed
    import numpy
    import torch

    mixed = mix("rank", seed, rank)
    random.seed(mixed)
    numpy.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)  # CUDA too; when CUDA is not yet in use the seed waits for it
    _base_seed = seed
    return mixed


def worker_init(worker_id: int) -> None:
    """Seed a DataLoader worker: its stream depends on rank, worker and epoch.

    torch draws a new base seed from the rank's own generator at the start of each epoch and hands the worker
    base + worker_id. That number is used here, so a rank that was seeded by ``seed_everything`` has workers
    that differ from every other rank's, from each other and from their own last epoch, and that repeat in a
    second run. A fixed re-seed would repeat the same augmentations in every epoch.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), num_workers=0, worker_init_fn=worker_init)
    """
    import numpy
    import torch

    mixed = mix("worker", torch.initial_seed(), worker_id)
    random.seed(mixed)
    numpy.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)
