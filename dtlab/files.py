"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dtlab.errors import UserError


@contextmanager
def appears_whole(path: Path, field: str) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes its name when the block ends without an error.

    ``field`` is what the user calls the path. A folder is written the same way: make it in the block. An
    existing file or folder of that name is replaced.

    Raises:
        UserError: the place cannot be written.

    >>> with appears_whole(Path("report.json"), "report") as beside:  # doctest: +SKIP
    ...     beside.write_text("{}")
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        if beside.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(beside, path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{field} = {str(path)!r}: {reason}; name a place that can be written") from None
    finally:
        with suppress(OSError):
            beside.unlink()
        shutil.rmtree(beside, ignore_errors=True)


def require_writable(path: Path, field: str) -> None:
    """Refuse before a run what could not be written after it.

    Raises:
        UserError: ``path`` is a folder, or its nearest existing parent cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{field} = {str(path)!r}: is a folder; name a file")
    parent = path.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{field} = {str(path)!r}: {str(parent)!r} cannot be written; name another place")
