"""Host memory that saving a whole model takes: one copy, or one for each rank of a host (lesson 09).

A full state dict is model size. Gathered by every rank, as a careless save does, a host with 8 cards holds it
8 times beside what it holds anyway; gathered by rank 0 alone, once.
"""

import warnings

from dtlab.errors import DtlabWarning, require_number, require_whole

__all__ = ["full_state_host_bytes"]


def full_state_host_bytes(
    parameters: float,
    bytes_per_parameter: float,
    ranks_per_host: int,
    *,
    everywhere: bool = False,
    host_bytes: float | None = None,
) -> float:
    """Bytes of memory while a full state is saved, on the host that holds most.

    Args:
        parameters: numbers in the state.
        bytes_per_parameter: 2 for bf16 weights, 12 for float32 weights with Adam's two moments.
        ranks_per_host: ranks that run on one host.
        everywhere: every rank gathers the whole state, not rank 0 alone.
        host_bytes: memory of the host; a :class:`DtlabWarning` when it is not enough.

    Raises:
        UserError: a number that is not positive.

    >>> full_state_host_bytes(30e9, 2, 8) / 1e9, full_state_host_bytes(30e9, 2, 8, everywhere=True) / 1e9
    (60.0, 480.0)
    """
    for name, value in (("parameters", parameters), ("bytes_per_parameter", bytes_per_parameter)):
        require_number(name, value, lambda number: number > 0, "a number above 0")
    require_whole("ranks_per_host", ranks_per_host, 1, "ranks")
    if host_bytes is not None:
        require_number("host_bytes", host_bytes, lambda number: number > 0, "bytes above 0, or None")
    needed = parameters * bytes_per_parameter * (ranks_per_host if everywhere else 1)
    if host_bytes is not None and needed > host_bytes:
        way_out = (
            "gather on rank 0 alone" if everywhere else "save a sharded checkpoint, which gathers nothing"
        )
        warnings.warn(
            f"a full state needs {needed / 1e9:.0f} GB of the host's {host_bytes / 1e9:.0f} GB: {way_out}",
            DtlabWarning,
            stacklevel=2,
        )
    return needed
