"""The folder in which a launch keeps its ranks' output.

Without ``log_dir`` it is below the system's temporary folder and removed when this process ends. What a
process left that was killed is removed by the next one: the lock on a folder's file is free as soon as its
owner is gone.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from dtlab.errors import UserError

_PREFIX, _OWNER = "dtlab-", ".owner"
_KEPT_FOLDERS = 20  # logs of the last launches without log_dir; all are removed when this process ends

_folders_lock = threading.Lock()
_folders: list[Path] = []
_base: Path | None = None
_base_owner = 0


def _new_base() -> Path:
    _sweep(Path(tempfile.gettempdir()))
    base = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # Never closed: the lock shall end with this process.
    fcntl.flock(os.open(base / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)
    atexit.register(_remove, base, os.getpid())
    return base


def _sweep(place: Path) -> None:
    """Remove this user's folders whose owners are gone; one without a lock file may be in the making."""
    for base in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if base.is_symlink() or base.stat().st_uid != os.getuid():
                continue
            owner = os.open(base / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(base, ignore_errors=True)
            finally:
                os.close(owner)


def _remove(base: Path, owner: int) -> None:
    """Clean up, but not in a forked copy: the folder is still its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def log_folder(log_dir: Path | None) -> Iterator[Path]:
    """Where the ranks' files go."""
    global _base, _base_owner
    if log_dir is not None:
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            (log_dir / "rank0.log").touch()
        except OSError as error:
            raise UserError(
                f"log_dir: {log_dir} cannot be written ({error.strerror}); give another folder"
            ) from None
        yield log_dir.absolute()
        return
    with _folders_lock:
        if _base is None or _base_owner != os.getpid() or not _base.is_dir():
            _base, _base_owner = _new_base(), os.getpid()
            _folders.clear()
        folder = Path(tempfile.mkdtemp(prefix="launch-", dir=_base))
        _folders.append(folder)
        while len(_folders) > _KEPT_FOLDERS:
            shutil.rmtree(_folders.pop(0), ignore_errors=True)
    yield folder
