"""``SharedDisk``: a source that hands out so many rows a second, whoever asks (lesson 01).

Stands in for the disk or file server that all ranks of a job read from, slow enough to be seen on a laptop.

- One number in a file says when the disk is free again. A read of n rows books the next n / rate seconds
  under a lock and sleeps until they are over, so ranks are served one after another, first come first served.
- The file is what the ranks share. Nothing is read from it but that number; the rows are the reader's own.
- Time is ``time.monotonic``, which all processes of one host share.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from dtlab.data.prepare import lock
from dtlab.errors import UserError

_FREE = struct.Struct("d")  # seconds of time.monotonic at which the disk is free


class SharedDisk:
    """A disk of ``rows_per_second``, shared by every process that gets a copy of it.

    Hand it to ``dtlab.launch`` like any argument: the copies in the ranks are the same disk. Its file is
    removed when the object that made it is gone.

    Raises UserError when the rate is not a number above 0.

    >>> disk = SharedDisk(rows_per_second=10_000)
    >>> disk.read(100) >= 0.01  # seconds
    True
    """

    def __init__(self, rows_per_second: float) -> None:
        if isinstance(rows_per_second, bool) or not 0 < rows_per_second < float("inf"):
            raise UserError(f"rows_per_second={rows_per_second!r} is not a rate: give a number above 0")
        self.rows_per_second = rows_per_second
        handle, self._path = tempfile.mkstemp(prefix="dtlab-disk-")
        os.close(handle)
        weakref.finalize(self, _remove, self._path)  # copies in other processes are unpickled and have none

    def read(self, rows: int) -> float:
        """Take ``rows`` rows: return after as long as that takes, with the seconds that the caller waited."""
        asked = time.monotonic()
        time.sleep(max(0.0, self._book(rows) - asked))
        return time.monotonic() - asked

    def _book(self, rows: int) -> float:
        """Book the disk for ``rows`` rows; the time at which they are there."""
        path = Path(self._path)
        with lock(path):
            kept = path.read_bytes()
            free = _FREE.unpack(kept)[0] if kept else 0.0
            until = max(free, time.monotonic()) + rows / self.rows_per_second
            path.write_bytes(_FREE.pack(until))
        return until


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
