"""Bytes in words: GB is 1e9 bytes, GiB is 2**30 bytes, and every number carries its unit (lesson 01)."""

GB = 10**9
GIB = 2**30


def gb(num_bytes: float) -> str:
    """Bytes as decimal gigabytes.

    >>> gb(192e9)
    '192.0 GB'
    """
    return f"{num_bytes / GB:.1f} GB"


def gib(num_bytes: float) -> str:
    """Bytes as binary gibibytes.

    >>> gib(192e9)
    '178.8 GiB'
    """
    return f"{num_bytes / GIB:.1f} GiB"


def describe_bytes(num_bytes: float) -> str:
    """Both units side by side; small amounts as MB and MiB.

    >>> describe_bytes(24e9)
    '24.0 GB = 22.4 GiB'
    >>> describe_bytes(1_500_000)
    '1.5 MB = 1.4 MiB'
    """
    if abs(num_bytes) >= GB / 10:
        return f"{gb(num_bytes)} = {gib(num_bytes)}"
    return f"{num_bytes / 1e6:.1f} MB = {num_bytes / 2**20:.1f} MiB"
