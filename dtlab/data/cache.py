"""Keep transformed columns between uses: not at all, in this process, or on local disk.

The key is a hash of the content of the data and of the features, so a changed file or column list never
meets an old entry. On disk an entry is a folder of ``.npy`` files, one per column block, mapped into memory
when loaded: ranks of one host share the pages, and only what is read is loaded. An entry appears by rename,
made by one process while others wait; a torn or foreign one is passed over and rebuilt. Taught in lesson 11
(a stale entry) and priced in lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dtlab.data.batch import Batch
from dtlab.data.features import Features
from dtlab.data.prepare import discard, prepare, read_manifest
from dtlab.errors import UserError

Entry = tuple[Features, dict[str, Batch]]
FEATURES = "features.json"
COLUMNS = ("ids", "categorical", "dense", "labels")

_in_memory: dict[str, Entry] = {}


class Cache:
    """``get(key, make)`` gives the entry of ``key``, calling ``make()`` when it is not kept.

    ``kind`` is "none", "memory" (of this process) or "disk" (below ``folder``).
    """

    def __init__(self, kind: Literal["none", "memory", "disk"], folder: str | Path) -> None:
        if kind not in ("none", "memory", "disk"):
            raise UserError(f"data.cache = {kind!r}: choose none, memory or disk")
        self.kind, self.folder = kind, Path(folder)

    def get(self, key: str, make: Callable[[], Entry]) -> Entry:
        """Return what ``make()`` returns or once returned."""
        if self.kind == "memory":
            if key not in _in_memory:
                _in_memory[key] = make()
            return _in_memory[key]
        if self.kind == "none":
            return make()
        folder = self.folder / key
        for _ in range(2):
            prepare(folder, lambda path: _save(path, make()))
            entry = _load(folder)
            if entry is not None:
                return entry
            discard(folder)  # complete by its manifest, yet not readable as what it says
        return make()


def _save(folder: Path, entry: Entry) -> dict[str, Any]:
    features, batches = entry
    (folder / FEATURES).write_text(features.to_json(), "utf-8")
    for split, batch in batches.items():
        for name, column in batch.columns().items():
            np.save(folder / f"{split}.{name}.npy", column.numpy(), allow_pickle=False)
    return {"splits": {split: len(batch) for split, batch in batches.items()}}


def _load(folder: Path) -> Entry | None:
    """The entry in ``folder``, columns mapped copy-on-write; None when it cannot be one."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    try:
        features = Features.from_json((folder / FEATURES).read_text("utf-8"))
        batches = {}
        for split, rows in manifest["splits"].items():
            columns = {}
            for name in COLUMNS:
                path = folder / f"{split}.{name}.npy"
                if name != "labels" or path.name in manifest["files"]:
                    # Mode "c": writes stay private to this process and never reach the file.
                    columns[name] = torch.from_numpy(
                        np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
                    )
            batch = Batch(**columns)
            widths = (batch.categorical.shape[1], batch.dense.shape[1])
            if len(batch) != rows or widths != (len(features.cardinalities), features.num_dense):
                return None
            batches[split] = batch
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return features, batches
