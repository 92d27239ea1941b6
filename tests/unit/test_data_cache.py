"""The cache of transformed columns: the same batches from none, memory and disk; bad entries are rebuilt."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset


@pytest.fixture
def load(tmp_path):
    def write(seed=0):
        rng = np.random.default_rng(seed)
        table = pa.table(
            {"x": rng.normal(size=500), "c": rng.integers(0, 9, 500), "y": rng.integers(0, 2, 500)}
        )
        pq.write_table(table, tmp_path / "log.parquet")

    def load(cache, **changes):
        names = {"label": "y", "numeric": ("x",), "categorical": ("c",)}
        path = {"path": str(tmp_path / "log.parquet"), "root": str(tmp_path / "data")}
        return load_dataset(DataConfig(name="parquet", cache=cache, **path, **{**names, **changes}))

    write()
    load.write = write
    load.folder = tmp_path / "data" / "cache"
    return load


def equal(one, other):
    return all(
        torch.equal(column, getattr(other, split).columns()[name])
        for split in ("train", "validation", "test")
        for name, column in getattr(one, split).columns().items()
    )


def entries(load):
    return [path for path in load.folder.iterdir() if not path.name.startswith(".")]


def test_none_memory_and_disk_give_the_same_batches(load):
    plain = load("none")
    for cache in ("memory", "disk"):
        first, second = load(cache), load(cache)
        assert equal(plain, first)
        assert equal(plain, second)
        assert second.features == plain.features
        assert equal(plain.refit(), second.refit())


def test_memory_keeps_the_very_tensors_and_none_does_not(load):
    assert load("memory").train.ids is load("memory").train.ids
    assert load("none").train.ids is not load("none").train.ids


def test_disk_is_read_the_second_time(load):
    load("disk")
    (entry,) = entries(load)
    stamp = (entry / "manifest.json").stat().st_mtime_ns
    load("disk")
    assert (entry / "manifest.json").stat().st_mtime_ns == stamp


def test_changed_data_or_columns_get_an_entry_of_their_own(load):
    one = load("disk")
    load.write(seed=1)
    other = load("disk")
    assert not equal(one, other)
    assert equal(other, load("none"))
    assert load("disk", numeric=()).num_dense == 0
    assert len(entries(load)) == 3


def test_writing_into_a_batch_does_not_reach_the_cache(load):
    first = load("disk")
    first.train.dense.zero_()
    assert equal(load("disk"), load("none"))


def torn_column(entry):
    path = entry / "train.dense.npy"
    path.write_bytes(path.read_bytes()[:-100])


def foreign_column(entry):
    path = entry / "train.dense.npy"
    path.write_bytes(bytes(path.stat().st_size))


def other_shape(entry):
    rows = np.load(entry / "train.dense.npy")
    np.save(entry / "train.dense.npy", rows.reshape(-1, 3, rows.shape[1]) if len(rows) % 3 == 0 else rows.T)


def other_type(entry):
    np.save(entry / "train.ids.npy", np.load(entry / "train.ids.npy").astype(np.float64))


def no_manifest(entry):
    (entry / "manifest.json").unlink()


def foreign_manifest(entry):
    (entry / "manifest.json").write_text(json.dumps({"files": {}}))


def a_file_in_its_place(entry):
    shutil.rmtree(entry)
    entry.write_text("not a folder")


def foreign_features(entry):
    path = entry / "features.json"
    path.write_text("x" * path.stat().st_size)


@pytest.mark.parametrize(
    "spoil",
    [torn_column, foreign_column, other_shape, other_type, no_manifest, foreign_manifest, a_file_in_its_place,
     foreign_features],
)  # fmt: skip
def test_a_torn_or_foreign_entry_is_rebuilt(load, spoil):
    load("disk")
    (entry,) = entries(load)
    spoil(entry)
    assert equal(load("disk"), load("none"))
    assert equal(load("disk"), load("none"))
    assert (entry / "manifest.json").is_file()
    assert entries(load) == [entry]
    assert not [path for path in load.folder.iterdir() if "building" in path.name]
