"""A streamed table has the splits, ids, features and columns of the table in memory, and reads its own."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.row_group_reader import RowGroupReader
from dtlab.data.selection import Selection
from dtlab.data.stream_dataset import load_stream
from dtlab.errors import UserError

ROWS = 1003
SPLITS = ("train", "validation", "test")


def table(rows=ROWS) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "x": pa.array(rng.normal(5, 3, rows), mask=rng.random(rows) < 0.1),
            "c": [f"v{n}" for n in rng.integers(0, 40, rows)],
            "user": rng.integers(0, 500, rows),
            "y": rng.integers(0, 2, rows),
            "id": rng.permutation(rows) + 10_000,
            "part": rng.choice(SPLITS, rows, p=[0.6, 0.2, 0.2]),
            "name": [f"n{n}" for n in range(rows)],
        }
    )


def write(folder, whole, files=3, group=50):
    folder.mkdir(exist_ok=True)
    each = -(-whole.num_rows // files)
    for number in range(files):
        pq.write_table(
            whole.slice(number * each, each), folder / f"part-{number}.parquet", row_group_size=group
        )
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write(tmp_path_factory.mktemp("log") / "log", table())


@pytest.fixture
def config(log, tmp_path):
    return DataConfig(
        name="parquet", path=str(log), root=str(tmp_path / "data"), label="y", id="id", categorical=("c",),
        numeric=("x",), hashed=("user",), hash_buckets=50,
    )  # fmt: skip


def in_id_order(batches):
    whole = type(batches[0]).concat(batches)
    return whole.take(torch.argsort(whole.ids))


@pytest.mark.parametrize(
    "changes", [{}, {"id": None}, {"split": "part"}], ids=["hash", "no id", "split column"]
)
def test_splits_ids_features_and_columns_are_those_of_the_table_in_memory(config, changes):
    config = replace(config, **changes)
    plain, stream = load_dataset(config), load_stream(replace(config, stream=True))
    assert stream.version == plain.version
    for first, second in ((plain, stream), (plain.refit(), stream.refit())):
        assert second.features.vocabularies == first.features.vocabularies
        assert second.features.spec == first.features.spec
        for name, scale in first.features.scales.items():
            np.testing.assert_allclose(second.features.scales[name], scale, rtol=1e-13)
        for split in SPLITS:
            rows = getattr(second, split)
            expected = in_id_order([getattr(first, split)])
            assert sorted(second.ids(rows).tolist()) == expected.ids.tolist()
            found = in_id_order(list(second.stream(rows, 64, rank=0, world_size=1)))
            for name, column in expected.columns().items():
                torch.testing.assert_close(found.columns()[name], column, rtol=1e-6, atol=1e-6)


def test_row_groups_without_a_row_of_the_split_are_never_read(config, tmp_path):
    whole = table()
    parts = np.repeat(SPLITS, [700, 200, 103])
    folder = write(tmp_path / "sorted", whole.set_column(5, "part", pa.array(parts)), files=1)
    stream = load_stream(replace(config, path=str(folder), split="part", stream=True))
    read = {}
    for split in SPLITS:
        batches = stream.stream(getattr(stream, split), 64, rank=0, world_size=1)
        assert sum(map(len, batches)) == len(getattr(stream, split))
        read[split] = batches.counts.groups_read
    assert read == {"train": 14, "validation": 4, "test": 3}


def test_a_later_run_fits_and_indexes_nothing_again_and_new_content_does(config, log, tmp_path):
    copy = write(tmp_path / "copy", table())
    config = replace(config, path=str(copy), stream=True)
    first = load_stream(config)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    again = load_stream(config)
    assert again.features == first.features
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == made
    write(copy, table().slice(3))
    other = load_stream(config)
    assert other.version != first.version
    assert len(other.train) != len(first.train)


def test_selection_numbers_rows_and_travels_to_a_worker_without_its_codes(log, tmp_path):
    import pickle

    codes = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    np.save(tmp_path / "codes.npy", codes)
    chosen = Selection(tmp_path / "codes.npy", (0, 2), "k")
    reader = RowGroupReader(sorted(log.iterdir()), ["id"], rows=chosen)
    places = np.flatnonzero(codes != 1)
    assert reader.num_rows == len(chosen) == len(places)
    some = np.array([0, 5, 6, 300, len(places) - 1])
    assert reader.row_numbers(some).tolist() == places[some].tolist()
    assert reader.read(some)["id"].to_pylist() == table()["id"].take(places[some]).to_pylist()
    assert len(pickle.dumps(chosen)) < 500
    np.save(tmp_path / "short.npy", codes[:-1])
    with pytest.raises(UserError, match="had 1002 rows at the start and have 1003 now"):
        RowGroupReader(sorted(log.iterdir()), ["id"], rows=Selection(tmp_path / "short.npy", (0,), "k"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"numeric": ("name",)}, "column 'name' is string, not a number: name it under categorical"),
        ({"label": "c"}, "label column 'c' is text"),
        ({"id": "name"}, "id column 'name' is string"),
        ({"id": "user"}, "id column 'user' holds .* more than once"),
        ({"split": "c"}, "split column 'c' holds 'v"),
        ({"label": "user"}, r"label column 'user' holds \d+ in row \d+: labels must be 0 or 1"),
        ({"validation_fraction": 1e-9}, "none is in the validation part"),
    ],
    ids=["text", "text label", "text id", "id twice", "odd split", "odd label", "no validation"],
)
def test_columns_that_do_not_fit_are_named_before_training(config, changes, words):
    changes = {"hashed": (), "categorical": ("part",), **changes}
    with pytest.raises(UserError, match=words):
        load_stream(replace(config, stream=True, **changes))


def test_bad_stream_settings_are_named(config, log, tmp_path):
    for changes, words in (
        ({"window": 0}, "data.window = 0: give 1 row group or more"),
        ({"workers": -1, "stream": True}, "data.workers = -1"),
        ({"workers": 10**9, "stream": True}, "or the processes of a rank that decode; at most"),
        ({"workers": 2}, "only a stream has workers"),
        ({"workers": 2, "stream": True, "cache": "disk"}, "use data.workers = 0"),
        ({"name": "flights", "stream": True}, "data.stream = True: data.name = 'flights'"),
    ):
        with pytest.raises(UserError, match=words):
            replace(config, **changes)
    empty = write(tmp_path / "empty", table().slice(0, 0), files=1)
    with pytest.raises(UserError, match="holds no rows"):
        load_stream(replace(config, stream=True, path=str(empty)))
