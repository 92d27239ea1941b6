"""What a run keeps on disk and finds damaged is made again, or named with its folder."""

import contextlib
import json
import resource
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtlab.data.config import DataConfig
from dtlab.data.stream_dataset import load_stream
from dtlab.errors import UserError

ROWS = 600


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "x": rng.normal(size=ROWS),
            "c": [f"c{n}" for n in rng.integers(0, 5, ROWS)],
            "y": rng.integers(0, 2, ROWS),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    return DataConfig(
        name="parquet", path=str(tmp_path / "x.parquet"), root=str(tmp_path / "data"), label="y", id="id",
        categorical=("c",), numeric=("x",), stream=True,
    )  # fmt: skip


def kept(config, pattern):
    (path,) = (config.folder / "streams").glob(pattern)
    return path


def overwrite(path, old, new):
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new, 1))


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def codes_zeroed(path):
    codes = np.load(path)
    np.save(path, np.zeros_like(codes))


def other_type(path):
    codes = np.load(path)
    np.save(path, np.zeros(len(codes) // 8, dtype=np.int64))
    assert path.stat().st_size == 128 + ROWS


@pytest.mark.parametrize("damage", [zeroed, codes_zeroed, other_type])
def test_split_codes_that_were_overwritten_are_made_again(config, damage):
    before = load_stream(config)
    counts = [len(before.train), len(before.validation), len(before.test)]
    damage(kept(config, "*/splits.npy"))
    after = load_stream(config)
    assert [len(after.train), len(after.validation), len(after.test)] == counts


def test_ids_that_were_overwritten_are_made_again(config):
    before = load_stream(config)
    ids = before.ids(before.test).tolist()
    zeroed(kept(config, "*/ids.npy"))
    after = load_stream(config)
    assert after.ids(after.test).tolist() == ids


@pytest.mark.parametrize(
    ("old", "new"), [(b'"spec"', b'"spek"'), (b'"label": "y"', b'"label": "z"'), (b"{", b"[")]
)
def test_features_that_were_replaced_are_fitted_again(config, old, new):
    before = load_stream(config).features
    overwrite(kept(config, "*/features.json"), old, new)
    assert load_stream(config).features == before


@pytest.mark.parametrize(
    "manifest",
    [{"files": {}}, {"files": {}, "digest": 3}, {"files": {}, "digest": "../x"}, [], None, "[" * 5000],
)
def test_an_odd_manifest_of_a_digest_is_made_again(config, manifest):
    version = load_stream(config).version
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    kept(config, "digests/*/manifest.json").write_text(text)
    assert load_stream(config).version == version


def test_kept_columns_out_of_range_name_their_folder(config):
    config = replace(config, cache="disk")
    data = load_stream(config)
    data.stream(data.train, 64, rank=0, world_size=1)
    (path,) = (config.folder / "cache").glob("*/table.categorical.npy")
    columns = np.load(path)
    columns[:] = 10**6
    np.save(path, columns)
    again = load_stream(config)
    with pytest.raises(UserError, match=f"{path.parent} are damaged: delete"):
        list(again.stream(again.train, 64, rank=0, world_size=1))


def test_kept_columns_of_another_type_are_made_again(config):
    config = replace(config, cache="disk")
    data = load_stream(config)
    expected = data.stream(data.train, 64, rank=0, world_size=1).table.categorical.tolist()
    (path,) = (config.folder / "cache").glob("*/table.categorical.npy")
    np.save(path, np.load(path).astype(np.float64))
    again = load_stream(config)
    assert again.stream(again.train, 64, rank=0, world_size=1).table.categorical.tolist() == expected
    assert again.cache_counts.rebuilds == 1


@contextlib.contextmanager
def largest_file(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def columns_of(config):
    data = load_stream(config)
    return data.stream(data.train, 64, rank=0, world_size=1)


@pytest.mark.parametrize("made_before", [False, True], ids=["index", "columns"])
def test_a_limit_of_file_sizes_is_said_with_folder_and_way_out(config, made_before):
    config = replace(config, cache="disk")
    if made_before:
        load_stream(config)
    said = pytest.raises(UserError, match=r"cannot prepare data in .*ulimit -f.*data\.root")
    with largest_file(400), said:
        columns_of(config)
