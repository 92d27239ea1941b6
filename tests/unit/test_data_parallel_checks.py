"""What is found out about a model before its gradients are shared, without any process."""

import warnings

import pytest
import torch
from torch import nn

from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.by_hand_ddp import _fill_buckets
from dtlab.parallel.checks import (
    check_sparse_gradients,
    explain_unused,
    mutable_buffers,
    sparse_parameters,
    unused_parameters,
)
from dtlab.parallel.ddp import data_parallel, no_sync, unwrap
from dtlab.parallel.statistics import weighted_statistics


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head_a = nn.Linear(3, 1)
        self.head_b = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, heads: str) -> torch.Tensor:
        hidden = self.body(x)
        return sum(getattr(self, f"head_{head}")(hidden) for head in heads)


def test_the_search_for_unused_parameters_names_them_and_says_when_it_may_be_off() -> None:
    model = TwoHeads()
    one = unused_parameters(model, model(torch.ones(2, 3), "a").sum())
    assert one == ["head_b.weight", "head_b.bias"]
    assert "find_unused=True is needed" in explain_unused(one, find_unused=False)
    loss = model(torch.ones(2, 3), "ab").sum()
    assert unused_parameters(model, loss) == []
    assert "find_unused may be off" in explain_unused([], find_unused=True)
    assert all(parameter.grad is None for parameter in model.parameters()), "asking must not leave gradients"
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_frozen_parameters_are_not_called_unused() -> None:
    model = TwoHeads()
    model.head_b.requires_grad_(False)
    assert unused_parameters(model, model(torch.ones(2, 3), "a").sum()) == []


def test_a_loss_that_depends_on_nothing_leaves_every_parameter_unused() -> None:
    assert len(unused_parameters(TwoHeads(), torch.ones(()))) == 6


def test_sparse_gradients_on_nccl_are_refused_with_the_parameter_and_two_ways_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 2, sparse=True)
            self.table = nn.Embedding(5, 2)

    with pytest.raises(UserError, match=r"^embedding\.weight: .*sparse=False.* or .*'gloo'") as caught:
        check_sparse_gradients(Model(), "nccl")
    assert "\n" not in str(caught.value)
    check_sparse_gradients(Model(), "gloo")
    check_sparse_gradients(DeepFM([3, 5], 2), "nccl")
    assert sparse_parameters(DeepFM([3, 5], 2, sparse=True)) == ["embedding.weight", "first_order.weight"]


def test_only_buffers_that_a_forward_changes_are_broadcast() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert mutable_buffers(model) == ["1.running_mean", "1.running_var"]
    assert mutable_buffers(DeepFM([3, 5], 2)) == []


def test_buckets_hold_each_trainable_parameter_once_and_no_more_than_their_size() -> None:
    model = DeepFM([30, 50], 4, dim=4, hidden=(8,), sparse=True)
    model.bias.requires_grad_(False)
    buckets = _fill_buckets(model, 0.0004, None)
    names = {parameter: name for name, parameter in model.named_parameters()}
    held = [names[parameter] for bucket in buckets for parameter in bucket.parameters]
    assert sorted(held) == sorted(set(names.values()) - {"bias"})
    assert [bucket.is_sparse for bucket in buckets].count(True) == 2
    for bucket in buckets:
        size = sum(parameter.nbytes for parameter in bucket.parameters)
        assert size <= 400 or len(bucket.parameters) == 1
    dense = [bucket for bucket in _fill_buckets(model, None, None) if not bucket.is_sparse]
    assert len(dense) == 1
    assert names[dense[0].parameters[0]] == "mlp.1.bias", "the last layer comes first"


def test_parameters_of_two_types_do_not_share_a_bucket() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).double()})
    assert [{p.dtype for p in bucket.parameters} for bucket in _fill_buckets(model, None, None)] == [
        {torch.float64},
        {torch.float32},
    ]


def test_a_world_of_one_gets_its_own_model_back_with_a_no_sync_that_does_nothing() -> None:
    model = nn.Linear(2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = data_parallel(model)
    assert wrapped is model
    assert unwrap(wrapped) is model
    with wrapped.no_sync(), no_sync(nn.Linear(2, 1)):
        wrapped(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="engine: 'horovod' is unknown; take 'torch' or 'by_hand'"):
        data_parallel(nn.Linear(2, 1), engine="horovod")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="bucket_mb: 0"):
        data_parallel(nn.Linear(2, 1), bucket_mb=0)


def test_statistics_of_one_process_are_those_of_torch() -> None:
    samples = torch.randn(7, 2, 3, dtype=torch.float64)
    mean, variance, num_samples = weighted_statistics(samples)
    torch.testing.assert_close(mean, samples.mean(0), rtol=0, atol=1e-14)
    torch.testing.assert_close(variance, samples.var(0, unbiased=False), rtol=0, atol=1e-14)
    assert num_samples == 7
    assert weighted_statistics(torch.empty(0, 2)).mean.isnan().all()
