"""Text: the bytes of the Python standard library's own source, real text that every machine has (lesson 05).

- A token is a byte, so the vocabulary is 256 and nothing is fitted. Byte 0, which no source file holds, ends
  every file.
- The files are those of the Python that runs this, in the order of their names; tests, generated tables and
  what a machine added are left out. The version is a hash of their content: another Python, another version.
- Whole files go to training, validation or test by a hash of their content: no file and no copy of one lies
  in two of them.
- All bytes lie in one ``uint8`` file that is made once (by rename) and mapped by every rank.
- A sample is a window of ``sequence + 1`` bytes: from each of the first ``sequence`` bytes the model is to
  predict the next. Windows overlap by one byte, so every byte but the first is predicted once; the last
  ``< sequence`` bytes of a split, too few for a window, are left out.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtlab.data.config import default_root
from dtlab.data.prepare import discard, prepare
from dtlab.errors import UserError

PREPARATION = 1  # raise it when a change here changes the prepared bytes
VOCAB_SIZE = 256
SPLITS = ("train", "validation", "test")
BYTES = "bytes.npy"
# Other people's packages, tests, and tables that a program wrote.
_LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "lib-dynload",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pydoc_data",
}


@dataclass(frozen=True)
class TextBatch:
    """B windows: ``ids`` [B], ``tokens`` [B, S] and ``targets`` [B, S], the next byte of each; all int64.

    >>> windows = TextWindows(torch.arange(7, dtype=torch.uint8), sequence=3)
    >>> windows.take(torch.tensor([1])).targets.tolist()
    [[4, 5, 6]]
    """

    ids: Tensor
    tokens: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TextBatch:
        """The batch on ``device``."""
        columns = (self.ids, self.tokens, self.targets)
        return TextBatch(*(column.to(device, non_blocking=non_blocking) for column in columns))

    def pin_memory(self) -> TextBatch:
        """A copy in page-locked memory."""
        return TextBatch(self.ids.pin_memory(), self.tokens.pin_memory(), self.targets.pin_memory())

    def split(self, sizes: Sequence[int]) -> list[TextBatch]:
        """Cut into consecutive batches of the given sizes; views, not copies."""
        columns = (self.ids, self.tokens, self.targets)
        parts = [column.split_with_sizes(list(sizes)) for column in columns]
        return [TextBatch(*columns) for columns in zip(*parts, strict=True)]


class TextWindows:
    """One split, cut into windows of ``sequence + 1`` bytes; nothing is copied until a batch is taken.

    It offers what :class:`dtlab.data.loader.Loader` asks of a table, and its length is what
    ``GlobalBatchSampler`` takes as the number of samples.

    Args:
        data: [N] uint8.
        sequence: S, tokens of a window.
        first_id: id of window 0.

    Raises:
        UserError: a sequence below 1, or longer than the text.

    >>> windows = TextWindows(torch.arange(7, dtype=torch.uint8), sequence=3)
    >>> len(windows), windows.take(torch.tensor([0])).tokens.tolist()
    (2, [[0, 1, 2]])
    """

    def __init__(self, data: Tensor, sequence: int, *, first_id: int = 0) -> None:
        if sequence < 1:
            raise UserError(f"sequence = {sequence!r}: must be at least 1 token")
        if len(data) < sequence + 1:
            raise UserError(
                f"sequence = {sequence}: a window needs {sequence + 1} bytes, the split has {len(data)}; "
                "shorten it"
            )
        self.data, self.sequence = data, sequence
        self._windows = data.unfold(0, sequence + 1, sequence)  # a view: [windows, sequence + 1]
        self.ids = torch.arange(first_id, first_id + len(self._windows))

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, index: np.ndarray | Tensor) -> TextBatch:
        """The windows at ``index`` ([B] integers) as a batch."""
        rows = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        windows = self._windows[rows].long()
        return TextBatch(self.ids[rows], windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


@dataclass(frozen=True)
class Text:
    """Three splits and where they come from; ``version`` goes into run records."""

    name: str
    train: TextWindows
    validation: TextWindows
    test: TextWindows
    version: str
    vocab_size: int = VOCAB_SIZE


def load_text(sequence: int = 128, *, root: str | Path | None = None) -> Text:
    """The text in windows of ``sequence`` tokens, prepared first if needed; every rank may call it at once.

    Args:
        sequence: tokens of a window.
        root: folder of prepared data; default as for ``load_dataset``.

    Raises:
        UserError: the standard library's source cannot be found, or the sequence is too long.

    >>> text = load_text(128)  # doctest: +SKIP
    >>> text.train.take(torch.tensor([0])).tokens.shape  # doctest: +SKIP
    torch.Size([1, 128])
    """
    place = default_root() if root is None else Path(root)
    documents = read_documents(source_files())
    version = text_version(documents)
    folder = place / "text" / version

    for _ in range(2):
        manifest = prepare(folder, lambda path: build(path, documents))
        data = _mapped(folder, manifest["bytes"])
        if data is not None:
            break
        discard(folder, manifest)  # complete by its manifest, yet not what it says
    else:
        raise UserError(f"text: {str(folder)!r} cannot be read as it was written; choose another data.root")
    sizes = [manifest["bytes"][split] for split in SPLITS]
    windows, first_id = {}, 0
    for split, part in zip(SPLITS, data.split(sizes), strict=True):
        windows[split] = TextWindows(part, sequence, first_id=first_id)
        first_id += len(windows[split])
    return Text("text", windows["train"], windows["validation"], windows["test"], version)


def _mapped(folder: Path, sizes: dict[str, int]) -> Tensor | None:
    """The prepared bytes; None when the file is not what the manifest says."""
    try:
        # Mode "c": the ranks of a host share the pages, and a write stays private to its process.
        array = np.load(folder / BYTES, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_right = array.dtype == np.uint8 and array.shape == (sum(sizes.values()),)
    return torch.from_numpy(np.asarray(array)) if is_right else None


def source_files(folder: str | Path | None = None) -> list[Path]:
    """The library's own source files below ``folder``, in the order of their names.

    ``folder`` is the library of this Python by default. Links are left out: they lead to files that a system
    added.

    Raises:
        UserError: there is none, as in a Python that keeps its library in an archive.
    """
    top = Path(sysconfig.get_paths()["stdlib"] if folder is None else folder)
    found = []
    for place, folders, names in os.walk(top):
        folders[:] = [
            name
            for name in folders
            if name not in _LEFT_OUT and not name.startswith(("config-", "__pycache__"))
        ]
        for name in names:
            path = Path(place) / name
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and not path.is_symlink():
                found.append(path)
    if not found:
        raise UserError(
            f"text: no Python source below {str(top)!r}; use a Python whose standard library lies there as "
            ".py files"
        )
    return sorted(found, key=lambda path: path.relative_to(top).as_posix())


def read_documents(paths: Sequence[Path]) -> list[bytes]:
    """The content of the files, without empty files, copies of earlier ones, and files with a byte 0."""
    unique = dict.fromkeys(path.read_bytes() for path in paths)
    return [document for document in unique if document and b"\0" not in document]


def text_version(documents: Sequence[bytes]) -> str:
    """Changes with the content of any document, their order, and the way they are prepared."""
    total = hashlib.blake2b(digest_size=6)
    for document in documents:
        total.update(hashlib.blake2b(document, digest_size=16).digest())
    return f"{total.hexdigest()}-{PREPARATION}"


def split_of(document: bytes) -> str:
    """The split of a document, by its content alone: 8 of 10 train, 1 validation, 1 test."""
    place = int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "big") % 10
    return "test" if place == 0 else "validation" if place == 1 else "train"


def build(folder: Path, documents: Sequence[bytes]) -> dict[str, Any]:
    """Write the bytes of the three splits, one after the other, into ``folder``; for ``prepare``."""
    parts = {
        split: b"".join(document + b"\0" for document in documents if split_of(document) == split)
        for split in SPLITS
    }
    np.save(folder / BYTES, np.frombuffer(b"".join(parts.values()), dtype=np.uint8), allow_pickle=False)
    counts = {split: sum(split_of(document) == split for document in documents) for split in SPLITS}
    return {"bytes": {split: len(part) for split, part in parts.items()}, "documents": counts}
