"""How many bytes a rank puts on the wire in each collective, by formula (lessons 02 and 10).

A collective is one call for the user and an algorithm inside the library. These formulas give the bytes that
a rank *sends* under the algorithm that moves the fewest, which is what NCCL and gloo use for large tensors;
the real number depends on the algorithm chosen for the size. ``n`` ranks, ``S`` bytes given to the call:

==================  =========================  =====================================
collective          bytes sent by a rank       S
==================  =========================  =====================================
all_reduce          2(n-1)/n x S               the tensor
reduce_scatter      (n-1)/n x S                the whole input
all_gather          (n-1) x S                  this rank's shard
all_to_all          S - own part               the whole input
broadcast, reduce   (n-1)/n x S                the tensor (mean over the ranks)
gather              S, the root 0              this rank's part
scatter             root (n-1)/n x S, others 0 all parts, on the root
sparse_all_reduce   (n-1) x S                  indices and values of this rank
barrier             0
==================  =========================  =====================================

Source: Thakur, Rabenseifner and Gropp, 2005; the same factors are in nccl-tests' PERFORMANCE.md.
"""

__all__ = ["wire_bytes"]

_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "sparse_all_reduce": lambda n: n - 1,
}


def wire_bytes(
    op: str, payload: int, size: int, *, is_root: bool = False, own_part: int | None = None
) -> int:
    """Bytes that one of ``size`` ranks sends in ``op`` when it gives ``payload`` bytes; rounded to a byte.

    ``own_part``: bytes of an all_to_all that stay on the rank (default: an equal share). ``KeyError`` for an
    unknown op.

    >>> wire_bytes("all_reduce", 4000, 4)
    6000
    >>> wire_bytes("all_gather", 1000, 4), wire_bytes("gather", 1000, 4, is_root=True)
    (3000, 0)
    """
    if size == 1 or op == "barrier":
        return 0
    if op == "gather":
        return 0 if is_root else payload
    if op == "scatter":
        return round((size - 1) / size * payload) if is_root else 0
    if op == "all_to_all" and own_part is not None:
        return payload - own_part
    return round(_FACTORS[op](size) * payload)
