"""Parquet shards: chosen row groups, rows in order, pieces that can be read alone."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtlab.data.shards import ShardWriter, read_groups, read_split, row_groups, shard_paths
from dtlab.errors import UserError


def write(folder, sizes, split="train", **kwargs):
    first = 0
    with ShardWriter(folder, split, **kwargs) as writer:
        for size in sizes:
            writer.write(pa.table({"x": np.arange(first, first + size)}))
            first += size
    return writer


@pytest.mark.parametrize("sizes", [[10_007], [3, 10_000, 4], [1] * 50, [1000] * 7, [1024, 1024]])
def test_row_groups_have_the_chosen_size_however_the_rows_arrive(tmp_path, sizes):
    total = sum(sizes)
    writer = write(tmp_path, sizes, rows_per_group=1024, rows_per_shard=4096)
    groups = row_groups(tmp_path, "train")
    assert writer.rows == total == sum(group.rows for group in groups)
    assert all(group.rows == 1024 for group in groups[:-1])
    assert [group.first_row for group in groups] == [1024 * i for i in range(len(groups))]
    assert len(shard_paths(tmp_path, "train")) == -(-total // 4096)
    assert read_split(tmp_path, "train").column("x").to_pylist() == list(range(total))


def test_some_row_groups_are_read_alone_in_the_order_asked_for(tmp_path):
    write(tmp_path, [100], rows_per_group=10, rows_per_shard=30)
    groups = row_groups(tmp_path, "train")
    got = read_groups([groups[7], groups[0], groups[9]], columns=["x"]).column("x").to_pylist()
    assert got == [*range(70, 80), *range(10), *range(90, 100)]


def test_splits_stay_apart_and_a_split_without_rows_is_readable(tmp_path):
    write(tmp_path, [5], "train")
    write(tmp_path, [0], "test")
    assert read_split(tmp_path, "train").num_rows == 5
    empty = read_split(tmp_path, "test")
    assert (empty.num_rows, empty.column_names) == (0, ["x"])


def test_a_shard_is_plain_parquet(tmp_path):
    write(tmp_path, [2000], rows_per_group=1000, rows_per_shard=2000)
    (path,) = shard_paths(tmp_path, "train")
    assert pq.read_metadata(path).num_row_groups == 2
    assert pq.read_table(path).num_rows == 2000


def test_a_shard_smaller_than_its_row_group_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rows_per_shard"):
        ShardWriter(tmp_path, "train", rows_per_group=10, rows_per_shard=5)


@pytest.mark.parametrize("place", [0.3, 0.6])
def test_damaged_shard_of_the_right_size_is_named_with_its_folder(tmp_path, place):
    with ShardWriter(tmp_path, "train", rows_per_group=500, rows_per_shard=5000) as writer:
        writer.write(pa.table({"x": np.random.default_rng(0).normal(size=2000)}))
    (path,) = shard_paths(tmp_path, "train")
    groups = row_groups(tmp_path, "train")
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
    for read in (lambda: read_split(tmp_path, "train"), lambda: read_groups(groups)):
        with pytest.raises(UserError, match=r"train-00000\.parquet is damaged .* delete the folder"):
            read()
