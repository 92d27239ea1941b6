"""The columnar loader and DataLoader workers: one process and its threads and workers."""

import contextlib
import gc
import multiprocessing
import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.torch_adapter import data_loader
from dtlab.errors import UserError
from dtlab.ranks.seeds import worker_init


def table_of(rows, weights=False):
    ids = torch.arange(rows) + 100
    return Batch(
        ids=ids,
        categorical=torch.stack([ids, ids % 7], dim=1),
        dense=ids.float().reshape(-1, 1) / 2,
        labels=(ids % 2).float(),
        weights=ids.float() if weights else None,
    )


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "dtlab-loader"]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("chunk_rows", [1, 10, 10_000])
@pytest.mark.parametrize("rank_of", [(0, 1), (2, 3)])
def test_batches_are_those_of_the_sampler_column_by_column(prefetch, chunk_rows, rank_of):
    rank, world_size = rank_of
    table = table_of(53, weights=True)
    expected = GlobalBatchSampler(53, 8, rank=rank, world_size=world_size, seed=4)
    sampler = GlobalBatchSampler(53, 8, rank=rank, world_size=world_size, seed=4)
    loader = Loader(table, sampler, prefetch=prefetch, chunk_rows=chunk_rows)
    for _ in range(2):
        for index, batch in zip(expected, loader, strict=True):
            want = table.take(index)
            assert all(torch.equal(batch.columns()[name], column) for name, column in want.columns().items())
            assert sampler.last_size == expected.last_size
    assert loader_threads() == []
    assert loader.wait_seconds > 0


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("chunk_rows", [1, 12])
def test_position_counts_what_was_consumed_and_not_what_was_prefetched(prefetch, chunk_rows):
    table = table_of(40)
    loader = Loader(table, GlobalBatchSampler(40, 4, seed=1), prefetch=prefetch, chunk_rows=chunk_rows)
    seen = [row for _, batch in zip(range(3), loader, strict=False) for row in batch.ids.tolist()]
    assert loader.state_dict() == {"seed": 1, "epoch": 0, "position": 12}
    resumed = Loader(table, GlobalBatchSampler(40, 8, rank=0, world_size=1), prefetch=prefetch)
    resumed.load_state_dict(loader.state_dict())
    rest = [row for batch in resumed for row in batch.ids.tolist()]
    assert sorted(seen + rest) == table.ids.tolist()


def test_a_consumer_that_stops_early_leaves_no_thread_and_no_output(capfd):
    for _ in range(5):
        loader = Loader(table_of(400), GlobalBatchSampler(400, 4), prefetch=2, chunk_rows=4)
        for _ in loader:
            break
        with contextlib.suppress(KeyError):
            for _ in loader:
                raise KeyError("the training step failed")
    never_started = iter(loader)
    del never_started
    gc.collect()
    assert loader_threads() == []
    assert capfd.readouterr() == ("", "")


def test_an_iterator_that_is_dropped_half_way_ends_its_thread():
    iterator = iter(Loader(table_of(400), GlobalBatchSampler(400, 4), prefetch=1, chunk_rows=4))
    next(iterator)
    assert len(loader_threads()) == 1
    del iterator
    gc.collect()
    assert loader_threads() == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_while_gathering_reaches_the_loop(prefetch):
    class Torn(Batch):
        def take(self, index):
            if 23 in torch.as_tensor(index).tolist():
                raise OSError("the disk went away")
            return super().take(index)

    torn = Torn(**table_of(40).columns())
    loader = Loader(torn, GlobalBatchSampler(40, 4, shuffle=False), prefetch=prefetch, chunk_rows=4)
    got = []
    with pytest.raises(OSError, match="the disk went away"):
        got.extend(loader)
    assert len(got) == 5
    assert loader.state_dict()["position"] == 20
    assert loader_threads() == []


def test_changing_a_batch_in_place_does_not_change_the_table():
    table = table_of(20)
    before = table.dense.clone()
    for batch in Loader(table, GlobalBatchSampler(20, 20, shuffle=False), prefetch=0):
        batch.dense.zero_()
    assert torch.equal(table.dense, before)


def test_a_rank_without_rows_in_the_tail_gets_an_empty_batch_with_all_columns():
    loader = Loader(table_of(5), GlobalBatchSampler(5, 4, rank=3, world_size=4), prefetch=0)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [1, 0]
    assert batches[1].categorical.shape == (0, 2)
    assert batches[1].labels.shape == (0,)


def test_an_empty_table_gives_epochs_without_steps():
    for prefetch in (0, 2):
        loader = Loader(table_of(0), GlobalBatchSampler(0, 4), prefetch=prefetch)
        assert list(loader) == []
        assert loader.sampler.epoch == 1


def test_bad_arguments_of_the_loader_are_named():
    with pytest.raises(UserError, match="the sampler is over 4 samples, the table has 5 rows"):
        Loader(table_of(5), GlobalBatchSampler(4, 2))
    with pytest.raises(UserError, match="prefetch is -1"):
        Loader(table_of(5), GlobalBatchSampler(5, 2), prefetch=-1)


def test_columns_of_different_length_are_refused():
    ids = torch.arange(3)
    with pytest.raises(UserError, match=r"'ids': 3, 'categorical': 2, 'dense': 3"):
        Batch(ids, torch.zeros(2, 1, dtype=torch.int64), torch.zeros(3, 1))
    whole = table_of(3)
    with pytest.raises(UserError, match="batch 1 has the columns"):
        Batch.concat([whole, table_of(3, weights=True)])
    with pytest.raises(UserError, match="empty list"):
        Batch.concat([])
    assert torch.equal(Batch.concat([whole, whole.take(np.array([], dtype=np.int64))]).ids, whole.ids)


class NumpyDraws(Dataset):
    """Each sample is a random number from NumPy's global generator."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return int(np.random.randint(10**9))


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("keep", [False, True])
def test_a_loader_made_anew_every_epoch_does_not_leak_descriptors_or_workers(keep):
    loaders, counts = [], []
    for _ in range(20):
        loader = data_loader(
            NumpyDraws(), GlobalBatchSampler(8, 4), num_workers=2, persistent_workers=not keep
        )
        assert sum(len(batch) for batch in loader) == 8
        if keep:
            loaders.append(loader)
        else:
            loader.close()
        counts.append(open_descriptors())
    assert counts[-1] <= counts[1] + 5
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_numpy_draws_differ_between_workers_epochs_and_repeat_with_the_seed():
    def epochs(state=None, seed=5):
        loader = data_loader(NumpyDraws(), GlobalBatchSampler(8, 2, seed=seed), num_workers=4)
        if state:
            loader.load_state_dict(state)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    first, second = epochs()
    assert len(set(first + second)) == 16
    assert epochs() == [first, second]
    assert epochs({"seed": 5, "epoch": 1, "position": 0})[0] == second
    assert epochs(seed=6)[0] != first


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_worker_init_in_a_plain_loader_gives_new_draws_every_epoch():
    def epochs():
        torch.manual_seed(1)
        loader = DataLoader(NumpyDraws(), batch_size=2, num_workers=4, worker_init_fn=worker_init)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    first, second = epochs()
    assert len(set(first + second)) == 16
    assert epochs() == [first, second]


def test_persistent_workers_get_the_next_epoch_and_end_on_close():
    loader = data_loader(NumpyDraws(), GlobalBatchSampler(8, 4), num_workers=2, persistent_workers=True)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert len(multiprocessing.active_children()) == 2
    assert len(set(epochs[0] + epochs[1])) == 16
    loader.close()
    assert multiprocessing.active_children() == []
    with pytest.raises(UserError, match="closed"):
        iter(loader)


class Dies(NumpyDraws):
    def __getitem__(self, index):
        if index == 5:
            os._exit(3)
        return index


def test_a_dead_loader_worker_is_named_with_its_exit_code():
    loader = data_loader(Dies(), GlobalBatchSampler(8, 2, shuffle=False), num_workers=2)
    with pytest.raises(
        RuntimeError, match="data loader worker 0 of 2 on rank 0 of 1 exited with exit code 3"
    ):
        list(loader)
