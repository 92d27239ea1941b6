"""Gradients on two ranks: the same bits, the gradient of the joined batch, and what is neither."""

import pytest
import torch
from torch import nn

import dtlab
from dtlab.diagnose.checks import FAIL, OK
from dtlab.diagnose.gradient_agreement import gradient_agreement
from dtlab.errors import UserError
from dtlab.parallel.ddp import data_parallel

ROWS = ((0, 5), (5, 8))  # five rows on rank 0, three on rank 1


def agreements():
    """What is found after a right backward and after several wrong ones, in one launch."""
    with dtlab.world() as w:
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
        mine = data[slice(*ROWS[w.rank])]

        def squares(model, batch):
            return model(batch).square().sum()

        def net():
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

        def checked(model, divisor):
            (squares(model, mine) / divisor).backward()
            before = [p.grad.clone() for p in model.parameters()]
            found = gradient_agreement(model, loss=squares, batch=mine)
            assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
            return found

        out = {
            "right": checked(data_parallel(net(), w), 8 / 2),
            "right by hand": checked(data_parallel(net(), w, engine="by_hand"), 8 / 2),
            "no sync": checked(net(), 8 / 2),
            "own rows": checked(data_parallel(net(), w), len(mine)),
            "half": checked(data_parallel(net(), w), 8),
        }
        model = data_parallel(net(), w)
        squares(model, mine).backward()
        if w.rank == 1:
            model.module[0].bias.grad[2] += 1e-7
        out["one bit on rank 1"] = gradient_agreement(model)
        if w.rank == 1:
            model.module[0].bias.grad = None
        out["none on rank 1"] = gradient_agreement(model)
        try:
            gradient_agreement(net())
        except UserError as error:
            out["no gradient"] = str(error)
        return out


@pytest.fixture(scope="module")
def found():
    ranks = dtlab.launch(agreements, 2, timeout=60, echo=False)
    for name, value in ranks[0].items():
        assert value == ranks[1][name]  # every rank is told the same
    return ranks[0]


@pytest.mark.parametrize("name", ["right", "right by hand"])
def test_mean_over_ranks_is_the_gradient_of_the_joined_batch(found, name):
    assert [line.status for line in found[name].lines] == [OK, OK]
    assert found[name].difference < 1e-5
    assert found[name].factor == pytest.approx(1.0, abs=1e-5)
    assert not found[name].failed


def test_gradients_without_sync_differ_by_name_and_rank(found):
    assert found["no sync"].failed
    assert list(found["no sync"].differing) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert set(map(tuple, found["no sync"].differing.values())) == {(1,)}
    assert "data_parallel" in found["no sync"].lines[0].fix


def test_mean_of_means_over_unequal_batches_is_not_the_mean(found):
    ranks, joined = found["own rows"].lines
    assert (ranks.status, joined.status) == (OK, FAIL)
    assert found["own rows"].difference > 0.05


def test_gradient_that_is_half_as_large_is_named_so(found):
    assert found["half"].lines[1].status == FAIL
    assert found["half"].factor == pytest.approx(0.5, abs=1e-5)
    assert "0.5 times" in found["half"].lines[1].value


def test_a_single_changed_or_missing_gradient_is_found(found):
    assert found["one bit on rank 1"].differing == {"0.bias": [1]}
    assert found["one bit on rank 1"].difference is None
    assert found["none on rank 1"].differing == {"0.bias": [1]}
    assert found["no gradient"].startswith("no parameter holds a gradient")


def test_sparse_gradients_are_compared_row_by_row():
    model = nn.Embedding(6, 2, sparse=True)
    rows = torch.tensor([1, 1, 4])
    (model(rows).sum() / 3).backward()
    found = gradient_agreement(model, loss=lambda m, batch: m(batch).sum(), batch=rows)
    assert found.difference < 1e-6
    with pytest.raises(UserError, match="loss and batch go together"):
        gradient_agreement(model, batch=rows)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *(({"divisor": value}, "divisor = ") for value in (0, -8, float("nan"), float("inf"), True, "8")),
        *(({"limit": value}, "limit = ") for value in (float("nan"), -1, 0, 5, "0.05")),
        *(({"rounding": value}, "rounding = ") for value in (float("nan"), -1, 0, 0.5)),
        ({"loss": lambda m, x: m(x).sum().item()}, "loss returned a float"),
        ({"loss": lambda m, x: m(x)}, r"loss returned a tensor of shape \[4, 1\]"),
        ({"loss": lambda m, x: m(x).sum().detach()}, "without a graph"),
    ],
)
def test_arguments_under_which_any_gradient_would_pass_are_refused_by_name(wrong, named):
    model, rows = nn.Linear(2, 1), torch.ones(4, 2)
    model(rows).mean().backward()
    with pytest.raises(UserError, match=named):
        gradient_agreement(model, **{"loss": lambda m, x: m(x).sum(), "batch": rows, **wrong})
