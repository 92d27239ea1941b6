"""Let one process prepare a folder while the others wait; the folder appears whole or not at all.

- ``prepare(folder, build)`` returns at once when the folder is complete. Otherwise one caller takes the
  lock, builds beside the final place, syncs to disk and renames; every other caller, on this host, waits
  for the lock and finds the work done.
- The lock is ``flock`` on a file beside the folder: the kernel frees it when its owner dies, so a killed run
  never blocks the next one. What a killed run left half-built is removed by the next builder.
- Complete means: ``manifest.json`` is there and every file it lists has the listed size. Anything else (a
  torn copy, files of somebody else) is passed over: moved aside, rebuilt, deleted.

No process group is needed, so it works the same before, in and without one. Taught in lesson 11.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dtlab.errors import UserError

T = TypeVar("T")
MANIFEST = "manifest.json"
# Errors that speak of the place: another one helps.
_PLACE = (
    errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENODEV, errno.EIO,
)  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        for name, size in manifest["files"].items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if needed); freed by the kernel when the process ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def prepare(
    folder: str | Path,
    build: Callable[[Path], dict[str, Any]],
    usable: Callable[[dict[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """Make sure that ``folder`` is complete, building it if needed, and return its manifest.

    ``build(path)`` writes files into the empty folder ``path`` and returns what the manifest shall say (JSON
    values). ``usable(manifest)`` may refuse a complete folder, because of its age for example: it is built
    anew, and the old one is replaced when the new one is whole. Raises UserError when the place cannot be
    written.

    >>> import tempfile
    >>> def build(path):
    ...     _ = (path / "hello.txt").write_text("hello")
    ...     return {"rows": 1}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     prepare(Path(place) / "made", build)["rows"]
    1
    """
    folder = Path(folder)
    manifest = _usable(folder, usable)
    if manifest is not None:
        return manifest
    try:
        _make(folder.parent)
        with lock(folder.parent / f".{folder.name}.lock"):
            manifest = _usable(folder, usable)  # another process may have built it while this one waited
            return manifest if manifest is not None else _build(folder, build)
    except OSError as error:
        took_no_more = "requested and" in str(error)  # NumPy's words for a short write, without a number
        if took_no_more or error.errno in _PLACE:
            limited = took_no_more or error.errno == errno.EFBIG
            way = "free space, raise the limit of file sizes (ulimit -f), or " if limited else ""
            raise UserError(
                f"cannot prepare data in {folder}: {error.strerror or error}; {way}choose another data.root"
            ) from error
        raise


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # below /proc, or with a dangling link on the way
        raise OSError(errno.ENOTDIR, error.strerror) from error


def load_prepared(
    folder: Path, build: Callable[[Path], dict[str, Any]], load: Callable[[dict[str, Any]], T | None]
) -> T:
    """As ``prepare``, and return what ``load(manifest)`` makes of the folder.

    ``load`` gives None for a folder that is complete by its manifest and yet does not hold what ``build``
    writes (a damaged disk, somebody's hand): it is discarded and built anew. Raises UserError, which names
    the folder, when that does not help.
    """

    def marked(path: Path) -> dict[str, Any]:
        # The token tells two folders of one content apart: nobody discards another's good one.
        return {**build(path), "token": uuid.uuid4().hex}

    for _ in range(3):
        manifest = prepare(folder, marked)
        found = load(manifest)
        if found is not None:
            return found
        discard(folder, manifest)
    raise UserError(f"the folder {folder} is damaged and could not be made again: delete it")


def _usable(folder: Path, usable: Callable[[dict[str, Any]], bool] | None) -> dict[str, Any] | None:
    manifest = read_manifest(folder)
    return manifest if manifest is not None and (usable is None or usable(manifest)) else None


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    for left in folder.parent.glob(f".{folder.name}.building-*"):
        shutil.rmtree(left, ignore_errors=True)  # only a killed owner leaves one: we hold the lock
    beside = folder.parent / f".{folder.name}.building-{uuid.uuid4().hex[:8]}"
    beside.mkdir()
    try:
        manifest = build(beside)
        names = sorted(path.relative_to(beside).as_posix() for path in beside.rglob("*") if path.is_file())
        manifest = {**manifest, "files": {name: (beside / name).stat().st_size for name in names}}
        (beside / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")
        for name in (*names, MANIFEST):
            _sync(beside / name)  # a rename may reach the disk before the bytes do
        if folder.exists() or folder.is_symlink():
            _remove(folder)
        os.rename(beside, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return manifest


def discard(folder: Path, manifest: dict[str, Any]) -> None:
    """Take a folder out of the way and delete it, unless its manifest is another one by now."""
    with contextlib.suppress(OSError), lock(folder.parent / f".{folder.name}.lock"):
        if read_manifest(folder) in (manifest, None):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Rename first: a reader that looks meanwhile finds either the whole folder or none."""
    old = folder.parent / f".{folder.name}.building-old-{uuid.uuid4().hex[:8]}"
    os.rename(folder, old)
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(paths: list[Path]) -> str:
    """Hash of the contents of files, in the order given (names do not matter): 16 hexadecimal digits."""
    total = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()


def kept_digest(paths: list[Path], folder: Path) -> str:
    """As ``file_digest``; one process reads the files and the others, and later runs, take its answer.

    It is kept below ``folder`` and holds as long as no file's size, inode and times change: the content of a
    large table is hashed once, not by every rank of every run.
    """
    stats = [(str(path.resolve()), path.stat()) for path in paths]
    seen = [(name, s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats]
    place = folder / hashlib.blake2b(repr(seen).encode(), digest_size=8).hexdigest()
    return load_prepared(place, lambda _: {"digest": file_digest(paths)}, _digest_in)


def _digest_in(manifest: dict[str, Any]) -> str | None:
    found = manifest.get("digest")
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{16}", found) else None
