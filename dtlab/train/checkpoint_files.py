"""The files of one checkpoint: tensors as safetensors, the rest as one JSON file, each with its checksum.

Nothing is ever unpickled: a file that is not what it says is refused. Errors of the disk leave as one line
that says what to do.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dtlab.errors import UserError

__all__ = [
    "check_file",
    "disk_error",
    "read_description",
    "tensor_reader",
    "write_description",
    "write_tensors",
]

FORMAT = 1
_BLOCK = 1 << 20


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Write contiguous CPU tensors to ``path``, through to the disk; returns its size and checksum.

    The library writes straight from the tensors' memory, without a copy.
    """
    save_file(dict(tensors), str(path))
    return seal(path)


def seal(path: Path) -> dict[str, int]:
    """Push a file through to the disk; its size and checksum."""
    sync(path)
    return {"bytes": path.stat().st_size, "crc32": _crc32(path)}


def check_file(path: Path, expected: Mapping[str, int]) -> str | None:
    """What is wrong with a file, in a few words; None when size, checksum and header are right."""
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"{path.name} has {size} of {expected['bytes']} bytes"
        if _crc32(path) != expected["crc32"]:
            return f"the bytes of {path.name} are not the ones that were written"
        with safe_open(str(path), framework="pt"):
            pass
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (OSError, SafetensorError) as error:
        return f"{path.name} cannot be read ({_short(error)})"
    return None


def tensor_reader(path: Path) -> Callable[[str], Tensor]:
    """A function that reads one tensor of a file by name.

    The tensor owns its memory: a view of the file would change, or end the process, with the file.
    """
    file = safe_open(str(path), framework="pt").__enter__()
    names = set(file.keys())

    def read(name: str) -> Tensor:
        if name not in names:
            raise UserError(f"tensor {name!r} is missing in {path.name}")
        tensor: Tensor = file.get_tensor(name).clone()
        return tensor

    return read


def write_description(path: Path, description: Mapping[str, Any]) -> None:
    """Write the JSON file, with a checksum over its content, through to the disk."""
    text = _dump(description)
    body = f'{{"format": {FORMAT}, "crc32": {zlib.crc32(text.encode())}, "checkpoint": {text}}}\n'
    path.write_text(body, encoding="utf-8")
    sync(path)


def read_description(path: Path) -> dict[str, Any]:
    """Read what :func:`write_description` wrote.

    Raises:
        UserError: missing, torn, changed, or of a format that this dtlab does not read.
    """
    try:
        outer = json.loads(path.read_text(encoding="utf-8"))
        number, crc32, description = outer["format"], outer["crc32"], outer["checkpoint"]
    except FileNotFoundError:
        raise UserError(f"{path.name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path.name} cannot be read ({_short(error)})") from None
    if number != FORMAT:
        raise UserError(f"{path.name} has format {number!r}; this dtlab reads {FORMAT}")
    try:
        is_ours = isinstance(description, dict) and zlib.crc32(_dump(description).encode()) == crc32
    except ValueError:  # NaN, which is no JSON and never written
        is_ours = False
    if not is_ours:
        raise UserError(f"the content of {path.name} is not what was written")
    found: dict[str, Any] = description
    return found


def sync(path: Path) -> None:
    """Push a file, or the entries of a folder, to the disk: a rename may get there before bytes do."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no fsync for folders.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def disk_error(error: BaseException, folder: Path) -> str | None:
    """One line about a disk that refused, with the way out; None when the error is about something else."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, SafetensorError):
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else None
    if number is None:
        return None
    reason, where = os.strerror(number), f"checkpoint folder {str(folder)!r}"
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{where}: {reason}; free space, keep fewer checkpoints or name a folder on a larger disk"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where}: {reason}; name a folder that this user can write"
    if number in (errno.ENOTDIR, errno.EEXIST):
        return f"{where}: {reason}; name a folder, not a file"
    return f"{where}: {reason}; see that the disk is there and well"


def _crc32(path: Path) -> int:
    value, block = 0, bytearray(_BLOCK)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            value = zlib.crc32(view[:count], value)
    return value


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _short(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:120] if lines else type(error).__name__
