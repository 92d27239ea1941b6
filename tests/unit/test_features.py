"""Features are fitted on training rows, know missing and unseen values, and travel as JSON."""

import datetime
import json
import re
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from dtlab.data.features import Features, FeatureSpec
from dtlab.errors import UserError

SPEC = FeatureSpec(
    categorical=("city", "code", "open"),
    bucketed=("price",),
    hashed=("user",),
    crosses=(("city", "code"),),
    numeric=("price", "size"),
    label="bought",
    id="key",
    num_buckets=4,
    hash_buckets=50,
)


def rows(n: int = 200, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    price = rng.gamma(2.0, 10.0, n)
    return pa.table(
        {
            "key": np.arange(n) * 3,
            "city": pa.array([None if i % 17 == 0 else f"city-{i % 5}" for i in range(n)]),
            "code": pa.array(rng.integers(0, 9, n), mask=rng.random(n) < 0.1),
            "open": pa.array(rng.random(n) < 0.5),
            "user": pa.array([f"u{i}" for i in rng.integers(0, 90, n)]),
            "price": pa.array(price, mask=rng.random(n) < 0.2),
            "size": rng.integers(1, 9, n),
            "bought": rng.integers(0, 2, n),
        }
    )


def equal(one, other) -> bool:
    first, second = one.columns(), other.columns()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_missing_is_0_unseen_is_1_and_the_most_frequent_value_is_2():
    train = pa.table({"city": ["b", "a", "b", None, "c", "b", "a"]})
    features = Features.fit(train, FeatureSpec(categorical=("city",)))
    batch = features.transform(pa.table({"city": ["b", "a", "c", "new", None]}))
    assert batch.categorical[:, 0].tolist() == [2, 3, 4, 1, 0]
    assert features.cardinalities == (5,)
    assert batch.labels is None


def test_rare_values_count_as_unseen():
    train = pa.table({"city": ["b", "a", "b", "c"]})
    features = Features.fit(train, FeatureSpec(categorical=("city",), min_count=2))
    assert features.transform(train).categorical[:, 0].tolist() == [2, 1, 2, 1]


def test_a_value_that_only_other_rows_hold_changes_nothing_that_is_fitted():
    train, other = rows(seed=1), rows(seed=2)
    before = Features.fit(train, SPEC).to_json()
    features = Features.fit(train, SPEC)
    features.transform(other)
    assert features.to_json() == before
    assert Features.fit(other, SPEC).to_json() != before


def test_json_gives_the_same_batch_bit_for_bit():
    train, other = rows(seed=1), rows(seed=2)
    features = Features.fit(train, SPEC)
    again = Features.from_json(features.to_json())
    assert again == features
    assert equal(again.transform(other), features.transform(other))
    json.loads(features.to_json())  # plain JSON, also for strict readers


def test_hashes_are_the_same_in_another_process():
    table = pa.table({"user": ["anna", "bob", None, "chloé"]})
    features = Features.fit(table, FeatureSpec(hashed=("user",), hash_buckets=1000))
    here = features.transform(table).categorical[:, 0].tolist()
    script = (
        "import sys, pyarrow as pa; from dtlab.data.features import Features\n"
        "features = Features.from_json(sys.argv[1])\n"
        "table = pa.table({'user': ['anna', 'bob', None, 'chloé']})\n"
        "print(features.transform(table).categorical[:, 0].tolist())"
    )
    there = subprocess.run(
        [sys.executable, "-c", script, features.to_json()], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == str(here)
    assert here[2] == 0
    assert min(here[0], here[1], here[3]) >= 2


def test_numbers_are_scaled_by_training_rows_and_missing_ones_are_the_mean():
    train = pa.table({"x": pa.array([1.0, 3.0, None])})
    features = Features.fit(train, FeatureSpec(numeric=("x",)))
    other = pa.table({"x": pa.array([4.0, None, float("nan"), float("inf"), 1e9])})
    dense = features.transform(other).dense
    assert features.num_dense == 2  # the value, and whether it was missing
    assert dense.tolist() == [[2.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [10.0, 0.0]]


def test_buckets_are_training_quantiles_and_hold_values_beyond_them():
    train = pa.table({"x": np.arange(100)})
    features = Features.fit(train, FeatureSpec(bucketed=("x",), num_buckets=4))
    counts = np.bincount(features.transform(train).categorical[:, 0].numpy(), minlength=6)
    assert counts.tolist() == [0, 0, 25, 25, 25, 25]
    outside = features.transform(pa.table({"x": pa.array([-5, 500, None])}))
    assert outside.categorical[:, 0].tolist() == [2, 5, 0]
    assert features.cardinalities == (6,)


def test_indices_stay_below_the_cardinalities_for_rows_never_seen():
    features = Features.fit(rows(seed=1), SPEC)
    batch = features.transform(rows(2000, seed=5))
    assert batch.categorical.shape == (2000, len(features.cardinalities)) == (2000, len(SPEC.category_names))
    assert (batch.categorical.max(dim=0).values < torch.tensor(features.cardinalities)).all()
    assert batch.categorical.min() >= 0
    assert batch.dense.shape == (2000, features.num_dense)
    assert torch.isfinite(batch.dense).all()


def test_an_integer_column_reads_the_same_as_int32_float_with_nulls_dictionary_or_text():
    values = [7, None, 7, 12]
    features = Features.fit(
        pa.table({"code": pa.array(values, pa.int64())}), FeatureSpec(categorical=("code",))
    )
    want = features.transform(pa.table({"code": pa.array(values, pa.int64())})).categorical
    for array in (
        pa.array(values, pa.int32()),
        pa.array([7.0, float("nan"), 7.0, 12.0]),
        pa.array(["7", None, "7", "12"]),
        pa.array(["7", None, "7", "12"]).dictionary_encode(),
        pa.chunked_array([["7", None], ["7", "12"]]),
    ):
        assert torch.equal(features.transform(pa.table({"code": array})).categorical, want), array.type


def test_chunks_with_different_dictionaries_agree():
    chunks = pa.chunked_array(
        [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()]
    )
    features = Features.fit(pa.table({"city": chunks}), FeatureSpec(categorical=("city",)))
    assert features.transform(pa.table({"city": chunks})).categorical[:, 0].tolist() == [3, 2, 2, 4]


def test_an_all_null_column_and_a_table_without_rows_are_fine():
    features = Features.fit(rows(), SPEC)
    empty = features.transform(rows().slice(0, 0))
    assert len(empty) == 0
    assert empty.categorical.shape == (0, len(features.cardinalities))
    nothing = pa.table({"city": pa.nulls(3), "x": pa.nulls(3)})
    spec = FeatureSpec(categorical=("city",), hashed=("city",), bucketed=("x",), numeric=("x",))
    batch = Features.fit(nothing, spec).transform(nothing)
    assert batch.categorical.eq(0).all()
    assert torch.isfinite(batch.dense).all()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (FeatureSpec(categorical=("citty",)), ["'citty'", "the nearest name is 'city'", "price (double)"]),
        (FeatureSpec(numeric=("city",)), ["'city'", "string", "categorical or hashed"]),
        (FeatureSpec(bucketed=("city",)), ["'city'", "string"]),
        (FeatureSpec(categorical=("price",)), ["'price'", "double", "numeric"]),
        (FeatureSpec(categorical=("tags",)), ["'tags'", "list"]),
        (FeatureSpec(hashed=("tags",)), ["'tags'", "list"]),
    ],
)
def test_a_wrong_column_is_one_line_that_says_what_is_there(spec, words):
    table = rows().append_column("tags", pa.array([["a"]] * 200))
    with pytest.raises(UserError) as caught:
        Features.fit(table, spec)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ([0, 1, 2], "holds 2 in row 2"),
        ([0, None, 1], "missing values (first in row 1)"),
        ([0.0, 0.5, 1.0], "holds 0.5 in row 1"),
        (["0", "1", "1"], "text"),
    ],
)
def test_labels_other_than_0_and_1_are_refused(labels, word):
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": labels})
    features = Features.fit(table, FeatureSpec(numeric=("x",), label="y"))
    with pytest.raises(UserError, match="'y'") as caught:
        features.transform(table)
    assert word in str(caught.value)
    assert features.transform(table, labels=False).labels is None


@pytest.mark.parametrize("labels", [[False, True, True], [0, 1, 1], [0.0, 1.0, 1.0]])
def test_boolean_integer_and_float_labels_are_the_same(labels):
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": labels})
    batch = Features.fit(table, FeatureSpec(numeric=("x",), label="y")).transform(table)
    assert batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == [0.0, 1.0, 1.0]


def test_fitting_on_no_rows_or_naming_nothing_is_refused():
    with pytest.raises(UserError, match="no training rows"):
        Features.fit(rows().slice(0, 0), SPEC)
    with pytest.raises(UserError, match="no feature column"):
        FeatureSpec()
    with pytest.raises(UserError, match="twice"):
        FeatureSpec(numeric=("a", "a"))
    with pytest.raises(UserError, match="label column 'a'"):
        FeatureSpec(numeric=("a",), label="a")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "other"}', '{"format": "dtlab-features-1", "spec": {}}']
)
def test_a_text_that_is_not_features_is_refused(text):
    with pytest.raises(UserError):
        Features.from_json(text)


TIMES = [datetime.datetime(2013, 1, 1), datetime.datetime(2013, 1, 2)]
PRICES = [Decimal("1.5"), Decimal("2.25")]
SAME_VALUES = [
    (pa.array(TIMES, pa.timestamp("us")), pa.array(TIMES, pa.timestamp("s"))),
    (pa.array(TIMES, pa.timestamp("s")), pa.array(TIMES, pa.timestamp("ns"))),
    (pa.array(TIMES, pa.timestamp("s", tz="UTC")), pa.array(TIMES, pa.timestamp("us", tz="Europe/Paris"))),
    (pa.array(TIMES).cast(pa.date32()), pa.array(TIMES, pa.timestamp("ns"))),
    (pa.array(TIMES, pa.timestamp("ms")), pa.array(TIMES).cast(pa.date32())),
    (pa.array(PRICES, pa.decimal128(10, 2)), pa.array(PRICES, pa.decimal128(30, 6))),
    (pa.array(PRICES, pa.decimal128(10, 4)), pa.array([1.5, 2.25])),
    (pa.array([True, False]), pa.array([1, 0], pa.int8())),
    (pa.array([True, False]), pa.array([1.0, 0.0])),
]


def as_x(array):
    return pa.table({"x": array})


@pytest.mark.parametrize(("trained", "given"), SAME_VALUES, ids=lambda array: str(array.type))
def test_values_of_another_unit_or_scale_are_the_ones_seen_in_training(trained, given):
    fitted = Features.fit(as_x(trained), FeatureSpec(categorical=("x",), hashed=("x",)))
    features = Features.from_json(fitted.to_json())
    expected = features.transform(as_x(trained)).categorical
    assert 1 not in expected[:, 0]
    assert features.transform(as_x(given)).categorical.tolist() == expected.tolist()
    with_null = pa.concat_arrays([given, pa.nulls(1, given.type)])
    assert features.transform(as_x(with_null)).categorical[-1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("trained", "given"),
    [
        (pa.array(TIMES, pa.timestamp("s")), pa.array([datetime.datetime(2013, 1, 1, 0, 0, 0, 5)])),
        (pa.array(TIMES).cast(pa.date32()), pa.array([datetime.datetime(2013, 1, 1, 5)])),
        (pa.array(PRICES, pa.decimal128(10, 2)), pa.array([Decimal("1.501")])),
        (pa.array(PRICES, pa.decimal128(10, 2)), pa.array([1.501])),
        (pa.array([True, False]), pa.array([2, 0])),
        (pa.array(TIMES, pa.timestamp("s")), pa.array(TIMES, pa.timestamp("s", tz="UTC"))),
        (pa.array(TIMES, pa.timestamp("s")), pa.array([1356998400])),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_do_not_fit_the_type_of_training_are_refused_by_name(trained, given):
    features = Features.fit(as_x(trained), FeatureSpec(categorical=("x",)))
    with pytest.raises(UserError, match=f"column 'x' is {re.escape(str(given.type))}.*trained on"):
        features.transform(as_x(given))


def test_features_of_before_types_travelled_are_read_as_ever():
    fitted = Features.fit(as_x(pa.array(TIMES)), FeatureSpec(categorical=("x",)))
    old = {name: part for name, part in json.loads(fitted.to_json()).items() if name != "types"}
    features = Features.from_json(json.dumps(old))
    assert features.transform(as_x(pa.array(TIMES))).categorical.flatten().tolist() == [2, 3]


@pytest.mark.parametrize("types", [{"x": "timestamp[h]"}, {"x": 3}, ["x"], 5])
def test_column_types_that_no_features_have_are_refused(types):
    fitted = Features.fit(as_x(pa.array(TIMES)), FeatureSpec(categorical=("x",)))
    with pytest.raises(UserError):
        Features.from_json(json.dumps({**json.loads(fitted.to_json()), "types": types}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("scales", "price"), []),
        (("scales", "price", 0), None),
        (("scales", "price", 1), 0.0),
        (("scales", "price", 1), float("nan")),
        (("edges", "price"), "abc"),
        (("edges", "price", 0), {}),
        (("vocabularies", "city"), [3]),
        (("vocabularies", "city"), None),
        (("spec", "hashed", 0), -1),
        (("spec", "hash_buckets"), 10**30),
        (("spec", "label"), 3.5),
    ],
)
def test_features_text_with_odd_values_is_refused_in_one_line(path, value):
    parts = json.loads(Features.fit(rows(), SPEC).to_json())
    target = parts
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(UserError) as caught:
        Features.from_json(json.dumps(parts))
    assert "\n" not in str(caught.value)
