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
    """Both units side by side; small amounts as MB and MiB, or kB and KiB.

    >>> describe_bytes(24e9)
    '24.0 GB = 22.4 GiB'
    >>> describe_bytes(1_500_000)
    '1.5 MB = 1.4 MiB'
    >>> describe_bytes(2048)
    '2.0 kB = 2.0 KiB'
    """
    if abs(num_bytes) >= GB / 10:
        return f"{gb(num_bytes)} = {gib(num_bytes)}"
    if 0 < abs(num_bytes) < 50_000:  # "0.0 MB" would look like nothing
        return f"{num_bytes / 1e3:.1f} kB = {num_bytes / 2**10:.1f} KiB"
    return f"{num_bytes / 1e6:.1f} MB = {num_bytes / 2**20:.1f} MiB"
