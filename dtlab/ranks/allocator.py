"""glibc's allocator on a rank that computes on a CPU: keep freed memory instead of giving it back each step.

A training step frees tensors of megabytes and asks for the same sizes again in the next step. glibc gives
such blocks back to the system at once, so that every step pays for thousands of page faults, and ranks on one
host pay at different moments, which makes them wait for each other (``benchmarks/scaling``).
"""

import ctypes
import functools
import os

# <malloc.h>: int mallopt(int param, int value)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Bytes. Blocks below the first come from the heap (32 MiB is the most that glibc takes on 64 bits); the heap
# shrinks only when more than the second lies free at its end.
_MMAP_FROM = 32 * 2**20
_TRIM_FROM = 2**30


@functools.cache
def keep_freed_memory() -> bool:
    """Raise glibc's thresholds in this process; whether it was done.

    Nothing is done without glibc, or when the user has set one of the thresholds
    (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``). The price is at most 1 GiB
    per process that is kept though free.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if any(name.startswith("MALLOC_") and name.endswith("_THRESHOLD_") for name in os.environ):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (a missing symbol says that this is no glibc)
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM))
