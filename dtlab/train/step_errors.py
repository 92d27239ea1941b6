"""What torch raises in a training step, in words that name the rank, the step and the setting to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dtlab.errors import UserError

__all__ = ["torch_errors_named"]


@contextmanager
def torch_errors_named(rank: int, step: Callable[[], int]) -> Iterator[None]:
    """Turn the errors that a setting cures into one line; others pass as they are.

    Raises:
        UserError: this rank is out of memory, or BatchNorm got one row.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"rank {rank}: out of memory in step {step()} "
            f"({' '.join(str(error).split())[:200]}); lower micro_batch, or set checkpoint_activations"
        ) from error
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"rank {rank}, step {step()}: BatchNorm cannot train on one row; take a larger "
            "global_batch, or the sampler's tail='drop'"
        ) from error
