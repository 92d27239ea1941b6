"""Which data a run reads: the ``[data]`` table of a configuration, light enough for ``dtlab --help``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dtlab.errors import UserError
from dtlab.settings_types import settle_types

MOST_BUCKETS = 2**31 - 1
_PARQUET_ONLY = ("path", "id", "categorical", "numeric", "hashed", "split")


def most_workers() -> int:
    """Loader workers that a rank may have: 4 for each core, and 64 on a small machine."""
    return max(64, 4 * (os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Names a data set and, for your own Parquet, its columns.

    >>> DataConfig(name="flights").cache
    'none'
    """

    name: Literal["flights", "clicks", "parquet", "text"] = "flights"
    """flights (real, 327,346 rows), clicks (generated, any size), parquet (your own files) or text (the bytes
    of Python's standard library, for the small GPT)."""
    root: str | None = None
    """Folder where prepared data lives. By default $DTLAB_DATA, or the data folder of the project around the
    working directory, or ./data."""
    path: str | None = None
    """parquet: a file, or a folder of .parquet shards."""
    label: str | None = None
    """parquet: column of 0/1 labels. clicks: click (default), favourite or purchase."""
    id: str | None = None
    """parquet: column of unique whole numbers; without it the row number is the id."""
    categorical: tuple[str, ...] = ()
    """parquet: columns read as categories, with a vocabulary fitted on training rows."""
    numeric: tuple[str, ...] = ()
    """parquet: columns read as numbers, scaled by training rows."""
    hashed: tuple[str, ...] = ()
    """parquet: columns of very many categories, hashed into hash_buckets."""
    hash_buckets: int = 100_000
    """Buckets of each hashed column."""
    split: str | None = None
    """parquet: column that says train, validation or test; without it a hash of the id splits the rows."""
    validation_fraction: float = 0.1
    """parquet without a split column: share of rows for validation."""
    test_fraction: float = 0.1
    """parquet without a split column: share of rows for the test."""
    rows: int = 200_000
    """clicks: how many rows to generate."""
    stream: bool = False
    """parquet: read row group by row group, for a table that does not fit into memory (lesson 11)."""
    window: int = 4
    """stream: row groups whose rows are mixed; more mixes better and takes more memory. It is part of the
    order, so a run goes on with the window that it began with."""
    workers: int = 0
    """stream: processes of each rank that read; 0 reads in the rank itself (run.prefetch: in a thread)."""
    seed: int = 0
    """clicks: seed of the generated log."""
    cache: Literal["none", "memory", "disk"] = "none"
    """Where the transformed columns are kept: nowhere, in this process, or on disk between runs."""
    cache_max_age_hours: float | None = None
    """Entries of the cache that are older are rebuilt, by one process; 24 is usual for daily data."""

    def __post_init__(self) -> None:
        settle_types(self, "data")
        for name in ("validation_fraction", "test_fraction"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise UserError(f"data.{name} = {value!r}: must lie between 0 and 1, for example 0.1")
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "data.validation_fraction + data.test_fraction = "
                f"{self.validation_fraction + self.test_fraction}: nothing is left to train on; "
                "make the sum less than 1"
            )
        age = self.cache_max_age_hours
        if age is not None and not age > 0:
            raise UserError(f"data.cache_max_age_hours = {age!r}: give hours above 0, for example 24")
        for name in sorted(set(self.categorical) & set(self.hashed)):
            raise UserError(f"data.hashed = {name!r}: is in data.categorical too; name it in one of them")
        for name in ("hash_buckets", "rows"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name} = {getattr(self, name)!r}: must be at least 1")
        if self.stream and self.name != "parquet":
            raise UserError(
                f"data.stream = True: data.name = {self.name!r} is read as a whole; stream your own Parquet "
                "(data.name = 'parquet')"
            )
        if self.window < 1:
            raise UserError(f"data.window = {self.window!r}: give 1 row group or more, for example 4")
        if not 0 <= self.workers <= most_workers():
            raise UserError(
                f"data.workers = {self.workers!r}: give 0 for none, or the processes of a rank that decode; "
                f"at most {most_workers()} here"
            )
        if self.workers and not self.stream:
            raise UserError(f"data.workers = {self.workers!r}: only a stream has workers; set data.stream")
        if self.workers and self.cache != "none":
            raise UserError(
                f"data.workers = {self.workers!r}: with data.cache = {self.cache!r} nothing is left to read "
                "for them; use data.workers = 0"
            )
        if self.hash_buckets > MOST_BUCKETS:
            raise UserError(f"data.hash_buckets = {self.hash_buckets}: at most {MOST_BUCKETS:,}")
        if self.seed < 0:
            raise UserError(f"data.seed = {self.seed!r}: must not be negative")
        self._check_used()

    def _check_used(self) -> None:
        """A column named for other data would be left out without a word, and another model trained."""
        if self.name == "parquet":
            return
        for field in (*_PARQUET_ONLY, *(() if self.name == "clicks" else ("label",))):
            value = getattr(self, field)
            if value not in (None, ()):
                raise UserError(
                    f"data.{field} = {value!r}: data.name = {self.name!r} does not use it; for your own file "
                    "set data.name = 'parquet'"
                )

    @property
    def folder(self) -> Path:
        """The folder that ``root`` stands for."""
        return Path(self.root) if self.root is not None else default_root()


def default_root() -> Path:
    """Where prepared data lives when nobody says: one folder for the project's root and for its notebooks."""
    named = os.environ.get("DTLAB_DATA")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "data" / "README.md").is_file() and (folder / "notebooks").is_dir():
            return folder / "data"
    return here / "data"
