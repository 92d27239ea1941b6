"""Loader workers: when they pay, when they would deadlock, and what a silent or killed one is called."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import Dataset

from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.stream_loader import StreamLoader
from dtlab.data.torch_adapter import data_loader
from dtlab.data.worker_death import DataLoaderWorkerError
from dtlab.data.workers import recommend_workers, start_method, why_not_fork
from dtlab.errors import UserError

LOCK = threading.Lock()
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="fork and its threads as on Linux")


class NeedsALock(ParquetStream):
    def _transformed(self, table, rows):
        with LOCK:
            return super()._transformed(table, rows)


class UsesTwoThreads(ParquetStream):
    def _transformed(self, table, rows):
        torch.set_num_threads(2)
        torch.ones(1000, 1000).exp().sum()
        return super()._transformed(table, rows)


class DiesOfBusError(ParquetStream):
    def _transformed(self, table, rows):
        os.kill(os.getpid(), signal.SIGBUS)
        return super()._transformed(table, rows)


@pytest.fixture
def make(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=200), "y": rng.integers(0, 2, 200)})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=40)
    features = Features.fit(table, FeatureSpec(numeric=("x",), label="y"))

    def make(kind=ParquetStream, **arguments):
        arguments = {"rank": 0, "world_size": 1, **arguments}
        return kind(tmp_path / "log.parquet", features, 32, **arguments)

    return make


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_batches_are_the_same_with_every_start_method_and_resume_with_workers(make, method):
    expected = ids(StreamLoader(make(), prefetch=0))
    # Spawned workers import torch anew: one is enough.
    loader = StreamLoader(make(), num_workers=1 if method == "spawn" else 2, worker_start_method=method)
    steps = iter(loader)
    first = [next(steps).ids.tolist() for _ in range(3)]
    steps.close()
    assert loader.state_dict()["position"] == 96  # what workers made ahead does not count
    assert first + ids(loader) == expected
    assert loader.wait_seconds > 0
    assert not [p for p in multiprocessing.active_children() if "resource" not in p.name]


@on_linux
def test_a_worker_forked_while_a_thread_holds_its_lock_is_an_error_and_forkserver_is_not(make):
    release, held = threading.Event(), threading.Event()

    def hold():
        with LOCK:
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold, name="holder")
    holder.start()
    held.wait(10)
    try:
        assert "holder" in why_not_fork()
        assert start_method() == "forkserver"
        started = time.monotonic()
        forked = StreamLoader(make(NeedsALock), num_workers=1, worker_start_method="fork", worker_timeout=1)
        with pytest.raises(DataLoaderWorkerError, match=r"rank 0 of 1 gave no batch for 1 s: .*forkserver"):
            list(forked)
        assert time.monotonic() - started < 30
        assert len(list(StreamLoader(make(NeedsALock), num_workers=1))) == 7
    finally:
        release.set()
        holder.join()


@on_linux
def test_a_forked_worker_that_uses_threads_of_openmp_hangs_and_one_from_forkserver_works(make):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.ones(
            1000, 1000
        ).exp().sum()  # from now on this process has OpenMP threads, a forked one has not
        forked = StreamLoader(
            make(UsesTwoThreads), num_workers=1, worker_start_method="fork", worker_timeout=2
        )
        with pytest.raises(DataLoaderWorkerError, match="gave no batch for 2 s"):
            list(forked)
        # With one thread, as workers have unless they raise it, fork is fine.
        assert len(list(StreamLoader(make(), num_workers=1, worker_start_method="fork"))) == 7
        clean = StreamLoader(make(UsesTwoThreads), num_workers=1, worker_start_method="forkserver")
        assert len(list(clean)) == 7
    finally:
        torch.set_num_threads(before)


@on_linux
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_killed_for_a_full_shared_memory_says_so_long_before_the_timeout(make, method):
    loader = StreamLoader(make(DiesOfBusError), num_workers=1, worker_start_method=method, worker_timeout=90)
    with pytest.raises(DataLoaderWorkerError, match=r"worker 0 of 1 .*signal 7 .*/dev/shm"):
        list(loader)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_file_that_goes_while_workers_read_is_one_line_without_their_traceback(make, method, tmp_path):
    stream = make()
    (tmp_path / "log.parquet").unlink()
    with pytest.raises(UserError, match=r"^cannot read .*log\.parquet.*it was there when the run began$"):
        list(StreamLoader(stream, num_workers=1, worker_start_method=method))


class RefusesRow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise UserError("row 5: the image is empty; leave it out")
        return torch.tensor(index)


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children()}


def test_workers_end_with_the_error_of_their_epoch_though_its_traceback_lives_on():
    loader, before = (
        data_loader(RefusesRow(), GlobalBatchSampler(8, 2, shuffle=False), num_workers=2),
        children(),
    )
    batches = iter(loader)
    next(batches)
    assert len(children() - before) == 2
    with pytest.raises(UserError) as kept:
        list(batches)
    assert kept.tb is not None
    assert children() <= before


def test_workers_end_when_an_epoch_is_left_early():
    loader, before = (
        data_loader(RefusesRow(), GlobalBatchSampler(8, 2, shuffle=False), num_workers=2),
        children(),
    )
    for _ in loader:
        break
    assert children() <= before


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_data_set_refuses_is_told_alike_with_and_without_workers(workers):
    loader = data_loader(RefusesRow(), GlobalBatchSampler(8, 2, shuffle=False), num_workers=workers)
    with pytest.raises(UserError, match=r"^row 5: the image is empty; leave it out$"):
        list(loader)


def test_an_unknown_start_method_is_refused(make):
    with pytest.raises(UserError, match="worker_start_method is 'thread'"):
        list(StreamLoader(make(), num_workers=1, worker_start_method="thread"))


def advice(**changes):
    times = {"decode_seconds": 2e-3, "transform_seconds": 20e-3, "step_seconds": 10e-3}
    return recommend_workers(**{**times, "cores": 8, "shm_bytes": 10**9, "batch_bytes": 10**6, **changes})


def test_workers_pay_when_making_features_is_slower_than_training():
    slow = advice()
    assert (slow.num_workers, slow.prefetch) == (2, 0)
    assert slow.step_seconds == pytest.approx(12e-3)
    assert "2 workers" in slow.reason


@pytest.mark.parametrize(
    ("changes", "prefetch", "reason"),
    [
        ({"decode_seconds": 0, "transform_seconds": 1e-5}, 0, "in memory"),
        ({"transform_seconds": 5e-3}, 1, "thread reads ahead"),
        ({"cores": 2, "ranks_per_host": 2}, 0, "leave none"),
        ({"decode_seconds": 40e-3, "transform_seconds": 2e-3}, 1, "decodes the whole window again"),
        ({"shm_bytes": 64 * 2**20, "batch_bytes": 12 * 10**6}, 1, "--shm-size"),
    ],
)
def test_no_workers_where_they_cannot_help_and_the_reason_says_why(changes, prefetch, reason):
    given = advice(**changes)
    assert (given.num_workers, given.prefetch) == (0, prefetch)
    assert reason in given.reason


def test_python_code_in_a_thread_stops_the_step_and_one_worker_does_not():
    times = {"transform_seconds": 8e-3, "cores": 2}
    assert advice(**times).num_workers == 0
    assert advice(**times).step_seconds == pytest.approx(10e-3)
    python = advice(**times, python_seconds=8e-3)
    assert (python.num_workers, python.step_seconds) == (1, pytest.approx(12e-3))


def test_shared_memory_and_cores_limit_the_workers():
    few = advice(shm_bytes=64 * 2**20, batch_bytes=5 * 10**6, transform_seconds=50e-3)
    assert few.num_workers == 2
    assert "/dev/shm" in few.reason
    assert advice(transform_seconds=1.0).num_workers == 7
    assert "no core" in advice(transform_seconds=1.0).reason
    assert advice(transform_seconds=1.0, ranks_per_host=2).num_workers == 3
    alone = advice(transform_seconds=1.0, ranks_per_host=4)
    assert alone.num_workers == 0
    assert "no faster than a thread" in alone.reason


def test_times_that_are_none_are_refused():
    for changes in ({"decode_seconds": -1.0}, {"step_seconds": float("nan")}, {"cores": 0}):
        with pytest.raises(UserError):
            advice(**changes)
