"""The batch is doubled until memory ends, and nobody can tell afterwards that anything was tried."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from dtlab.data.batch import Batch
from dtlab.data.text import TextWindows
from dtlab.diagnose.batch_finder import find_batch, repeated
from dtlab.diagnose.step_memory import memory_limit
from dtlab.errors import UserError
from dtlab.train.generators import Generators
from dtlab.train.state import flatten

WIDTH = 64


class Net(nn.Module):
    """Buffers that a forward changes, draws, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, categorical: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return self.inside(dense).squeeze(1)


def rows(count: int) -> Batch:
    return Batch(
        ids=torch.arange(count),
        categorical=torch.zeros(count, 0, dtype=torch.int64),
        dense=torch.rand(count, WIDTH),
        labels=torch.arange(count).remainder(2).float(),
    )


def parts(lr: float = 1e-2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.AdamW(net.parameters(), lr=lr)


def everything(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, object]:
    gradients = {name: p.grad for name, p in net.named_parameters()}
    modes = [module.training for module in net.modules()]
    state = {
        "net": net.state_dict(), "optimizer": optimizer.state_dict(), "gradients": gradients, "modes": modes,
        "generators": Generators().state_dict(),
    }  # fmt: skip
    tensors, tree = flatten(state)
    return {name: tensor.clone() for name, tensor in tensors.items()}, copy.deepcopy(tree)


def assert_same(one: tuple[dict, object], other: tuple[dict, object]) -> None:
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        assert torch.equal(tensor, other[0][name]), name


@pytest.mark.parametrize("has_trained", [False, True])
def test_finder_leaves_everything_bit_for_bit_as_it_was(has_trained: bool) -> None:
    net, optimizer = parts()
    if has_trained:
        net(rows(8).categorical, rows(8).dense).sum().backward()
        optimizer.step()
    net.eval()
    random.seed(3)
    np.random.seed(3)
    before, tensors = everything(net, optimizer), [id(p) for p in net.parameters()]
    found = find_batch(net, optimizer, rows, start=4, limit_bytes=400_000)
    assert len(found.tried) > 2, "the last trial must run out of memory in the middle of a step"
    assert_same(before, everything(net, optimizer))
    assert tensors == [id(p) for p in net.parameters()]


def test_every_trial_but_the_last_fits_and_rows_double() -> None:
    net, optimizer = parts()
    found = find_batch(net, optimizer, rows, start=4, limit_bytes=400_000)
    sizes = [one.batch for one in found.tried]
    assert sizes == [4 * 2**turn for turn in range(len(sizes))]
    assert [one.verdict for one in found.tried[:-1]] == ["fits"] * (len(sizes) - 1)
    assert found.tried[-1].verdict in ("over the share", "out of memory")
    assert found.batch == sizes[-2]
    assert all(one.share < 0.9 for one in found.tried[:-1])


def test_a_batch_just_over_the_share_is_told_from_one_that_is_out_of_memory() -> None:
    net, optimizer = parts()
    needed = find_batch(net, optimizer, rows, start=64, most=64, limit_bytes=10**9).tried[0].bytes
    within = find_batch(net, optimizer, rows, start=64, most=64, limit_bytes=int(needed / 0.89))
    over = find_batch(net, optimizer, rows, start=64, most=64, limit_bytes=int(needed / 0.91))
    out = find_batch(net, optimizer, rows, start=64, most=64, limit_bytes=int(needed / 1.01))
    assert [(f.tried[0].verdict, f.batch) for f in (within, over, out)] == [
        ("fits", 64),
        ("over the share", 0),
        ("out of memory", 0),
    ]
    assert out.tried[0].bytes is None
    assert "out of memory on rank 0" in str(out)


def test_bytes_hold_weights_gradients_optimizer_and_activations() -> None:
    net, optimizer = parts()
    state = 4 * sum(p.nbytes for p in net.parameters())  # weight, gradient and two moments of AdamW
    small, large = (
        find_batch(net, optimizer, rows, start=n, most=n, limit_bytes=10**9).tried[0].bytes for n in (2, 1024)
    )
    assert state < small < 1.5 * state
    # The batch, and at least the outputs of the first layer, BatchNorm, dropout and ReLU.
    assert large - small > 1000 * WIDTH * 4 * 5


def test_no_more_rows_than_asked_for() -> None:
    net, optimizer = parts()
    found = find_batch(net, optimizer, rows, start=4, most=17, limit_bytes=10**9)
    assert [one.batch for one in found.tried] == [4, 8, 16]
    assert found.batch == 16
    assert "17" in found.stopped


def test_an_error_that_is_not_about_memory_is_raised_and_leaves_everything_as_it_was() -> None:
    net, optimizer = parts()
    before = everything(net, optimizer)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        if len(batch) > 4:
            raise ValueError("bad batch")
        return model(batch.categorical, batch.dense).sum()

    with pytest.raises(ValueError, match="bad batch"):
        find_batch(net, optimizer, rows, loss=loss, start=4, limit_bytes=10**9)
    assert_same(before, everything(net, optimizer))


def test_without_a_limit_a_rank_gets_its_part_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    alone = memory_limit(cpu)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert 0 < memory_limit(cpu) < alone / 16  # others use memory meanwhile: not exactly 1/64
    assert memory_limit(cpu, [torch.zeros(10)]) >= 40


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"start": 0}, "start = 0"),
        ({"start": 8, "most": 4}, "most = 4"),
        ({"share": 0.0}, "share = 0.0"),
        ({"share": 1.5}, "share = 1.5"),
        ({"limit_bytes": 0}, "limit_bytes = 0"),
        ({"limit_bytes": float("nan")}, "limit_bytes = nan"),
        ({"limit_bytes": "1e9"}, "limit_bytes = '1e9'"),
        ({"start": 4.0}, "start = 4.0: give a whole number"),
        ({"start": float("nan")}, "start = nan"),
        ({"start": True}, "start = True"),
        ({"most": 512.5}, "most = 512.5"),
        ({"share": float("nan")}, "share = nan"),
        ({"share": "0.9"}, "share = '0.9'"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(wrong: dict, named: str) -> None:
    net, optimizer = parts()
    with pytest.raises(UserError, match=named):
        find_batch(net, optimizer, rows, **wrong)


def test_a_loader_that_runs_out_of_rows_is_told_and_no_size_that_never_ran_is_reported() -> None:
    net, optimizer = parts()
    data = rows(20)
    before, seen = everything(net, optimizer), []
    with pytest.raises(UserError, match=r"batch_of\(32\) gave 20 rows: .*most"):
        find_batch(
            net, optimizer, lambda count: data.take(torch.arange(min(count, 20))), start=4, limit_bytes=10**9,
            on_trial=lambda one: seen.append(one.batch),
        )  # fmt: skip
    assert seen == [4, 8, 16]
    assert_same(before, everything(net, optimizer))


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: (x, x.sum(1)),
        lambda x: {"dense": x, "scale": torch.ones(3)},
        lambda x: [x],
    ],
)
def test_rows_are_counted_in_tensors_tuples_and_dicts(shape) -> None:
    net = nn.Linear(3, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss(model: nn.Module, batch) -> torch.Tensor:
        first = (
            batch
            if isinstance(batch, torch.Tensor)
            else next(iter(getattr(batch, "values", batch.__iter__)()))
        )
        return model(first).sum()

    def found(give):
        return find_batch(
            net, sgd, lambda n: shape(torch.ones(give(n), 3)), loss=loss, start=8, most=8, limit_bytes=10**8
        )

    assert found(lambda n: n).batch == 8
    for give in (lambda n: n - 1, lambda n: n + 1):
        with pytest.raises(UserError, match=r"batch_of\(8\) gave"):
            found(give)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda total: total.item(), "loss returned a float"),
        (lambda total: total.expand(3), r"of shape \[3\]"),
        (lambda total: total.detach(), "without a graph"),
    ],
)
def test_a_loss_that_is_no_sum_is_named_and_everything_is_as_before(wrong, named) -> None:
    net, optimizer = parts()
    before = everything(net, optimizer)
    with pytest.raises(UserError, match=named):
        find_batch(net, optimizer, rows, loss=lambda m, b: wrong(m(b.categorical, b.dense).sum()), start=4)
    assert_same(before, everything(net, optimizer))


def test_windows_of_text_are_repeated_like_rows_of_a_table() -> None:
    windows = TextWindows(torch.arange(9, dtype=torch.uint8), sequence=4)
    many = repeated(windows.take(torch.tensor([0, 1])), 3)
    assert many.tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert many.ids.tolist() == [0, 1, 0]
