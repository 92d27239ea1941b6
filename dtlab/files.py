"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dtlab.errors import UserError


@contextmanager
def _one_line(path: Path, field: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{field} = {str(path)!r}: {reason}; name a place that can be written") from None


def _is_direct(path: Path) -> bool:
    """Whether ``path`` exists and is no file or folder, so that another file must not take its name."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def appears_whole(path: Path, field: str) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes its name when the block ends without an error.

    ``field`` is what the user calls the path. A folder is written the same way: make it in the block. An
    existing file or folder of that name is replaced, a link is followed. What is neither file nor folder (a
    device, a named pipe) is written to directly.

    Raises:
        UserError: the place cannot be written.

    >>> with appears_whole(Path("report.json"), "report") as beside:  # doctest: +SKIP
    ...     beside.write_text("{}")
    """
    with _one_line(path, field):
        is_direct = _is_direct(path)
        place = path if is_direct else Path(os.path.realpath(path))
    if is_direct:
        with _one_line(path, field):
            yield place
        return
    name = place.name if len(os.fsencode(place.name)) < 200 else place.name[:40]  # a name has 255 bytes
    beside = place.with_name(f".{name}.{os.getpid()}")
    try:
        with _one_line(path, field):
            place.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            if beside.is_dir() and place.is_dir():
                _take_place(beside, place)
            else:
                os.replace(beside, place)
    finally:
        with suppress(OSError):
            beside.unlink()
        shutil.rmtree(beside, ignore_errors=True)


def _take_place(new: Path, old: Path) -> None:
    """Give a folder the name of another, and only then remove that one: removing may be cut off half way."""
    away = new.with_name(f"{new.name}.old")
    try:
        os.rename(old, away)
        os.rename(new, old)
    except BaseException:
        if away.exists() and not old.exists():
            os.rename(away, old)
        raise
    shutil.rmtree(away, ignore_errors=True)


def write_tar_gz(target: Path, entries: Mapping[str, bytes | Path], field: str) -> list[str]:
    """Write name -> content, or a file that holds it, as ``.tar.gz``; it appears by rename.

    No times and no owners are in it: the same content gives the same bytes. Returns the names.

    Raises:
        UserError: the place cannot be written.
    """
    with (
        appears_whole(target, field) as beside,
        beside.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, body in sorted(entries.items()):
            content = body.read_bytes() if isinstance(body, Path) else body
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(about, io.BytesIO(content))
    return sorted(entries)


def require_writable(path: Path, field: str) -> None:
    """Refuse before a run what could not be written after it.

    Raises:
        UserError: ``path`` is a folder, or nothing can be made in its nearest existing parent.
    """
    with _one_line(path, field):
        if path.is_dir():
            raise UserError(f"{field} = {str(path)!r}: is a folder; name a file")
        if _is_direct(path):
            if not os.access(path, os.W_OK):
                raise UserError(f"{field} = {str(path)!r}: cannot be written; name another place")
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # a name that is too long
        parent = Path(os.path.realpath(path)).parent
    _require_room(parent, path, field)


def require_writable_folder(path: Path, field: str) -> None:
    """Refuse before a run a folder that could not be made, or in which nothing could be made.

    Raises:
        UserError: ``path`` is a file, or nothing can be made in it or in its nearest existing parent.
    """
    require_folder(path, field)
    _require_room(Path(os.path.realpath(path)), path, field)


def require_folder(path: Path, field: str) -> None:
    """Refuse what is there and no folder, and a name that no folder can have; nothing is written.

    Raises:
        UserError: see above.
    """
    with _one_line(path, field):
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
        place = Path(os.path.realpath(path))
        if place.exists() and not place.is_dir():
            raise UserError(f"{field} = {str(path)!r}: is a file; name a folder")


@contextmanager
def alone_in(folder: Path, field: str, command: str) -> Iterator[None]:
    """Make ``folder`` and hold it for one ``command``; the kernel frees it when the process ends.

    Raises:
        UserError: another one holds it, or the folder cannot be written.
    """
    require_writable_folder(folder, field)
    with ExitStack() as held:
        with _one_line(folder, field):
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((folder / ".lock").open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{field} = {str(folder)!r}: another {command} is in it; wait for it, or name another folder"
            ) from None
        yield


def _require_room(parent: Path, path: Path, field: str) -> None:
    """Make a folder in ``parent``, or in the nearest one that exists, and remove it: rights alone say little.

    In /proc, on a read-only mount or over a quota they allow what cannot be done.
    """
    while not os.path.lexists(parent):
        parent = parent.parent
    where = f"{field} = {str(path)!r}: {str(parent)!r}"
    if not parent.is_dir():
        raise UserError(f"{where} is a file; name another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{where} cannot be written; name another place")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".dtlab-", dir=parent))
    except OSError:
        raise UserError(f"{where} cannot be written; name another place") from None
