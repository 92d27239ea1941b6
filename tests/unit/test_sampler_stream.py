"""Streams that are read block by block: full batches, one tail, one seed, exact resume."""

import numpy as np
import pytest
import torch

from dtlab.data.batch import Batch
from dtlab.data.stream import BlockStream, StreamSampler
from dtlab.data.torch_adapter import data_loader
from dtlab.errors import UserError


def blocks_of(rows):
    first = np.concatenate([[0], np.cumsum(rows)])
    return [np.arange(first[i], first[i + 1]) for i in range(len(rows))]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("block_rows", [[30, 10], [20, 20], [1] * 40, [40], [0, 39, 1]])
def test_no_short_batch_in_mid_stream_whatever_the_blocks(block_rows, window):
    sampler = StreamSampler(block_rows, 8, window=window, seed=3)
    batches = list(sampler)
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 8]
    assert sorted(np.concatenate(batches).tolist()) == list(range(40))


def test_number_of_batches_is_rows_over_batch_rounded_up():
    for rows in range(1, 30):
        sampler = StreamSampler([rows // 3, rows - rows // 3], 4, window=1)
        assert len(list(sampler)) == len(sampler) == -(-rows // 4)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(("batch", "dropped"), [(2, 0), (4, 2)])
def test_drop_last_over_worker_processes_drops_of_the_whole_set_and_says_how_much(batch, dropped):
    sampler = StreamSampler([3, 3, 2, 2], batch, tail="drop", seed=1)
    loader = data_loader(BlockStream(sampler, blocks_of([3, 3, 2, 2]).__getitem__), num_workers=4)
    seen = np.concatenate(list(loader)).tolist()
    assert len(seen) == len(set(seen)) == 10 - dropped
    assert sampler.dropped == dropped


def test_one_seed_for_all_ranks_sees_each_item_once_and_epochs_differ():
    ranks = [StreamSampler([4, 4, 4], 6, rank=rank, world_size=3, seed=9, window=2) for rank in range(3)]
    epochs = []
    for _ in range(2):
        parts = [np.concatenate(list(sampler)).tolist() for sampler in ranks]
        assert sorted(row for part in parts for row in part) == list(range(12))
        epochs.append(parts)
    assert epochs[0] != epochs[1]


def test_rows_are_shuffled_inside_a_window_only_and_only_needed_blocks_are_read():
    sampler = StreamSampler([10] * 6, 10, window=2, seed=4)
    read = []

    def reader(block):
        read.append(block)
        return blocks_of([10] * 6)[block]

    batches = list(BlockStream(sampler, reader))
    assert sorted(read) == list(range(6))
    for start in (0, 2, 4):
        window = np.concatenate(batches[start : start + 2])
        assert len({row // 10 for row in window.tolist()}) == 2
        assert window.tolist() != sorted(window.tolist())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_resumes_in_mid_epoch_without_reading_the_blocks_before(num_workers):
    rows = [7, 5, 6, 4]
    whole = BlockStream(StreamSampler(rows, 4, window=1, seed=2), blocks_of(rows).__getitem__)
    expected = [[b.tolist() for b in whole] for _ in range(2)]

    first = data_loader(
        BlockStream(StreamSampler(rows, 4, window=1, seed=2), blocks_of(rows).__getitem__),
        num_workers=num_workers,
    )
    for _, _ in zip(range(3), first, strict=False):
        pass
    read = []

    def reader(block):
        read.append(block)
        return blocks_of(rows)[block]

    resumed = BlockStream(StreamSampler(rows, 4, window=1), reader)
    resumed.sampler.load_state_dict(first.state_dict())
    assert [b.tolist() for b in resumed] == expected[0][3:]
    assert len(read) < 4
    assert [b.tolist() for b in resumed] == expected[1]


def test_blocks_may_be_columnar_batches():
    def block(number):
        ids = torch.arange(5) + 5 * number
        return Batch(ids, ids.reshape(-1, 1), ids.reshape(-1, 1).float(), ids.float())

    stream = BlockStream(StreamSampler([5, 5, 5], 4, window=2, seed=1, rank=0, world_size=1), block)
    batches = list(stream)
    assert sorted(torch.cat([b.ids for b in batches]).tolist()) == list(range(15))
    assert all(
        torch.equal(b.ids, b.categorical[:, 0]) and torch.equal(b.labels, b.ids.float()) for b in batches
    )


def test_a_rank_without_rows_in_the_tail_gets_an_empty_batch_of_the_same_kind():
    stream = BlockStream(
        StreamSampler([3, 2], 4, rank=1, world_size=2, shuffle=False), blocks_of([3, 2]).__getitem__
    )
    assert [b.tolist() for b in stream] == [[1, 3], []]


def test_persistent_workers_that_would_repeat_the_first_epoch_are_refused():
    stream = BlockStream(StreamSampler([3], 2), blocks_of([3]).__getitem__)
    with pytest.raises(UserError, match="persistent_workers"):
        data_loader(stream, num_workers=1, persistent_workers=True)
