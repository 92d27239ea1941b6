"""Your own Parquet without the table in memory: what ``load_dataset`` gives, row group by row group
(lesson 11).

- One process reads label, id and split columns once and writes down which row belongs to which split, one
  byte a row; then it fits the features on the training rows, piece by piece. The others wait and map the
  result, and later runs find it: it is keyed by the content of the files.
- ``version``, splits, ids and features are those of the table in memory (scales to about 1e-14), so
  ``dtlab predict`` and evaluation do not depend on how a model was trained.
- In memory stay, per process, the rows of a window; while the ids are checked, 8 bytes a row of one process.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dtlab.data import columns, parquet
from dtlab.data.cache import Cache, CacheCounts
from dtlab.data.config import DataConfig
from dtlab.data.features import REVISION, Features
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.prepare import kept_digest, load_prepared
from dtlab.data.row_group_reader import RowGroupReader, Stamps, stamps
from dtlab.data.selection import Selection
from dtlab.data.source import SPLITS

FEATURES, CODES, IDS = "features.json", "splits.npy", "ids.npy"


@dataclass(frozen=True)
class StreamDataset:
    """Three splits of one table on disk, and the features fitted on its training rows.

    Has what a ``Dataset`` has; ``train``, ``validation`` and ``test`` are rows to be read and not a Batch.
    """

    named: parquet.Named
    folder: Path
    """Where the index lies and the features are kept."""
    version: str
    features: Features
    fitted_on: tuple[str, ...]
    _cache: Cache
    _written: Stamps
    name: str = "parquet"
    best_auc: float | None = None

    @property
    def train(self) -> Selection:
        """The rows that the features were fitted on."""
        return self._rows(self.fitted_on)

    @property
    def validation(self) -> Selection:
        return self._rows(("validation",))

    @property
    def test(self) -> Selection:
        return self._rows(("test",))

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of indices of each categorical column."""
        return self.features.cardinalities

    @property
    def num_dense(self) -> int:
        """Number of dense columns."""
        return self.features.num_dense

    @property
    def cache_counts(self) -> CacheCounts:
        """How the cache answered: hits, misses, rebuilds, waits."""
        return self._cache.counts

    def ids(self, rows: Selection) -> np.ndarray:
        """The ids of some rows in stored order, [N] int64."""
        places = rows.places(0, rows.num_stored)
        if self.named.config.id is None:
            return places
        return np.load(self.folder / IDS, mmap_mode="r", allow_pickle=False)[places]

    def stream(self, rows: Selection, global_batch: int, **arguments: Any) -> ParquetStream:
        """This rank's batches of some rows; ``arguments`` are those of ``ParquetStream``."""
        arguments = {"window": self.named.config.window, **arguments}
        return ParquetStream(
            self.named.paths,
            self.features,
            global_batch,
            rows=rows,
            written=self._written,
            cache=self._cache,
            **arguments,
        )

    def refit(self) -> StreamDataset:
        """The same data with training = training + validation rows, features fitted on both."""
        both = ("train", "validation")
        rows = self._rows(both)
        features = _features(self.named, self.folder, rows, self._written)
        return dataclasses.replace(self, features=features, fitted_on=both)

    def _rows(self, splits: tuple[str, ...]) -> Selection:
        return _selection(self.folder, self.version, splits)


def load_stream(config: DataConfig, *, root: str | Path | None = None) -> StreamDataset:
    """Index ``config``'s files and fit the features, unless that was done before. Every rank may call it.

    Raises:
        UserError: the configuration and the files do not fit together.

    >>> data = load_stream(DataConfig(name="parquet", path="log/", label="y", ...))     # doctest: +SKIP
    >>> loader = StreamLoader(data.stream(data.train, global_batch=4096))               # doctest: +SKIP
    """
    place = config.folder if root is None else Path(root)
    found = parquet.named(config)
    _require_types(found)
    written = stamps(found.paths)  # before anything is read: what is changed from here on is noticed
    version = found.version(kept_digest(found.paths, place / "streams" / "digests"))
    key = hashlib.blake2b(repr((version, config.label)).encode(), digest_size=8).hexdigest()
    folder = place / "streams" / key
    rows = load_prepared(
        folder,
        lambda path: _index(found, written, path),
        lambda manifest: _whole_index(found, folder, version, manifest),
    )
    hours = config.cache_max_age_hours
    return StreamDataset(
        named=found,
        folder=folder,
        version=version,
        features=_features(found, folder, rows, written),
        fitted_on=("train",),
        _cache=Cache(config.cache, place / "cache", max_age_seconds=None if hours is None else hours * 3600),
        _written=written,
    )


def _require_types(found: parquet.Named) -> None:
    """Refuse what no row can mend, such as text where a number is declared, before any row is read."""
    nothing, spec = found.schema.empty_table(), found.spec
    for name in (*spec.categorical, *spec.hashed):
        columns.encode(nothing, name)
    for name in spec.numeric:
        columns.numbers(nothing, name)
    columns.labels(nothing, spec.label or "")
    columns.ids(nothing, found.config.id)


def _index(found: parquet.Named, written: Stamps, path: Path) -> dict[str, Any]:
    """Write the split and the id of every row; returns the rows of each split."""
    config = found.config
    used = [name for name in (config.label, config.id, config.split) if name is not None]
    reader = RowGroupReader(found.paths, used, written=written)
    codes = np.empty(reader.num_rows, dtype=np.uint8)
    ids = np.arange(reader.num_rows, dtype=np.int64)
    for group, table in reader.batches():
        here = slice(group.first_row, group.first_row + group.rows)
        columns.labels(table, config.label or "", group.first_row)
        if config.id is not None:
            ids[here] = columns.ids(table, config.id)
        codes[here] = parquet.split_codes(table, ids[here], config)
    parquet.require_rows(reader.num_rows, found.paths, "data.path")
    parquet.require_unique(ids, config.id)
    counts = np.bincount(codes, minlength=len(SPLITS))
    parquet.require_parts(counts, config)
    np.save(path / CODES, codes, allow_pickle=False)
    if config.id is not None:
        np.save(path / IDS, ids, allow_pickle=False)
    return {"rows": dict(zip(SPLITS, counts.tolist(), strict=True))}


def _whole_index(
    found: parquet.Named, folder: Path, version: str, manifest: dict[str, Any]
) -> Selection | None:
    """The training rows; None for files that are not those of ``_index``."""
    try:
        counts = [len(_selection(folder, version, (split,))) for split in SPLITS]
        rows = _selection(folder, version, ("train",))
        if counts != [manifest["rows"][split] for split in SPLITS] or sum(counts) != rows.num_stored:
            return None
        if found.config.id is not None:
            ids = np.load(folder / IDS, mmap_mode="r", allow_pickle=False)
            if ids.dtype != np.int64 or ids.shape != (rows.num_stored,):
                return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadZipFile):
        return None
    return rows


def _selection(folder: Path, version: str, splits: tuple[str, ...]) -> Selection:
    codes = tuple(SPLITS.index(split) for split in splits)
    return Selection(folder / CODES, codes, f"{version} {splits}")


def _features(found: parquet.Named, folder: Path, rows: Selection, written: Stamps) -> Features:
    """Fitted on ``rows`` by one process; kept beside the index."""

    def fit(path: Path) -> dict[str, Any]:
        reader = RowGroupReader(found.paths, found.spec.inputs(), rows=rows, written=written)
        features = Features.fit_pieces((table for _, table in reader.batches()), found.spec)
        (path / FEATURES).write_text(features.to_json(), "utf-8")
        return {"rows": len(rows)}

    text = repr((REVISION, rows.key, found.spec))
    place = folder.with_name(f"{folder.name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}")

    def load(_: dict[str, Any]) -> Features | None:
        try:
            features = Features.from_json((place / FEATURES).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return features if features.spec == found.spec else None

    return load_prepared(place, fit, load)
