"""Memory of this host, or of the container when that is less."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["available_bytes", "container_limit", "total_bytes"]

# Version 2 of control groups, and version 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_STATS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")


def container_limit() -> int | None:
    """Bytes that the container may use; None where nothing limits it."""
    limit = _first_number(_LIMITS)
    return limit if limit is not None and limit < 2**60 else None


def total_bytes() -> int:
    """Bytes of the host, or those that its container may use.

    >>> total_bytes() >= available_bytes()
    True
    """
    total, limit = psutil.virtual_memory().total, container_limit()
    return total if limit is None else min(total, limit)


def available_bytes() -> int:
    """Bytes that new work can take without swapping.

    >>> available_bytes() > 0
    True
    """
    free = psutil.virtual_memory().available
    limit, used = container_limit(), _first_number(_USED)
    if limit is None or used is None:
        return free
    # Cached files count as used, but give way.
    return max(0, min(free, limit - used + _cached_files()))


def _cached_files() -> int:
    for path in _STATS:
        try:
            rows = [line.split() for line in Path(path).read_text().splitlines()]
        except OSError:
            continue
        found = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
        return found.get("total_inactive_file", found.get("inactive_file", 0))
    return 0


def _first_number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None
