"""The one place that says how large a padded vocabulary is (lessons 07 and 08).

Embedding, output head, calculator and checks all ask ``padded_vocab_size``. Two paths that pad by their own
rule disagree, and an index then falls outside one of the two tables.
"""

from math import lcm

from dtlab.cost.pipeline import at_least_one

__all__ = ["padded_vocab_size"]


def padded_vocab_size(vocab_size: int, multiple: int = 1, *, tp: int = 1) -> int:
    """The smallest size from ``vocab_size`` up that ``multiple`` and ``tp`` divide.

    Args:
        vocab_size: tokens that there are.
        multiple: what the matrix product likes, 64 or 128 on a GPU; 1 for no wish.
        tp: tensor-parallel ranks; each holds an equal number of rows.

    The rows from ``vocab_size`` on belong to no token: a loss must leave their logits out.

    Raises:
        UserError: a size below 1.

    >>> padded_vocab_size(49159, 64), padded_vocab_size(11, tp=2), padded_vocab_size(256, tp=2)
    (49216, 12, 256)
    """
    at_least_one(vocab_size=vocab_size, multiple=multiple, tp=tp)
    step = lcm(multiple, tp)
    return -(-vocab_size // step) * step
