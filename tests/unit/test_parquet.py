"""Your own Parquet: a feature contract with one clear line for each thing that can be wrong."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.parquet_stream import rows_to_score
from dtlab.errors import UserError

NAMES = {"label": "bought", "categorical": ("city",), "numeric": ("price",), "hashed": ("user",)}


def rows(n=1000, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "key": np.arange(n) * 7 + 1000 * seed,
            "city": pa.array([None if i % 11 == 0 else f"city-{i % 4}" for i in range(n)]),
            "user": pa.array([f"u{i}" for i in rng.integers(0, 300, n)]),
            "price": pa.array(rng.gamma(2, 10, n), mask=rng.random(n) < 0.1),
            "bought": rng.integers(0, 2, n),
            "part": pa.array(np.array(["train", "train", "train", "validation", "test"])[np.arange(n) % 5]),
        }
    )


def load(tmp_path, path, **changes):
    return load_dataset(
        DataConfig(name="parquet", path=str(path), root=str(tmp_path / "data"), **{**NAMES, **changes})
    )


def refused(tmp_path, path, *words, **changes):
    with pytest.raises(UserError) as caught:
        load(tmp_path, path, **changes)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.fixture
def file(tmp_path):
    pq.write_table(rows(), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def test_rows_are_split_by_a_hash_in_the_stated_fractions_each_once(tmp_path, file):
    dataset = load(tmp_path, file, validation_fraction=0.2, test_fraction=0.3)
    ids = torch.cat([dataset.train.ids, dataset.validation.ids, dataset.test.ids])
    assert torch.equal(ids.sort().values, torch.arange(1000))
    assert len(dataset.validation) == pytest.approx(200, abs=40)
    assert len(dataset.test) == pytest.approx(300, abs=45)
    assert dataset.cardinalities == (2 + 4, 2 + 100_000)
    assert dataset.num_dense == 2


def test_a_row_keeps_its_part_when_rows_are_added(tmp_path, file):
    before = load(tmp_path, file, id="key")
    pq.write_table(pa.concat_tables([rows(500, seed=9), rows()]), tmp_path / "longer.parquet")
    after = load(tmp_path, tmp_path / "longer.parquet", id="key")
    for split in ("train", "validation", "test"):
        assert set(getattr(before, split).ids.tolist()) <= set(getattr(after, split).ids.tolist())
    assert before.version != after.version


def test_a_split_column_decides(tmp_path, file):
    dataset = load(tmp_path, file, split="part", id="key")
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (600, 200, 200)
    assert set((dataset.test.ids // 7 % 5).tolist()) == {4}


def test_features_are_fitted_on_training_rows_and_refit_adds_validation_rows(tmp_path):
    table = rows(100).drop_columns("city")
    city = ["only-in-test" if part == "test" else f"{part}-city" for part in table.column("part").to_pylist()]
    pq.write_table(table.append_column("city", pa.array(city)), tmp_path / "log.parquet")
    dataset = load(tmp_path, tmp_path / "log.parquet", split="part")
    assert dataset.features.vocabularies["city"] == ["train-city"]
    assert set(dataset.validation.categorical[:, 0].tolist()) == {1}
    both = dataset.refit()
    assert both.features.vocabularies["city"] == ["train-city", "validation-city"]
    assert len(both.train) == len(dataset.train) + len(dataset.validation)
    assert set(both.train.ids.tolist()) == set(dataset.train.ids.tolist()) | set(
        dataset.validation.ids.tolist()
    )
    assert torch.equal(both.test.ids, dataset.test.ids)
    assert set(both.test.categorical[:, 0].tolist()) == {1}


def test_features_that_travelled_as_json_score_the_file_as_evaluation_did(tmp_path, file):
    dataset = load(tmp_path, file, id="key")
    again = type(dataset.features).from_json(dataset.features.to_json())
    unlabelled = tmp_path / "unlabelled.parquet"
    pq.write_table(rows().drop_columns(["bought", "part"]), unlabelled)
    whole = Batch.concat(list(rows_to_score(unlabelled, again, 7).walk(0, 1)))
    assert whole.labels is None
    place = torch.searchsorted(whole.ids, dataset.test.ids)
    for name, column in whole.take(place).columns().items():
        assert torch.equal(column, dataset.test.columns()[name]), name
    labelled = Batch.concat(list(rows_to_score(file, again, 10**6).walk(0, 1)))
    assert labelled.labels is None
    assert torch.equal(labelled.categorical, whole.categorical)


def test_a_folder_of_shards_is_its_files_in_name_order(tmp_path, file):
    folder = tmp_path / "shards"
    (folder / "deeper").mkdir(parents=True)
    table = rows()
    pq.write_table(table.slice(0, 300), folder / "a.parquet")
    dictionary = table.slice(300, 300)
    at = table.column_names.index("city")
    dictionary = dictionary.set_column(at, "city", pc.dictionary_encode(dictionary.column("city")))
    pq.write_table(dictionary, folder / "b.parquet")
    pq.write_table(table.slice(600), folder / "deeper" / "c.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".half.parquet").write_bytes(b"")
    one, many = load(tmp_path, file), load(tmp_path, folder)
    for name, column in one.train.columns().items():
        assert torch.equal(column, many.train.columns()[name]), name


def test_a_shard_in_which_a_column_is_all_null_fits(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    pq.write_table(rows(100).set_column(1, "city", pa.nulls(100)), folder / "a.parquet")
    pq.write_table(rows(400), folder / "b.parquet")
    assert load(tmp_path, folder).features.cardinalities[0] == 6


def test_shards_that_disagree_are_named(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    pq.write_table(rows(100), folder / "a.parquet")
    at = rows(1).column_names.index("price")
    pq.write_table(rows(100).set_column(at, "price", pa.array(["1"] * 100)), folder / "b.parquet")
    refused(tmp_path, folder, "'price'", "double", "string", "a.parquet", "b.parquet")
    pq.write_table(rows(100).drop_columns("price"), folder / "b.parquet")
    refused(tmp_path, folder, "'price'", "not in", "b.parquet")


def test_columns_that_are_not_used_may_disagree(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    pq.write_table(rows(400), folder / "a.parquet")
    pq.write_table(rows(400).drop_columns(["part", "key"]), folder / "b.parquet")
    dataset = load(tmp_path, folder)
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 800


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"categorical": ("citty",)}, ["'citty'", "the nearest name is 'city'", "price (double)"]),
        ({"label": "Bougt"}, ["'Bougt'", "'bought'"]),
        ({"label": None}, ["data.label", "bought (int64)"]),
        ({"categorical": (), "numeric": (), "hashed": ()}, ["data.categorical", "city (string)"]),
        ({"label": "city", "categorical": ()}, ["'city'", "text"]),
        ({"label": "key"}, ["'key'", "must be 0 or 1"]),
        ({"numeric": ("city",), "categorical": ()}, ["'city'", "string", "not a number"]),
        ({"categorical": ("price",), "numeric": ()}, ["'price'", "double", "numeric"]),
        ({"id": "user", "hashed": ()}, ["'user'", "string", "whole numbers"]),
        ({"id": "bought", "label": "flag"}, ["'bought'", "more than once"]),
        ({"split": "city", "categorical": ()}, ["'city'", "train, validation, test"]),
        ({"split": "price"}, ["data.split", "also named"]),
        ({"categorical": ("city", "bought")}, ["label column 'bought'"]),
    ],
)
def test_wrong_columns_are_one_line(tmp_path, changes, words):
    table = rows().append_column("flag", pa.array([0, 1] * 500))
    pq.write_table(table, tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", *words, **changes)


def test_a_null_label_is_refused_and_its_row_named(tmp_path):
    bought = pa.array([0, 1, None, 1] * 250)
    pq.write_table(rows().set_column(4, "bought", bought), tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", "'bought'", "250 missing", "row 2")


def test_a_boolean_label_is_fine(tmp_path):
    pq.write_table(rows().set_column(4, "bought", pa.array([False, True] * 500)), tmp_path / "log.parquet")
    assert set(load(tmp_path, tmp_path / "log.parquet").train.labels.tolist()) == {0.0, 1.0}


def test_a_split_that_leaves_a_part_empty_is_refused(tmp_path):
    pq.write_table(rows(3), tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", "of 3 rows none")
    pq.write_table(rows(4), tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", "none is in the test part", "'part'", split="part")


def test_files_that_cannot_be_read_are_one_line(tmp_path, file):
    refused(tmp_path, tmp_path / "lag.parquet", "no such file", "'log.parquet'")
    (tmp_path / "nothing").mkdir()
    refused(tmp_path, tmp_path / "nothing", "no .parquet file")
    (tmp_path / "empty.parquet").touch()
    refused(tmp_path, tmp_path / "empty.parquet", "empty (0 bytes)")
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n" * 100)
    refused(tmp_path, tmp_path / "text.parquet", "not a Parquet file")
    torn = file.read_bytes()
    (tmp_path / "torn.parquet").write_bytes(torn[: len(torn) // 2])
    refused(tmp_path, tmp_path / "torn.parquet", "not a Parquet file")
    (tmp_path / "broken.parquet").write_bytes(torn[:4] + b"\xff" * (len(torn) - 4004) + torn[-4000:])
    refused(tmp_path, tmp_path / "broken.parquet", "damaged")
    pq.write_table(rows().slice(0, 0), tmp_path / "none.parquet")
    refused(tmp_path, tmp_path / "none.parquet", "holds no rows")
    with pytest.raises(UserError, match=r"data.path is not set"):
        load_dataset(DataConfig(name="parquet", label="bought", numeric=("price",)))


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX systems")
def test_a_file_without_rights_is_one_line(tmp_path, file):
    file.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        refused(tmp_path, file, "check its rights")
    finally:
        os.seteuid(user)


def test_a_path_that_the_system_refuses_is_one_line(tmp_path, file):
    refused(tmp_path, file / "below", "Not a directory")
    refused(tmp_path, tmp_path / ("x" * 400), "File name too long")
