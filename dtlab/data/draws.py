"""Random draws that belong to a place in the data, not to the history of a process (lesson 04).

Augmentation draws are a function of (seed, epoch, position, rank). So they are the same after a resume, with
any number of loader workers, and they differ between epochs, ranks and batches.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dtlab.ranks.seeds import mix


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators of Python, NumPy and torch (CPU) as they were, whatever is drawn inside.

    >>> before = torch.get_rng_state()
    >>> with preserved():
    ...     _ = torch.rand(3)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


@contextmanager
def drawing_from(*place: int) -> Iterator[None]:
    """Draw from generators seeded by ``place`` inside, and go on with the old ones afterwards.

    >>> with drawing_from(0, 1, 2):
    ...     first = torch.rand(1)
    >>> with drawing_from(0, 1, 2):
    ...     bool(first == torch.rand(1))
    True
    """
    with preserved():
        seed = mix("draws", *place)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # Not torch.manual_seed: it would move the accelerators' generators too, which belong to the model.
        torch.default_generator.manual_seed(seed)
        yield
