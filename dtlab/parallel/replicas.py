"""Are the replicas still one model? A short hash of a model's parameters (lesson 03).

Equal hashes mean equal bits. Data parallelism keeps replicas bit-equal: every rank starts from the same bits
and applies the same mean gradient, so a hash that differs is a fault, never rounding.
"""

import hashlib

import torch
from torch import nn

__all__ = ["parameter_hash"]


def parameter_hash(model: nn.Module, digits: int = 8) -> str:
    """The parameters and buffers of ``model`` as ``digits`` hexadecimal digits (at most 64).

    It depends on the bits, shapes and dtypes in the order of the model, not on names, so that a model and
    its data-parallel wrapper hash alike. ``ValueError`` when ``digits`` is not 1 to 64.

    >>> one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> _ = other.load_state_dict(one.state_dict())
    >>> parameter_hash(one) == parameter_hash(other)
    True
    """
    if not 1 <= digits <= 64:
        raise ValueError(f"digits = {digits}: give 1 to 64")
    found = hashlib.blake2b(digest_size=32)
    for tensor in [*model.parameters(), *model.buffers()]:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        # As bytes: bfloat16 has no NumPy type, and -0.0 and 0.0 are different bits.
        plain = tensor.detach().cpu().contiguous().flatten()
        found.update(plain.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:digits]
