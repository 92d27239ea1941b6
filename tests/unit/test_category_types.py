"""A value is the same category in every row group, batch, column type and unit; what cannot be is refused."""

import contextlib
import datetime
import json
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtlab.data import columns, parquet
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import rows_to_score
from dtlab.data.row_group_reader import RowGroupReader
from dtlab.data.stream_dataset import load_stream
from dtlab.errors import DtlabWarning, UserError

BOTH = FeatureSpec(categorical=("x",), hashed=("x",), hash_buckets=100_000)
HASHED = FeatureSpec(hashed=("x",), hash_buckets=100_000)


def as_x(array):
    return pa.table({"x": array})


def fitted(array, spec=BOTH):
    return Features.from_json(Features.fit(as_x(array), spec).to_json())


def codes(features, array):
    return features.transform(as_x(array)).categorical.tolist()


ODD = [1e16, 2e17, -0.0, 0.0, 1e15, 0.5, 1e10, 1e10 + 0.5, 1e19, 2e19, -3e19, 2.0**63, 1e300, 1e-7, 3.0]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_a_hashed_float_does_not_depend_on_its_neighbours(kind):
    array = pa.array([x for x in ODD if kind == pa.float64() or abs(x) < 1e38], kind)
    features = fitted(array, HASHED)
    whole = codes(features, array)
    assert [codes(features, array.slice(i, 1))[0] for i in range(len(array))] == whole
    values = set(array.to_pylist())
    assert len({row[0] for row in whole}) == len(values)  # whole floats of 2 ** 63 and more are not one


def test_whole_floats_are_the_integers_also_beside_a_fraction():
    numbers = [0, 7, 10**10, 10**16, 2**53]
    features = fitted(pa.array(numbers))
    expected = codes(features, pa.array(numbers))
    floats = [float(x) for x in numbers]
    assert codes(features, pa.array([*floats, 0.5]))[:-1] == expected
    assert codes(features, pa.array([-0.0, *floats[1:]])) == expected
    huge = [2**63, 2**63 + 2**60]
    assert codes(fitted(pa.array(huge, pa.uint64())), pa.array([*map(float, huge), 0.5]))[0][0] in (2, 3)


def test_categories_of_row_groups_with_and_without_fractions_are_the_same_vocabulary():
    pieces = [as_x(pa.array([1e16, -0.0])), as_x(pa.array([0.0, 3.0])), as_x(pa.array([1e19]))]
    features = Features.fit_pieces(pieces, FeatureSpec(categorical=("x",)))
    assert features.vocabularies["x"] == ["0", str(10**16), str(10**19), "3"]


NUMBERS = [1, 2, 3]
AS_DECIMAL = [Decimal("1.00"), Decimal("2.00"), Decimal("3.00")]


@pytest.mark.parametrize(
    "trained", [pa.array(NUMBERS), pa.array([1.0, 2.0, 3.0]), pa.array([1, 2, 3], pa.uint8())]
)
@pytest.mark.parametrize(
    "given",
    [
        pa.array(AS_DECIMAL, pa.decimal128(10, 2)),
        pa.array(AS_DECIMAL, pa.decimal32(5, 2)),
        pa.array(AS_DECIMAL, pa.decimal64(10, 2)),
        pa.array(AS_DECIMAL, pa.decimal256(70, 9)),
        pa.array(np.array([1, 2, 3], dtype=np.float16)),
        pa.array(["1", "2", "3"]),
        pa.array(["1", "2", "3"], pa.string_view()),
    ],
    ids=lambda array: str(array.type),
)
def test_numbers_given_in_another_type_are_the_ones_seen_in_training(trained, given):
    features = fitted(trained)
    assert codes(features, given) == codes(features, trained)


def test_fractions_given_as_decimals_have_the_hash_of_the_float():
    floats = [0.5, 0.1, 1e-7, 123456789.25]
    features = fitted(pa.array(floats), HASHED)
    decimals = pa.array([Decimal(repr(x)) for x in floats], pa.decimal128(30, 12))
    assert codes(features, decimals) == codes(features, pa.array(floats))


def test_booleans_given_to_a_model_of_numbers_are_0_and_1():
    features = fitted(pa.array([0, 1, 1]))
    assert codes(features, pa.array([False, True])) == codes(features, pa.array([0, 1]))


DATE = pa.array([1, 2, 3], pa.date32())
REFUSED = [
    (pa.array(NUMBERS), DATE, "number"),
    (pa.array(NUMBERS), pa.array([1, 2, 3], pa.timestamp("s")), "number"),
    (pa.array([0.5, 1.5, 2.5]), DATE, "number"),
    (pa.array(["1", "2", "3"]), pa.array(AS_DECIMAL), "text"),
    (pa.array(["true", "false"]), pa.array([True, False]), "text"),
    (pa.array(["1970-01-02"]), DATE, "text"),
    (pa.array(["a"]), pa.array([1, 2], pa.timestamp("s")), "text"),
    (pa.array(NUMBERS), pa.array([1, 2], pa.duration("s")), "number"),
    (pa.array(AS_DECIMAL), pa.array([True]), "decimal128"),
    (DATE, pa.array(NUMBERS), "date32"),
    (pa.array([True, False]), pa.array([Decimal("0.5"), Decimal("2")]), "bool"),
]


@pytest.mark.parametrize(
    ("trained", "given", "kind"), REFUSED, ids=lambda case: str(getattr(case, "type", ""))
)
def test_a_type_that_cannot_mean_the_same_is_refused_by_name_and_not_unseen(trained, given, kind):
    features = fitted(trained, HASHED)
    with pytest.raises(UserError, match=f"'x' is {re.escape(str(given.type))}.*trained on {kind}") as caught:
        codes(features, given)
    assert "\n" not in str(caught.value)


def test_decimals_of_0_and_1_are_booleans():
    features = fitted(pa.array([True, False]))
    given = pa.array([Decimal("1.00"), Decimal("0.00")])
    assert codes(features, given) == codes(features, pa.array([True, False]))


def test_decimals_given_to_features_that_do_not_name_the_type_are_compared_by_value():
    old = json.loads(Features.fit(as_x(pa.array(NUMBERS)), FeatureSpec(categorical=("x",))).to_json())
    del old["types"]
    features = Features.from_json(json.dumps(old))
    assert codes(features, pa.array(AS_DECIMAL)) == [[2], [3], [4]]


def test_vocabularies_written_before_are_read_as_ever():
    spec = FeatureSpec(categorical=("x",))
    for array, vocabulary in (
        (pa.array([1e16, -0.0, 3.0]), [str(10**16), "0", "3"]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array([True, False]), ["true", "false"]),
    ):
        old = json.loads(Features.fit(as_x(array), spec).to_json())
        old["types"] = {name: kind for name, kind in old["types"].items() if kind not in ("number", "text")}
        features = Features.from_json(json.dumps({**old, "vocabularies": {"x": vocabulary}}))
        assert codes(features, array) == [[2 + i] for i in range(len(vocabulary))]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(np.array([1, 0.5, 2], dtype=np.float16)),
        pa.array(AS_DECIMAL, pa.decimal32(5, 2)),
        pa.array([Decimal("1E+2"), Decimal("2.5E+3")], pa.decimal128(10, -2)),
        pa.array([2**60], pa.timestamp("s")),
        pa.array([1], pa.timestamp("s", tz="Nowhere/X")),
        pa.array([1], pa.time32("s")),
    ],
    ids=lambda array: str(array.type),
)
def test_rare_types_are_read_or_refused_in_one_line(array):
    for spec in (FeatureSpec(categorical=("x",)), HASHED, FeatureSpec(numeric=("x",))):
        message = "'x'"
        try:
            features = fitted(array, spec)
            assert 1 not in features.transform(as_x(array)).categorical
        except UserError as error:
            message = str(error)
        assert "'x'" in message
        assert "\n" not in message


@pytest.mark.parametrize("largest", [2**63, 2**64 - 1])
def test_ids_beyond_int64_are_refused_and_not_written_negative(largest):
    table = pa.table({"i": pa.array([1, largest], pa.uint64()), "x": [1.0, 2.0]})
    with pytest.raises(UserError, match=f"id column 'i' holds {largest}"):
        columns.ids(table, "i")
    assert columns.ids(table.slice(0, 1), "i").tolist() == [1]


def test_a_time_under_numeric_is_not_sent_to_categorical():
    table = as_x(pa.array([datetime.datetime(2013, 1, 1)]))
    with pytest.raises(UserError, match=r"make columns of it first \(hour, weekday") as caught:
        Features.fit(table, FeatureSpec(numeric=("x",)))
    assert "categorical" not in str(caught.value)


def test_a_number_that_became_text_names_the_file_and_does_not_advise_training(tmp_path):
    features = Features.fit(pa.table({"price": [1.0, 2.0]}), FeatureSpec(numeric=("price",)))
    path = tmp_path / "new.parquet"
    pq.write_table(pa.table({"price": ["1", "2"]}), path)
    with pytest.raises(
        UserError, match=f"{path}.*'price' is string.*trained on it as a number: cast"
    ) as caught:
        rows_to_score(path, features, 10)
    assert "categorical" not in str(caught.value)


def test_a_category_with_another_value_in_every_row_is_warned_of(recwarn):
    features = FeatureSpec(categorical=("x",))
    with pytest.warns(DtlabWarning, match="'x' has 600 different values in 600 training rows"):
        Features.fit(as_x(pa.array(range(600))), features)
    recwarn.clear()
    Features.fit(as_x(pa.array([n % 300 for n in range(600)])), features)
    assert not recwarn.list


def test_no_damage_of_a_footer_ends_in_an_error_of_arrow(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(as_x(pa.array(range(50))), path, store_schema=False)
    good = path.read_bytes()
    length = int.from_bytes(good[-8:-4], "little")
    for place in range(len(good) - 8 - length, len(good) - 8):
        for byte in (0x00, 0x7F, 0x80):
            path.write_bytes(good[:place] + bytes([byte]) + good[place + 1 :])
            with contextlib.suppress(UserError):  # some bytes change nothing that is read
                parquet.read_table(path)
            with contextlib.suppress(UserError):
                for _ in RowGroupReader([path], ["x"]).batches():
                    pass


@pytest.mark.parametrize("stream", [False, True])
def test_a_split_column_of_a_type_without_text_is_refused(tmp_path, stream):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1], "part": [["train"], ["test"]]}), path)
    config = DataConfig(
        name="parquet", path=str(path), root=str(tmp_path / "data"), label="y", numeric=("x",), split="part",
        stream=stream,
    )  # fmt: skip
    with pytest.raises(UserError, match="split column 'part' is list"):
        (load_stream if stream else load_dataset)(config)
