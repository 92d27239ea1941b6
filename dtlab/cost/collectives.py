"""Time of an all-reduce by the latency-bandwidth model of textbooks (lesson 02).

A message of M bytes takes ``latency + M / bandwidth`` seconds; a rank sends one and receives one at a time.
With n ranks, a tensor of S bytes, latency a and bandwidth B:

=================  =======================================  ========================================
algorithm          seconds                                  what it is
=================  =======================================  ========================================
ring               2(n-1) (a + S / (n B))                   chunks, reduce-scatter then all-gather
tree               2 ceil(log2 n) (a + S / B)               the whole tensor in each message
tree, pipelined    2 ceil(log2 n) a + 2 S / B               cut into many small pieces, S large
parameter server   2(n-1) (a + S / B)                       rank 0 serves, one worker after another
parameter servers  2(n-1) a + max(2 S / B, 2 n S / (q B))   q servers beside n workers, S spread
=================  =======================================  ========================================

It is for teaching and for orders of magnitude. Links that several ranks share, and libraries that change
their algorithm with the size, are not in it: `collective_time` has a fitted model for measured times.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
for q servers Jiang et al., "A unified architecture for accelerating distributed DNN training" (BytePS), 2020.
"""

from dtlab.errors import UserError

__all__ = ["ALGORITHMS", "textbook_all_reduce_seconds"]

ALGORITHMS = ("ring", "tree", "tree, pipelined", "parameter server", "parameter servers")


def textbook_all_reduce_seconds(
    algorithm: str,
    ranks: int,
    payload_bytes: float,
    latency_seconds: float,
    bytes_per_second: float,
    *,
    servers: int = 1,
) -> float:
    """Seconds of one all-reduce of ``payload_bytes`` over ``ranks`` by the formula of the table above.

    Args:
        algorithm: one of ``ALGORITHMS``.
        ranks: number of ranks; one rank needs no message and no time.
        payload_bytes: bytes of the tensor.
        latency_seconds: time of an empty message.
        bytes_per_second: bandwidth of a rank's link, in each direction.
        servers: q, for "parameter servers" only.

    Raises:
        UserError: an unknown algorithm or a number that cannot be.

    Example:
        >>> round(textbook_all_reduce_seconds("ring", 8, 1.28e9, 0.0, 1.25e9), 3)
        1.792
        >>> round(textbook_all_reduce_seconds("parameter server", 8, 1.28e9, 0.0, 1.25e9), 3)
        14.336
    """
    if algorithm not in ALGORITHMS:
        raise UserError(f"algorithm: {algorithm!r} is not one of {', '.join(map(repr, ALGORITHMS))}")
    for name, value, least in (("ranks", ranks, 1), ("servers", servers, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name}: {value!r} is not a whole number of {least} or more")
    if not payload_bytes >= 0:
        raise UserError(f"payload_bytes: {payload_bytes!r} is not a size; give bytes, 0 or more")
    if not latency_seconds >= 0:
        raise UserError(f"latency_seconds: {latency_seconds!r} is not a time; give seconds, 0 or more")
    if not bytes_per_second > 0:
        raise UserError(f"bytes_per_second: {bytes_per_second!r} is not a bandwidth; give a number above 0")
    if ranks == 1:
        return 0.0
    whole = payload_bytes / bytes_per_second
    levels = (ranks - 1).bit_length()  # ceil(log2 ranks)
    if algorithm == "ring":
        return 2 * (ranks - 1) * (latency_seconds + whole / ranks)
    if algorithm == "tree":
        return 2 * levels * (latency_seconds + whole)
    if algorithm == "tree, pipelined":
        return 2 * levels * latency_seconds + 2 * whole
    if algorithm == "parameter server":
        return 2 * (ranks - 1) * (latency_seconds + whole)
    return 2 * (ranks - 1) * latency_seconds + max(2 * whole, 2 * ranks * whole / servers)
