"""A job's source folder: is the entry script where the container looks, and what travels (lesson 15).

The entry script is looked for inside the source folder. A path that repeats the folder, an absolute one or
one on S3 fails only in the cloud, minutes after the job was started; here it fails at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dtlab.errors import UserError
from dtlab.files import write_tar_gz

__all__ = ["check_source", "pack", "packed_names"]

_SKIPPED = {
    "__pycache__",
    ".git",
    ".ipynb_checkpoints",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}
_MOST_BYTES = 200_000_000


def check_source(folder: Path, entry_script: str, field: str = "source") -> Path:
    """The entry script's path on this machine.

    Raises:
        UserError: with the full path that was looked for, and the name that would be right where one is near.
    """
    where = f"{field}.entry_script = {entry_script!r}"
    if "s3:" in folder.parts:
        raise UserError(f"{field}.folder = {str(folder)!r}: name a folder of this machine; dtlab uploads it")
    if not os.path.isdir(folder):  # False, too, where the name is too long to be asked about
        raise UserError(f"{field}.folder = {str(folder)!r}: no such folder ({folder.absolute()})")
    if entry_script.startswith("s3:"):
        raise UserError(
            f"{where}: name a script inside {field}.folder ({folder.absolute()}); dtlab uploads it"
        )
    path = PurePosixPath(entry_script)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"{where}: looked for {entry_script}; give the path inside {field}.folder ({folder.absolute()})"
        )
    if "'" in entry_script:
        raise UserError(f"{where}: an apostrophe breaks the SDK's start script; rename the script")
    found = folder / path
    if os.path.isfile(found):
        if path.suffix != ".py":
            raise UserError(f"{where}: torchrun starts Python scripts; name one that ends in .py")
        return found
    inner = PurePosixPath(*path.parts[1:]) if len(path.parts) > 1 else None
    hint = ""
    if inner is not None and path.parts[0] == folder.absolute().name and (folder / inner).is_file():
        hint = f"; the path starts inside {field}.folder: write {str(inner)!r}"
    else:
        same = sorted(str(p.relative_to(folder)) for p in _files(folder) if p.name == path.name)
        hint = f"; did you mean {same[0]!r}?" if same else ""
    raise UserError(f"{where}: there is no {found.absolute()}{hint}")


def packed_names(folder: Path) -> list[str]:
    """What ``pack`` takes along from the source folder, as paths inside it."""
    return sorted(str(PurePosixPath(path.relative_to(folder))) for path in _files(folder))


def pack(folder: Path, target: Path, *, package: Path | None = None) -> list[str]:
    """Write the source folder, and dtlab itself, to the archive ``target``; the same content gives the same
    bytes.

    Args:
        folder: source folder.
        target: file to write, ``.tar.gz``.
        package: folder of the dtlab package; default: the one that runs.

    Returns:
        The names in the archive.

    Raises:
        UserError: no such folder, or more than 200 MB: data belongs into a channel.
    """
    if not folder.is_dir():
        raise UserError(f"source.folder = {str(folder)!r}: no such folder ({folder.absolute()})")
    package = Path(__file__).resolve().parent.parent if package is None else package
    entries = {name: folder / name for name in packed_names(folder)}
    for path in _files(package):
        entries.setdefault(f"dtlab/{path.relative_to(package).as_posix()}", path)
    total = sum(path.stat().st_size for path in entries.values())
    if total > _MOST_BYTES:
        raise UserError(
            f"source.folder = {str(folder)!r}: {total / 1e6:,.0f} MB; code is at most "
            f"{_MOST_BYTES / 1e6:,.0f} MB, data belongs into [channels]"
        )
    return write_tar_gz(target, entries, "archive")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part in _SKIPPED for part in path.relative_to(folder).parts):
            yield path
