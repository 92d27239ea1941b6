"""The cache under a stream: decoded once, counted, rebuilt when it is too old or torn, keyed by content."""

import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.data import cache as cache_module
from dtlab.data import prepare as prepare_module
from dtlab.data.batch import Batch
from dtlab.data.cache import Cache, CacheCounts
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream_loader import StreamLoader
from dtlab.errors import UserError

DAY = 24 * 3600.0
SPEC = FeatureSpec(categorical=("c",), numeric=("x",), label="y")


@pytest.fixture
def log(tmp_path):
    def write(seed=0):
        rng = np.random.default_rng(seed)
        whole = pa.table(
            {"c": rng.integers(0, 5, 500), "x": rng.normal(size=500), "y": rng.integers(0, 2, 500)}
        )
        for number in range(2):
            part = whole.slice(250 * number, 250)
            pq.write_table(part, tmp_path / "log" / f"{number}.parquet", row_group_size=60)
        return whole

    (tmp_path / "log").mkdir()
    write.folder = tmp_path / "log"
    write.features = Features.fit(write(), SPEC)
    return write


def stream(log, cache):
    return ParquetStream(log.folder, log.features, 64, window=2, seed=3, rank=0, world_size=1, cache=cache)


def equal(one, other):
    pairs = zip(list(one), list(other), strict=True)
    return all(torch.equal(c, b.columns()[name]) for a, b in pairs for name, c in a.columns().items())


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_kept_stream_gives_the_same_batches_and_decodes_once(log, tmp_path, kind):
    cache_module._in_memory.clear()
    first = stream(log, Cache(kind, tmp_path / "cache"))
    assert first.counts.groups_read == 10
    cache = Cache(kind, tmp_path / "cache")
    again = stream(log, cache)
    assert (again.counts.groups_read, cache.counts) == (0, CacheCounts(hits=1))
    plain = stream(log, None)
    assert equal(StreamLoader(again), StreamLoader(plain))
    assert equal(StreamLoader(first), uncached_loader(log))
    assert again.counts.groups_read == 0


def uncached_loader(log):
    return StreamLoader(stream(log, Cache("none", "nowhere")), prefetch=0)


def test_changed_content_gets_an_entry_of_its_own_and_the_same_content_elsewhere_does_not(log, tmp_path):
    cache = Cache("disk", tmp_path / "cache")
    stream(log, cache)
    log(seed=1)
    changed = stream(log, cache)
    assert equal(changed, stream(log, None))
    for path in log.folder.iterdir():  # new times, same bytes
        os.utime(path, (1, 1))
    stream(log, cache)
    assert cache.counts == CacheCounts(hits=1, misses=2)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_an_entry_older_than_a_day_is_rebuilt_once_and_a_younger_one_is_used(
    log, tmp_path, kind, monkeypatch
):
    cache_module._in_memory.clear()
    real = time.time
    caches = [Cache(kind, tmp_path / "cache", max_age_seconds=DAY) for _ in range(2)]
    stream(log, caches[0])
    monkeypatch.setattr(time, "time", lambda: real() + DAY - 60)
    stream(log, caches[0])
    assert caches[0].counts == CacheCounts(hits=1, misses=1)
    monkeypatch.setattr(time, "time", lambda: real() + DAY + 60)
    mapped = stream(log, Cache(kind, tmp_path / "cache"))  # no maximum age: still good
    stream(log, caches[1])
    stream(log, caches[1])
    assert caches[1].counts == CacheCounts(hits=1, rebuilds=1)
    assert equal(mapped, stream(log, None))  # what was mapped before the rebuild stays readable


def test_an_entry_from_a_clock_far_ahead_does_not_live_for_ever(log, tmp_path, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 400 * DAY)
    stream(log, Cache("disk", tmp_path / "cache"))
    monkeypatch.setattr(time, "time", real)
    cache = Cache("disk", tmp_path / "cache", max_age_seconds=DAY)
    stream(log, cache)
    assert cache.counts == CacheCounts(rebuilds=1)


def torn(entry):
    path = entry / "table.dense.npy"
    path.write_bytes(path.read_bytes()[:-100])


def zeroed(entry):
    path = entry / "table.ids.npy"
    path.write_bytes(bytes(path.stat().st_size))


def unlisted(entry):
    (entry / "manifest.json").write_text("{}")


@pytest.mark.parametrize("spoil", [torn, zeroed, unlisted])
def test_a_torn_entry_is_passed_over_and_rebuilt(log, tmp_path, spoil):
    stream(log, Cache("disk", tmp_path / "cache"))
    (entry,) = [path for path in (tmp_path / "cache").iterdir() if (path / "manifest.json").is_file()]
    spoil(entry)
    cache = Cache("disk", tmp_path / "cache")
    assert equal(stream(log, cache), stream(log, None))
    assert cache.counts == CacheCounts(rebuilds=1)
    assert equal(stream(log, cache), stream(log, None))
    assert cache.counts == CacheCounts(hits=1, rebuilds=1)


def test_a_failed_build_leaves_nothing_and_is_not_kept(tmp_path):
    def batches():
        nothing = torch.zeros(2, 0, dtype=torch.int64)
        yield Batch(torch.arange(2), nothing, torch.zeros(2, 1))
        raise UserError("the second file is damaged")

    cache = Cache("disk", tmp_path)
    with pytest.raises(UserError, match="damaged"):
        cache.columns("key", 4, batches)
    with pytest.raises(UserError, match="was to have 4 rows and has 2"):
        cache.columns("key", 4, lambda: iter([next(batches())]))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert cache.counts == CacheCounts()


def test_content_is_hashed_once_as_long_as_the_files_stay(log, tmp_path, monkeypatch):
    cache = Cache("disk", tmp_path / "cache")
    paths = sorted(log.folder.iterdir())
    digest = cache.digest(paths)
    monkeypatch.setattr(prepare_module, "file_digest", lambda _: "0" * 16)
    assert cache.digest(paths) == digest
    log(seed=1)
    assert cache.digest(paths) == "0" * 16


def test_a_data_set_counts_and_ages_its_cache(log, tmp_path, monkeypatch):
    config = DataConfig(
        name="parquet", path=str(log.folder), root=str(tmp_path / "data"), label="y", numeric=("x",),
        cache="disk", cache_max_age_hours=24,
    )  # fmt: skip
    assert load_dataset(config).cache_counts == CacheCounts(misses=1)
    assert load_dataset(config).cache_counts == CacheCounts(hits=1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + DAY + 60)
    assert load_dataset(config).cache_counts == CacheCounts(rebuilds=1)
    with pytest.raises(UserError, match="cache_max_age_hours"):
        DataConfig(cache_max_age_hours=0)
    with pytest.raises(UserError, match="max_age_seconds"):
        Cache("disk", tmp_path, max_age_seconds=-1)


def test_workers_over_mapped_columns_are_refused(log, tmp_path):
    with pytest.raises(UserError, match="use num_workers=0"):
        StreamLoader(stream(log, Cache("disk", tmp_path / "cache")), num_workers=2)
