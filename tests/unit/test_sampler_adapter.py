"""The sampler in torch's DataLoader, and loaders that dtlab did not make."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dtlab.data.draws import preserved
from dtlab.data.foreign import fast_forward, in_step
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.torch_adapter import TorchBatchSampler, data_loader
from dtlab.errors import DtlabWarning, UserError
from dtlab.train.steps import global_steps


class Noisy(Dataset):
    """Samples with random augmentation from all three generators."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        noise = [torch.rand(1).item(), float(np.random.rand()), random.random()]
        return torch.tensor([float(index), *noise], dtype=torch.float64)


def test_a_loop_without_set_epoch_warns_in_the_second_epoch_and_moves_on():
    sampler = TorchBatchSampler(GlobalBatchSampler(22, 4, rank=0, world_size=2))
    loader = DataLoader(torch.arange(22), batch_sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = torch.cat(list(loader))
    with pytest.warns(DtlabWarning, match="set_epoch"):
        second = torch.cat(list(loader))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_bring_no_warning_where_set_epoch_was_called(persistent):
    sampler = TorchBatchSampler(GlobalBatchSampler(22, 4))
    loader = DataLoader(torch.arange(22), batch_sampler=sampler, num_workers=1, persistent_workers=persistent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert torch.cat(list(loader)).unique().tolist() == list(range(22))
    with pytest.warns(DtlabWarning, match="set_epoch was not called"):
        list(loader)


def test_a_loop_with_set_epoch_does_not_warn_and_follows_the_sampler():
    expected = GlobalBatchSampler(22, 4, rank=1, world_size=2, seed=8)
    sampler = TorchBatchSampler(GlobalBatchSampler(22, 4, rank=1, world_size=2, seed=8))
    loader = DataLoader(torch.arange(22), batch_sampler=sampler)
    assert len(loader) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert [b.tolist() for b in loader] == [b.tolist() for b in expected]


def test_evaluation_in_fixed_order_may_be_repeated_without_set_epoch():
    sampler = TorchBatchSampler(GlobalBatchSampler(10, 4, shuffle=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(sampler) == list(sampler)


def test_an_empty_batch_that_plain_collate_cannot_make_is_refused_on_every_rank():
    for rank in range(4):
        with pytest.raises(UserError, match="the last global batch has 2 samples for 4 ranks"):
            TorchBatchSampler(GlobalBatchSampler(10, 8, rank=rank, world_size=4))


def test_an_empty_batch_keeps_the_kind_of_the_others():
    table = TensorDataset(torch.arange(3), torch.zeros(3, 5))
    batches = list(data_loader(table, GlobalBatchSampler(3, 4, rank=3, world_size=4)))
    assert [tuple(column.shape) for column in batches[0]] == [(0,), (0, 5)]


def stop_after(loader, steps):
    for _, _ in zip(range(steps), loader, strict=False):
        pass
    return loader.state_dict()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_augmentation_after_a_resume_is_bit_identical_to_the_uninterrupted_run(num_workers):
    torch.manual_seed(0)
    uninterrupted = data_loader(Noisy(), GlobalBatchSampler(20, 4, seed=1))
    epochs = [list(uninterrupted) for _ in range(2)]
    state = stop_after(data_loader(Noisy(), GlobalBatchSampler(20, 4, seed=1), num_workers=num_workers), 3)
    assert state == {"seed": 1, "epoch": 0, "position": 12}  # what workers made ahead does not count
    torch.manual_seed(77)  # another process has another history
    resumed = data_loader(Noisy(), GlobalBatchSampler(20, 4), num_workers=num_workers)
    resumed.load_state_dict(state)
    for expected in (epochs[0][3:], epochs[1]):
        got = list(resumed)
        assert len(got) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not torch.equal(epochs[0][0][:, 1:], epochs[1][0][:, 1:])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loading_does_not_move_the_generators_of_the_rank(num_workers):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    list(data_loader(Noisy(), GlobalBatchSampler(20, 4), num_workers=num_workers))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_ranks_draw_different_augmentation():
    noise = [
        next(iter(data_loader(Noisy(), GlobalBatchSampler(20, 4, rank=r, world_size=2)))) for r in range(2)
    ]
    assert not torch.equal(noise[0][:, 1:], noise[1][:, 1:])


def test_arguments_that_the_sampler_decides_are_refused():
    with pytest.raises(UserError, match="shuffle=True is decided by the sampler"):
        data_loader(Noisy(), GlobalBatchSampler(20, 4), shuffle=True)
    with pytest.raises(UserError, match="sampler is missing"):
        data_loader(Noisy())
    with pytest.raises(UserError, match="over 19 samples, the data set has 20"):
        data_loader(Noisy(), GlobalBatchSampler(19, 4))


class Counting(IterableDataset):
    """A stream without a sampler, with a random number in each item."""

    def __iter__(self):
        for number in range(5):
            yield number, torch.rand(1).item()


def test_a_loader_that_cannot_jump_really_skips_and_draws_what_the_whole_run_drew():
    torch.manual_seed(11)
    loader = DataLoader(Counting(), batch_size=None)
    batches, states = [], []
    for batch in loader:
        batches.append(batch)
        states.append(torch.get_rng_state())
    torch.set_rng_state(states[2])  # as restored from a checkpoint taken after batch 2
    assert next(fast_forward(loader, 3)) == batches[3]


def test_an_unstarted_generator_and_a_function_that_makes_one_are_skipped():
    def numbers():
        yield from range(5)

    assert list(fast_forward(numbers(), 3)) == list(fast_forward(numbers, 3)) == [3, 4]


def test_a_loader_whose_place_is_unknown_is_an_error_and_not_a_warning():
    started = (number for number in range(5))
    next(started)
    with pytest.raises(UserError, match="started already"):
        fast_forward(started, 3)
    with pytest.raises(UserError, match="cannot tell where"):
        fast_forward(iter([0, 1, 2]), 1)
    with pytest.raises(UserError, match="ended after 5 batches"):
        fast_forward([0, 1, 2, 3, 4], 6)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(20))

    def __len__(self):
        return 20


@pytest.mark.parametrize("dataset", [Numbers(), (number for number in range(20))])
def test_data_without_an_index_are_refused_before_the_first_batch(dataset):
    with pytest.raises(UserError, match=r"^dataset = a (Numbers|generator): .*BlockStream.*fast_forward"):
        data_loader(dataset, GlobalBatchSampler(20, 4))


def test_steps_of_a_loader_that_does_not_know_the_global_batch_are_refused():
    with pytest.raises(UserError, match=r"^loader = a DataLoader: give a dtlab.Loader"):
        next(global_steps(DataLoader(torch.arange(4))))


def test_skipping_leaves_all_generators_alone():
    def draws():
        for _ in range(3):
            yield random.random(), np.random.rand(), torch.rand(1)

    with preserved():
        expected = random.random(), np.random.rand(), torch.rand(1)
    got = next(fast_forward(draws, 2))
    assert got == expected


def test_in_step_without_a_group_gives_every_batch():
    assert list(in_step([1, 2, 3])) == [1, 2, 3]
