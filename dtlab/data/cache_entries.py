"""What an entry of the cache on disk looks like: ``.npy`` files, one per column block, mapped when loaded.

Loading gives None for whatever cannot be an entry: a torn file, a foreign one, another shape or type. Nothing
is unpickled. Mapped columns are copy-on-write: what a training loop writes into them stays in its process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
import torch

from dtlab.data.batch import Batch
from dtlab.data.features import Features
from dtlab.data.prepare import read_manifest
from dtlab.errors import UserError

Entry = tuple[Features, dict[str, Batch]]
FEATURES = "features.json"
COLUMNS = {"ids": torch.int64, "categorical": torch.int64, "dense": torch.float32, "labels": torch.float32}
WIDE = ("categorical", "dense")
TABLE = "table"
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadZipFile)


def save(folder: Path, entry: Entry) -> dict[str, Any]:
    """Write features and splits; returns what the manifest says of them."""
    features, batches = entry
    (folder / FEATURES).write_text(features.to_json(), "utf-8")
    for split, batch in batches.items():
        for name, column in batch.columns().items():
            np.save(folder / f"{split}.{name}.npy", column.numpy(), allow_pickle=False)
    return {"splits": {split: len(batch) for split, batch in batches.items()}}


def load(folder: Path) -> Entry | None:
    """The features and splits in ``folder``; None when they cannot be such."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    try:
        features = Features.from_json((folder / FEATURES).read_text("utf-8"))
        batches = {split: _mapped(folder, split, manifest) for split in manifest["splits"]}
        for split, rows in manifest["splits"].items():
            widths = (batches[split].categorical.shape[1], batches[split].dense.shape[1])
            if len(batches[split]) != rows or widths != (len(features.cardinalities), features.num_dense):
                return None
            if not is_within(batches[split], features):
                return None
    except _UNREADABLE:
        return None
    return features, batches


def save_batches(folder: Path, rows: int, batches: Iterator[Batch]) -> dict[str, Any]:
    """Write one table batch by batch, at most one of them in memory; returns what the manifest says of it."""
    written = 0
    with contextlib.ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for batch in batches:
            for name, column in batch.columns().items():
                array = np.ascontiguousarray(column.numpy())
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{TABLE}.{name}.npy").open("wb"))
                    header = {"descr": array.dtype.str, "fortran_order": False}
                    np.lib.format.write_array_header_1_0(
                        files[name], {**header, "shape": (rows, *array.shape[1:])}
                    )
                # Written, not mapped: a full disk is then an error of this call and not a signal.
                files[name].write(array.data)
            written += len(batch)
    if written != rows:
        raise UserError(
            f"the table was to have {rows} rows and has {written}: its files changed; start again"
        )
    return {"splits": {TABLE: rows}}


def load_table(folder: Path) -> Batch | None:
    """The table that ``save_batches`` wrote; None when it cannot be one."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    try:
        table = _mapped(folder, TABLE, manifest)
        return table if len(table) == manifest["splits"][TABLE] else None
    except _UNREADABLE:
        return None


def is_within(batch: Batch, features: Features) -> bool:
    """Whether the columns of ``batch`` are those of ``features``, and each index is below its cardinality."""
    sizes = torch.tensor(features.cardinalities, dtype=torch.int64)
    if batch.categorical.shape[1] != len(sizes) or batch.dense.shape[1] != features.num_dense:
        return False
    if not batch.categorical.numel():
        return True
    lowest, highest = batch.categorical.min(), batch.categorical.amax(dim=0)
    return bool(lowest >= 0) and bool((highest < sizes).all())


def _mapped(folder: Path, split: str, manifest: dict[str, Any]) -> Batch:
    columns = {}
    for name, kind in COLUMNS.items():
        path = folder / f"{split}.{name}.npy"
        if name != "labels" or path.name in manifest["files"]:
            # Mode "c": writes stay private to this process and never reach the file.
            columns[name] = torch.from_numpy(np.asarray(np.load(path, mmap_mode="c", allow_pickle=False)))
            if columns[name].dtype != kind or columns[name].dim() != (2 if name in WIDE else 1):
                raise TypeError(f"{path.name} holds another type or shape")
    return Batch(**columns)
