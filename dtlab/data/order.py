"""The one global order of an epoch, and how a global batch is cut over ranks (taught in lesson 04).

- Pure functions: the order depends on the number of samples, the seed and the epoch, and on nothing else, so
  every rank computes the same one without a message.
- Rank r of W takes ``global_batch[r::W]``: interleaving the ranks' parts gives the global batch back, for
  every W, also when the batch does not divide by W.
"""

import math

import numpy as np

from dtlab.errors import UserError


def global_order(
    num_samples: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Return the sample indices of one epoch in the order in which they are trained, [num_samples] int64.

    With ``weights`` the epoch is ``num_samples`` multinomial draws with replacement, each sample with
    probability weight / sum of weights: a sample may come often or never.

    >>> global_order(4, seed=0, epoch=0, shuffle=False).tolist()
    [0, 1, 2, 3]
    >>> sorted(global_order(4, seed=0, epoch=1).tolist())
    [0, 1, 2, 3]
    """
    if not shuffle:
        return np.arange(num_samples, dtype=np.int64)
    # Seed and epoch are mixed, not added: (seed 0, epoch 1) must not be (seed 1, epoch 0).
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    if weights is None:
        return generator.permutation(num_samples).astype(np.int64, copy=False)
    bounds = np.cumsum(weights, dtype=np.float64)
    # Normalised to end at exactly 1, so that no draw in [0, 1) falls past the last weighted sample.
    draws = np.searchsorted(bounds / bounds[-1], generator.random(num_samples), side="right")
    return draws.astype(np.int64, copy=False)


def checked_weights(weights: object, num_samples: int) -> np.ndarray:
    """Return the weights as [num_samples] float64.

    Raises:
        UserError: wrong length, a negative or non-finite weight, or nothing but zeros.
    """
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"weights are no numbers ({error}); give one number per sample") from None
    if array.shape != (num_samples,):
        raise UserError(f"weights has the shape {array.shape}; give one weight per sample: ({num_samples},)")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise UserError(
            f"weights[{bad[0]}] is {array[bad[0]]}; every weight must be a finite number that is not negative"
        )
    if _sum(array) == 0:
        raise UserError("weights are all 0; give at least one sample a positive weight")
    return array if math.isfinite(_sum(array)) else array / array.max()


def _sum(array: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(array.sum())


def rank_counts(global_size: int, world_size: int) -> list[int]:
    """Return how many samples of a global batch each rank gets; they differ by at most one.

    >>> rank_counts(10, 4)
    [3, 3, 2, 2]
    """
    return [len(range(rank, global_size, world_size)) for rank in range(world_size)]


def local_rows(
    order: np.ndarray, global_batch: int, rank: int, world_size: int
) -> tuple[np.ndarray, list[int]]:
    """Return one rank's part of many consecutive global batches at once.

    Returns:
        The rank's samples, step after step, and how many of them belong to each step (0 where the tail
        leaves this rank nothing).

    >>> rows, sizes = local_rows(np.arange(7), global_batch=4, rank=1, world_size=2)
    >>> rows.tolist(), sizes
    ([1, 3, 5], [2, 1])
    """
    global_batch = min(global_batch, max(1, len(order)))  # a larger one is the same batch
    full = len(order) // global_batch
    whole = order[: full * global_batch].reshape(full, global_batch)[:, rank::world_size]
    sizes = [whole.shape[1]] * full
    rest = order[full * global_batch :]
    if len(rest) == 0:
        return whole.reshape(-1), sizes
    tail = rest[rank::world_size]
    return np.concatenate([whole.reshape(-1), tail]), [*sizes, len(tail)]
