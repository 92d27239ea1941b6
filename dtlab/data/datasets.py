"""``load_dataset``: the one door to flights, clicks and your own Parquet.

- Files that must be made first are made by one process while the others wait (``prepare``).
- Vocabularies, bucket edges and scales are fitted on the training rows; ``refit`` fits them on training and
  validation rows for the last run before the test.
- The transformed columns can be kept in memory or on disk, keyed by the content of the data and the features.

Every rank may call it at once; no process group is needed. Taught in lessons 03 and 11.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dtlab.data import cache, clicks, flights, parquet
from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.features import REVISION, Features
from dtlab.data.prepare import prepare
from dtlab.data.shards import read_split
from dtlab.data.source import SPLITS, Source
from dtlab.errors import UserError

__all__ = ["SPLITS", "DataConfig", "Dataset", "Source", "find_source", "load_dataset"]


@dataclass(frozen=True)
class Dataset:
    """Three splits, each a Batch in memory, and the features that made them.

    ``cardinalities`` and ``num_dense`` are what a model needs to be built; ``version`` goes into run records.
    ``best_auc`` is the test AUC of the true probabilities where they are known (clicks), else None.
    ``kept_in`` is the folder of the transformed columns when the cache is on disk, else None.
    """

    name: str
    train: Batch
    validation: Batch
    test: Batch
    features: Features
    version: str
    best_auc: float | None = None
    kept_in: Path | None = None
    _source: Source | None = field(default=None, repr=False, compare=False)
    _cache: cache.Cache | None = field(default=None, repr=False, compare=False)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of indices of each categorical column."""
        return self.features.cardinalities

    @property
    def num_dense(self) -> int:
        """Number of dense columns."""
        return self.features.num_dense

    @property
    def cache_counts(self) -> cache.CacheCounts | None:
        """How the cache answered: hits, misses, rebuilds, waits."""
        return None if self._cache is None else self._cache.counts

    def refit(self) -> Dataset:
        """The same data with training = training + validation rows, features fitted on both.

        Used once the number of epochs has been chosen on the validation rows. ``validation`` stays there
        (now seen in training), the test rows are the same. Vocabularies may grow, so build a new model.
        """
        if self._source is None or self._cache is None:
            raise ValueError("refit needs a dataset made by load_dataset")
        return _assemble(self._source, self._cache, ("train", "validation"))


def load_dataset(config: DataConfig | None = None, *, root: str | Path | None = None) -> Dataset:
    """Load a data set, preparing it first if needed. ``root`` overrides ``config.root``.

    Raises UserError when the configuration and the data do not fit together.

    >>> dataset = load_dataset(DataConfig(name="flights"))  # doctest: +SKIP
    >>> len(dataset.train)  # doctest: +SKIP
    231423
    """
    config = DataConfig() if config is None else config
    place = config.folder if root is None else Path(root)
    source = find_source(config, place)
    hours = config.cache_max_age_hours
    age = None if hours is None else hours * 3600
    return _assemble(source, cache.Cache(config.cache, place / "cache", max_age_seconds=age), ("train",))


def find_source(config: DataConfig, root: Path) -> Source:
    """The rows that ``config`` names before they are features, made below ``root`` first if needed.

    Raises:
        UserError: the configuration and the data do not fit together.
    """
    return {"flights": _flights, "clicks": _clicks, "parquet": parquet.source}[config.name](config, root)


def _assemble(source: Source, kept: cache.Cache, fitted_on: tuple[str, ...]) -> Dataset:
    """Fit on the named splits, transform all three, through the cache."""

    def make() -> tuple[Features, dict[str, Batch]]:
        tables = {split: source.read(split) for split in SPLITS}
        tables["train"] = pa.concat_tables([tables[split] for split in fitted_on])
        features = Features.fit(tables["train"], source.spec)
        return features, {split: features.transform(table) for split, table in tables.items()}

    text = repr((REVISION, source.name, source.version, source.spec, fitted_on))
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    features, batches = kept.get(key, make)
    return Dataset(
        name=source.name,
        train=batches["train"],
        validation=batches["validation"],
        test=batches["test"],
        features=features,
        version=source.version,
        best_auc=source.best_auc,
        kept_in=kept.place(key) if kept.kind == "disk" else None,
        _source=source,
        _cache=kept,
    )


def _flights(config: DataConfig, root: Path) -> Source:
    key = flights.source_key()
    folder = root / "flights" / key
    prepare(folder, flights.build)
    return Source(
        "flights", key, flights.SPEC, lambda split: read_split(folder, split, flights.SPEC.columns())
    )


def _clicks(config: DataConfig, root: Path) -> Source:
    spec = clicks.spec(config.label)
    key = clicks.source_key(config.rows, config.seed)
    folder = root / "clicks" / key
    made = prepare(folder, lambda path: clicks.build(path, config.rows, config.seed))
    if not all(made["rows"].values()):
        raise UserError(f"data.rows = {config.rows}: too few for three parts; give 1000 or more")
    best = made["best_auc"][spec.label]
    return Source("clicks", key, spec, lambda split: read_split(folder, split, spec.columns()), best)
