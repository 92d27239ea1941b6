"""A Parquet stream: one order for all ranks, workers and restarts; only what is needed is read."""

import dataclasses
import itertools
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.data import parquet
from dtlab.data.batch import Batch
from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.row_group_reader import RowGroupReader
from dtlab.data.stream_loader import StreamLoader
from dtlab.errors import UserError

ROWS = 1003  # 3 files: 7 + 7 + 7 row groups of at most 50 rows
SPEC = FeatureSpec(categorical=("c",), numeric=("x",), label="y", id="id")


def table(rows=ROWS):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "unused": rng.normal(size=rows),
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1),
            "c": [f"v{n}" for n in rng.integers(0, 9, rows)],
            "y": rng.integers(0, 2, rows),
            "id": rng.permutation(rows) + 10_000,
        }
    )


def write(folder, whole, files=3, group=50):
    folder.mkdir(exist_ok=True)
    each = -(-whole.num_rows // files)
    for number in range(files):
        part = whole.slice(number * each, each)
        pq.write_table(part, folder / f"part-{number:03d}.parquet", row_group_size=group)
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write(tmp_path_factory.mktemp("log") / "log", table())


@pytest.fixture(scope="module")
def features():
    return Features.fit(table().slice(0, 700), SPEC)


@pytest.fixture
def make(log, features):
    def make(batch=64, **arguments):
        arguments = {"rank": 0, "world_size": 1, "seed": 5, "window": 3, **arguments}
        return ParquetStream(arguments.pop("path", log), features, batch, **arguments)

    return make


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def interleaved(parts):
    """The global batches of which ranks hold strides."""
    whole = []
    for shares in zip(*parts, strict=True):
        batch = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            batch[rank :: len(shares)] = share
        whole.append(batch)
    return whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_order_does_not_depend_on_ranks_and_workers(make, world_size, workers):
    expected = ids(make())
    parts = []
    for rank in range(world_size):
        shares = [list(make(rank=rank, world_size=world_size).walk(w, workers)) for w in range(workers)]
        own = [shares[step % workers][step // workers] for step in range(-(-ROWS // 64))]
        assert sum(map(len, shares)) == len(own)
        parts.append(ids(own))
    assert interleaved(parts) == expected


@pytest.mark.parametrize(("batch", "window"), [(1, 1), (7, 2), (64, 3), (50, 1), (400, 1), (2000, 30)])
def test_every_row_comes_once_in_ceil_of_rows_over_batch_full_steps(make, batch, window):
    for tail, kept in (("keep", ROWS), ("drop", ROWS - ROWS % batch)):
        if kept == 0:
            continue
        stream = make(batch, window=window, tail=tail)
        batches = list(stream)
        assert len(batches) == -(-kept // batch)
        assert {len(b) for b in batches[:-1]} <= {batch}
        seen = torch.cat([b.ids for b in batches])
        assert len(seen) == len(seen.unique()) == kept


def test_the_columns_are_those_of_the_table_in_memory(make, features):
    whole = features.transform(table())
    place = {int(row_id): row for row, row_id in enumerate(whole.ids)}
    for batch in make():
        expected = whole.take(np.array([place[int(row_id)] for row_id in batch.ids]))
        for name, column in expected.columns().items():
            assert torch.equal(column, batch.columns()[name]), name


@pytest.mark.parametrize(("world_size", "workers"), [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("id_column", ["id", parquet.ROW])
def test_batches_made_one_by_one_are_those_of_a_window_made_at_once(
    log, features, world_size, workers, id_column
):
    known = dataclasses.replace(features, spec=dataclasses.replace(SPEC, id=id_column))
    for rank, worker in itertools.product(range(world_size), range(workers)):
        stream = ParquetStream(log, known, 64, window=3, seed=5, rank=rank, world_size=world_size)
        at_once = flat(stream.chunks(worker, workers))
        one_by_one = list(stream.chunks(worker, workers, at_once=False))
        assert {len(batches) for batches in one_by_one} == {1}
        for ours, wanted in zip(flat(one_by_one), at_once, strict=True):
            for name, column in wanted.columns().items():
                assert torch.equal(ours.columns()[name], column)


def test_the_consumer_of_a_worker_does_not_wait_for_the_features_of_a_window(make):
    made = []

    class Counting(ParquetStream):
        def _transformed(self, table, rows):
            made.append(len(rows))
            return super()._transformed(table, rows)

    stream = make()
    counting = Counting(stream.paths, stream.features, 64, window=3, seed=5, rank=0, world_size=1)
    batches = counting.chunks(at_once=False)
    assert [len(next(batches)[0]) for _ in range(2)] == [64, 64]
    assert made == [64, 64]  # the window holds 150 rows


def test_epochs_differ_and_rows_are_mixed_over_files(make):
    stream = make()
    first, second = list(stream), list(stream)
    assert stream.sampler.epoch == 2
    assert ids(first) != ids(second)
    assert sorted(flat(ids(first))) == sorted(flat(ids(second)))
    numbers = {int(row_id): row for row, row_id in enumerate(table()["id"].to_pylist())}
    order = [numbers[row_id] for row_id in flat(ids(first))]
    assert len({row // 335 for row in order[:450]}) > 1
    assert order != sorted(order)


def test_a_file_order_without_shuffle_and_row_numbers_without_an_id(log, features):
    plain = dataclasses.replace(features, spec=dataclasses.replace(SPEC, id=None))
    stream = ParquetStream(log, plain, 300, shuffle=False, rank=0, world_size=1)
    assert flat(ids(stream)) == list(range(ROWS))
    named_by_dtlab = dataclasses.replace(features, spec=dataclasses.replace(SPEC, id=parquet.ROW))
    shuffled = ParquetStream(log, named_by_dtlab, 300, rank=0, world_size=1)
    assert sorted(flat(ids(shuffled))) == list(range(ROWS))


def test_an_epoch_reads_every_group_once_and_only_the_used_columns(make):
    stream = make(rank=1, world_size=2)
    list(stream)
    assert stream.counts.groups_read == len(stream.reader.groups) == 21
    assert (stream.counts.rows_decoded, stream.counts.rows_taken) == (
        ROWS,
        501,
    )
    assert stream.reader.schema.names == ["c", "x", "y", "id"]
    assert stream.counts.files_opened <= 21


def test_the_first_batch_reads_one_window_and_a_resumed_stream_none_before_its_place(make):
    stream = make()
    next(stream.walk(0, 1))
    assert stream.counts.groups_read == 3

    stream = make()
    stream.sampler.load_state_dict({"seed": 5, "epoch": 0, "position": 896, "layout": stream.sampler.layout})
    rest = list(stream)
    assert sum(map(len, rest)) == ROWS - 896
    assert stream.counts.groups_read <= 6  # the last 107 rows lie in the last two or three windows


def test_a_worker_reads_only_the_groups_of_its_own_batches(make):
    streams = [make(150, window=1) for _ in range(4)]
    for worker, stream in enumerate(streams):
        list(stream.walk(worker, 4))
        assert stream.counts.groups_read <= 2 * 4 + 2  # its 2 batches of 3 groups each, borders included


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_a_run_resumes_in_mid_epoch_on_another_world_size(make, world_size):
    expected = [ids(make()), None]
    two = [StreamLoader(make(rank=rank, world_size=2)) for rank in range(2)]
    done = []
    for loader in two:
        steps = iter(loader)
        done.append([next(steps).ids.tolist() for _ in range(5)])
        steps.close()
    states = [loader.state_dict() for loader in two]
    assert states[0] == states[1]
    rest, epoch_after = [], []
    for rank in range(world_size):
        loader = StreamLoader(make(rank=rank, world_size=world_size, seed=0))
        loader.load_state_dict(states[0])
        assert loader.sampler.steps_left == len(loader) - 5
        rest.append(ids(loader))
        assert loader.sampler.epoch == 1
        epoch_after.append(ids(loader))
    assert interleaved(done) + interleaved(rest) == expected[0]
    stream = make()
    stream.sampler.set_epoch(1)
    assert interleaved(epoch_after) == ids(stream)


@pytest.mark.parametrize("change", [{"window": 4}, {"path": "other"}])
def test_a_state_from_the_middle_of_another_layout_is_refused(make, tmp_path, change):
    if "path" in change:
        change = {"path": write(tmp_path / "other", table(), group=40)}
    stream = make()
    next(iter(stream))
    state = stream.sampler.state_dict()
    other = make(**change)
    with pytest.raises(UserError, match="other row groups or another window"):
        other.sampler.load_state_dict(state)
    other.sampler.load_state_dict({**state, "epoch": 1, "position": 0})  # between epochs nothing is lost
    assert len(list(other)) == 16
    with pytest.raises(UserError, match="layout"):
        other.sampler.load_state_dict({"seed": 5, "epoch": 0, "position": 64})


def test_three_files_serve_four_ranks_and_every_rank_takes_the_same_steps(make):
    parts = [list(make(rank=rank, world_size=4)) for rank in range(4)]
    assert [len(part) for part in parts] == [16] * 4
    assert [sum(map(len, part)) for part in parts] == [251, 251, 251, 250]


def test_a_rank_without_rows_in_the_tail_gets_an_empty_batch_of_the_same_kind(tmp_path, features):
    small = write(tmp_path / "small", table(9), files=1, group=4)
    for worker_count in (1, 2):
        stream = ParquetStream(small, features, 4, rank=2, world_size=3)
        batches = [b for worker in range(worker_count) for b in stream.walk(worker, worker_count)]
        assert sorted(map(len, batches)) == [0, 1, 1]
        assert all(b.categorical.shape[1] == 1 and b.dense.shape[1] == 2 for b in batches)
        assert Batch.concat(batches).labels is not None


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_loader_counts_what_was_consumed_and_not_what_was_read_ahead(make, prefetch):
    loader = StreamLoader(make(), prefetch=prefetch)
    sizes = []
    for batch in loader:
        sizes.append((len(batch), loader.sampler.last_size))
        if len(sizes) == 4:
            break
    assert sizes == [(64, 64)] * 4
    assert loader.state_dict()["position"] == 256
    rest = list(loader)
    assert len(rest) == len(loader) - 4 == 12
    assert loader.sampler.last_size == ROWS % 64
    assert loader.wait_seconds > 0


def test_stopping_early_ends_the_thread_and_its_error_reaches_the_loop(make, tmp_path):
    before = threading.active_count()
    steps = iter(StreamLoader(make(), prefetch=1))
    next(steps)
    steps.close()
    assert threading.active_count() == before

    copy = write(tmp_path / "copy", table())
    loader = StreamLoader(make(path=copy, shuffle=False), prefetch=1)
    damaged = copy / "part-001.parquet"
    content = bytearray(damaged.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    times = damaged.stat()
    damaged.write_bytes(content)
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))  # the disk did it, and not a writer
    with pytest.raises(UserError, match=r"part-001\.parquet.*damaged"):
        list(loader)
    assert threading.active_count() == before


def test_a_file_that_was_replaced_meanwhile_is_named(make, tmp_path):
    copy = write(tmp_path / "copy", table())
    stream = make(path=copy)
    pq.write_table(table(100), copy / "part-002.parquet", row_group_size=30)
    with pytest.raises(UserError, match=r"part-002\.parquet"):
        list(stream)
    stream = make(path=copy)
    same = pq.read_table(copy / "part-001.parquet")
    pq.write_table(same, copy / "part-001.parquet", row_group_size=50)  # would fit, and is other bytes' time
    with pytest.raises(UserError, match=r"part-001\.parquet was changed while the run read it"):
        list(stream)
    stream = make(path=copy)
    (copy / "part-002.parquet").unlink()
    with pytest.raises(UserError, match=r"cannot read .*part-002\.parquet"):
        list(stream)


def test_wrong_columns_and_labels_are_named(log, features, tmp_path):
    other = Features.fit(table(), dataclasses.replace(SPEC, numeric=("unused",), label="y"))
    write(tmp_path / "less", table().drop_columns(["unused"]))
    with pytest.raises(UserError, match="column 'unused' is not in"):
        ParquetStream(tmp_path / "less", other, 10)
    write(tmp_path / "unlabelled", table().drop_columns(["y"]))
    with pytest.raises(UserError, match="column 'y'"):
        ParquetStream(tmp_path / "unlabelled", features, 10)
    stream = ParquetStream(tmp_path / "unlabelled", features, 100, labels=False, rank=0, world_size=1)
    assert all(batch.labels is None for batch in stream)
    write(tmp_path / "none", table().slice(0, 0))
    with pytest.raises(UserError, match="holds no rows"):
        ParquetStream(tmp_path / "none", features, 10)
    with pytest.raises(UserError, match="window is 0"):
        ParquetStream(log, features, 10, window=0)
    with pytest.raises(UserError, match="prefetch is -1"):
        StreamLoader(stream, prefetch=-1)


def test_features_can_be_fitted_on_a_sample_of_row_groups(log):
    reader = RowGroupReader(sorted(log.iterdir()), SPEC.columns())
    sample = reader.sample(120, seed=1)
    assert 120 <= sample.num_rows < 170
    assert sample.equals(RowGroupReader(sorted(log.iterdir()), SPEC.columns()).sample(120, seed=1))
    assert reader.counts.groups_read == 3
    assert reader.sample(10**9).num_rows == ROWS
    assert Features.fit(sample, SPEC).num_dense == 2
