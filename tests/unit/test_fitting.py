"""Features fitted piece by piece are those of the whole table."""

import numpy as np
import pyarrow as pa
import pytest

from dtlab.data.features import Features, FeatureSpec
from dtlab.data.fitting import Moments
from dtlab.errors import UserError

SPEC = FeatureSpec(
    categorical=("city", "code"),
    bucketed=("price",),
    hashed=("user",),
    numeric=("price", "size"),
    min_count=2,
)


def rows(n: int = 500) -> pa.Table:
    rng = np.random.default_rng(0)
    code = np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 300, n))
    return pa.table(
        {
            "city": pa.array([None if i % 17 == 0 else f"city-{i % 5}" for i in range(n)]),
            # What pandas makes of whole numbers with nulls: pieces without a null are read alike.
            "code": pa.array(code, from_pandas=True),
            "user": pa.array([f"u{i}" for i in rng.integers(0, 90, n)]),
            "price": pa.array(1e9 + rng.gamma(2.0, 1e-2, n), mask=np.arange(n) > n - 3),
            "size": rng.integers(1, 9, n),
        }
    )


@pytest.mark.parametrize("size", [1, 7, 499, 500])
def test_pieces_give_the_vocabularies_edges_and_scales_of_the_whole(size):
    table = rows()
    whole = Features.fit(table, SPEC)
    parts = [table.slice(start, size) for start in range(0, table.num_rows, size)]
    found = Features.fit_pieces(parts, SPEC)
    assert (found.vocabularies, found.edges) == (whole.vocabularies, whole.edges)
    assert found.scales.keys() == whole.scales.keys()
    for name, scale in whole.scales.items():
        # A sum of squares would leave nothing of a deviation of 0.01 around 1e9.
        np.testing.assert_allclose(found.scales[name], scale, rtol=1e-9)
    assert whole.scales["price"][2] == 1.0
    assert len(whole.vocabularies["code"]) < 300


def test_a_constant_column_in_pieces_is_still_constant():
    moments = Moments()
    for _ in range(1000):
        moments.add(np.full(3, 0.1))
    assert moments.deviation < 1e-12
    table = pa.table({"x": [0.1] * 30})
    found = Features.fit_pieces([table.slice(i, 7) for i in range(0, 30, 7)], FeatureSpec(numeric=("x",)))
    assert found.scales["x"][1] == 1.0


def test_no_rows_in_any_piece_is_an_error_and_so_is_a_fraction_in_the_last():
    table = pa.table({"x": [1.0, 2.0, 3.5]})
    with pytest.raises(UserError, match="no training rows"):
        Features.fit_pieces([table.slice(0, 0)] * 3, FeatureSpec(numeric=("x",)))
    with pytest.raises(UserError, match="no training rows"):
        Features.fit_pieces([], FeatureSpec(numeric=("x",)))
    with pytest.raises(UserError, match="with fractions, not a category"):
        Features.fit_pieces([table.slice(i, 1) for i in range(3)], FeatureSpec(categorical=("x",)))
