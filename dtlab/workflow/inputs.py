"""What each step depends on, by name, so that a step that runs again can say what has changed.

A step depends on the content of what the steps before it left, on the settings that decide its outputs, on
the source of the parts of dtlab that do its work, and on the versions of the packages that those use. How
often a line is printed or a checkpoint saved is none of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dtlab.data.config import DataConfig
from dtlab.workflow.config import Pipeline

__all__ = ["STEPS", "changed", "inputs_of"]

STEPS = ("prepare", "features", "train", "evaluate", "package")
# A step -> the steps whose outputs it reads.
AFTER = {
    "prepare": (),
    "features": ("prepare",),
    "train": ("features",),
    "evaluate": ("prepare", "train"),
    "package": ("prepare", "train", "evaluate"),
}
_CODE = {
    "prepare": ("data", "workflow/steps.py"),
    "features": ("data", "workflow/steps.py"),
    "train": ("data", "models", "parallel", "ranks", "train"),
    "evaluate": (
        "data",
        "models",
        "train",
        "workflow/steps.py",
        "workflow/serving.py",
        "workflow/latency.py",
    ),
    "package": ("workflow/steps.py", "workflow/serving.py", "workflow/archive.py"),
}
_PACKAGES = {
    "prepare": ("numpy", "pyarrow"),
    "features": ("numpy", "pyarrow"),
    "train": ("numpy", "torch"),
    "evaluate": ("numpy", "pyarrow", "torch", "torchmetrics"),
    "package": (),
}
_DATA = ("name", "label", "id", "split", "validation_fraction", "test_fraction", "rows", "seed", "stream")
_COLUMNS = ("categorical", "numeric", "hashed", "hash_buckets")
_OF_TRAINING = {
    "data": ("window",),
    "model": None,
    "optim": None,
    "schedule": None,
    "precision": None,
    "parallel": None,
    "stopping": None,
    "run": ("seed", "refit", "engine", "dtype", "eval_batch", "max_steps"),
}
_OF_EVALUATION = ("requests", "warmup", "batch", "threads")


def inputs_of(step: str, pipeline: Pipeline, before: Mapping[str, str], raw: str) -> dict[str, Any]:
    """Everything that the outputs of ``step`` depend on, as plain values by name.

    Args:
        step: one of ``STEPS``.
        pipeline: the settings.
        before: step -> digest of its outputs, for the steps that this one reads.
        raw: the version of the raw rows, see ``raw_version``.
    """
    found: dict[str, Any] = {}
    tables = pipeline.train.to_dict()
    if step == "prepare":
        found["raw data"] = raw
        found |= {f"data.{name}": tables["data"][name] for name in _DATA}
    if step in ("prepare", "features"):
        found |= {f"data.{name}": tables["data"][name] for name in _COLUMNS}
    if step == "features":
        found |= {f"run.{name}": tables["run"][name] for name in ("refit", "max_steps")}
        found["data.root"] = str(pipeline.train.data.folder.absolute())
    if step == "train":
        found["pipeline.nproc"] = pipeline.options.nproc
        for table, names in _OF_TRAINING.items():
            found |= {f"{table}.{name}": tables[table][name] for name in names or tables[table]}
    if step == "evaluate":
        options = pipeline.options
        found |= {f"pipeline.{name}": getattr(options, name) for name in _OF_EVALUATION}
    found |= {f"output of {name}": before[name] for name in AFTER[step]}
    found |= {f"code of dtlab/{part}": code_digest(part) for part in _CODE[step]}
    return found | {f"version of {name}": _version(name) for name in _PACKAGES[step]}


def raw_version(data: DataConfig, folder: Path) -> str:
    """Stands for the content of the raw rows; a file that has not been touched is not read again.

    Args:
        data: which rows.
        folder: of the pipeline, where the digests of files are kept.

    Raises:
        UserError: there are no such files.
    """
    from dtlab.data import clicks, flights, parquet
    from dtlab.data.prepare import file_digest, kept_digest

    if data.name == "flights":
        return flights.source_key()
    if data.name == "clicks":
        return clicks.source_key(data.rows, data.seed)
    paths = parquet.named(data).paths
    return kept_digest(paths, folder / "digests") if folder.is_dir() else file_digest(paths)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of inputs, in words.

    >>> changed({"optim.lr": 0.1, "code of dtlab/data": "a"}, {"optim.lr": 0.2, "code of dtlab/data": "b"})
    ['optim.lr 0.1 -> 0.2', 'code of dtlab/data']
    """
    found = []
    for name in [*new, *(name for name in old if name not in new)]:
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        is_digest = name.startswith(("code ", "output ", "raw "))
        found.append(name if is_digest else f"{name} {before} -> {now}")
    return found


@cache
def code_digest(part: str) -> str:
    """Stands for the source of a part of dtlab: a folder or a file inside the package."""
    place = Path(__file__).resolve().parent.parent / part
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(place.parent).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


@cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
