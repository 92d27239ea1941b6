"""What a Parquet stream takes from the machine: some windows of memory, few descriptors, no process left."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream_loader import StreamLoader

ROWS = 1003
SPEC = FeatureSpec(categorical=("c",), numeric=("x",), label="y", id="id")


def table(rows=ROWS):
    rng = np.random.default_rng(0)
    codes = [f"v{n}" for n in rng.integers(0, 9, rows)]
    y = rng.integers(0, 2, rows)
    return pa.table({"x": rng.normal(size=rows), "c": codes, "y": y, "id": np.arange(rows)})


def write(folder, whole, files, group=50):
    folder.mkdir()
    each = -(-whole.num_rows // files)
    for number in range(files):
        part = whole.slice(number * each, each)
        pq.write_table(part, folder / f"part-{number:03d}.parquet", row_group_size=group)
    return folder


@pytest.fixture(scope="module")
def features():
    return Features.fit(table(), SPEC)


MEMORY = """
import sys, tracemalloc
import pyarrow as pa
from dtlab.data.features import Features
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream_loader import StreamLoader

if __name__ == "__main__":
    tracemalloc.start()
    for window in (2, 80):  # rising, as Arrow's peak cannot be reset
        features = Features.from_json(sys.argv[2])
        stream = ParquetStream(sys.argv[1], features, 512, window=window, rank=0, world_size=1)
        if window == 2:
            next(stream.walk(0, 1))  # what is imported on first use is no row
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for batch in StreamLoader(stream, prefetch=1):
            pass
        print(pa.default_memory_pool().max_memory() + tracemalloc.get_traced_memory()[1] - before)
"""


def test_memory_holds_some_windows_and_not_the_table(tmp_path, features):
    whole = table(200_000)
    folder = write(tmp_path / "large", whole, files=4, group=2_500)
    script = tmp_path / "memory.py"
    script.write_text(MEMORY)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), features.to_json()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    two_groups, all_groups = map(int, done.stdout.split())
    assert all_groups > whole.nbytes
    assert two_groups < all_groups / 5


MANY = """
import os, resource, sys
from pathlib import Path
import pyarrow.parquet as pq
from dtlab.data.features import Features
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream_loader import StreamLoader

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    features = Features.from_json(sys.argv[2])
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 60, in_use + 60))
    try:
        held = [pq.ParquetFile(path) for path in sorted(folder.iterdir())]
        print("opened all")
    except OSError as error:
        print("naive:", error.errno)
    held = []
    for arguments in ({"prefetch": 0}, {"prefetch": 2}, {"num_workers": 2}):
        stream = ParquetStream(folder, features, 16, window=90, rank=0, world_size=1)
        kept = list(StreamLoader(stream, **arguments))  # all batches stay alive
        print(len(kept), sum(map(len, kept)))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_a_hundred_shards_that_exhaust_open_files_when_held_open_are_streamed(tmp_path, features):
    folder = write(tmp_path / "many", table(), files=100)
    script = tmp_path / "many.py"
    script.write_text(MANY)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), features.to_json()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["naive: 24", *["63 1003"] * 3]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_twenty_epochs_with_new_loaders_leak_no_descriptor_and_no_process(tmp_path, features):
    folder = write(tmp_path / "log", table(), files=3)
    held, counts = [], []
    for epoch in range(20):
        loader = StreamLoader(
            ParquetStream(folder, features, 256, rank=0, world_size=1), num_workers=2 if epoch % 4 == 1 else 0
        )
        loader.sampler.set_epoch(epoch)
        assert sum(len(batch) for batch in loader) == ROWS
        held.append(loader)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1] + 5, counts
    assert not multiprocessing.active_children()
