"""A throttled disk is one disk for every process that has it, and gives no more than its rate."""

import os
import pickle
import time

import pytest

from dtlab import launch, world
from dtlab.data.throttle import SharedDisk
from dtlab.errors import UserError


def _reads(disk: SharedDisk, count: int, rows: int) -> tuple[float, float]:
    """Start and end of `count` reads by this rank, on the clock of the host."""
    with world() as w:
        w.barrier()
        began = time.monotonic()
        for _ in range(count):
            disk.read(rows)
        return began, time.monotonic()


def test_ranks_together_get_no_more_rows_a_second_than_the_disk_has() -> None:
    disk = SharedDisk(rows_per_second=2000)
    spans = launch(_reads, 3, disk, 4, 20, timeout=30)
    took = max(end for _, end in spans) - min(start for start, _ in spans)
    assert took >= 3 * 4 * 20 / 2000


def test_another_disk_is_not_waited_for() -> None:
    busy, free = SharedDisk(1), SharedDisk(1000)
    busy._book(3600)  # busy for an hour from now
    assert free._book(10) < busy._book(0)


def test_a_read_waits_for_the_reads_before_it() -> None:
    disk = SharedDisk(rows_per_second=1000)
    first, second = disk._book(50), pickle.loads(pickle.dumps(disk))._book(50)
    assert second - first == pytest.approx(0.05)
    assert disk.read(0) >= 0.0
    assert time.monotonic() >= second


def test_its_file_goes_with_the_object_that_made_it_and_not_with_a_copy() -> None:
    disk = SharedDisk(1000)
    path = disk._path
    copy = pickle.loads(pickle.dumps(disk))
    del copy
    assert os.path.exists(path)
    del disk
    assert not os.path.exists(path)


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), True])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UserError, match="rows_per_second"):
        SharedDisk(rate)
