"""Counts what is alive: births and deaths, views once, the bill of the peak, and a budget that stops."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtlab import launch, world
from dtlab.diagnose.memory_trace import OverBudget, trace_memory
from dtlab.errors import UserError


def test_a_tensor_counts_from_its_birth_to_its_death():
    with trace_memory() as trace:
        first = torch.zeros(100)
        second = torch.zeros(50, dtype=torch.float64)
        assert trace.now == 800
        del first
        assert (trace.now, trace.peak) == (400, 0)  # the peak is known when the block is over
        del second
    assert (trace.peak, trace.now) == (800, 0)
    assert trace.timeline == [400, 800]


def test_views_and_results_in_place_do_not_count_again():
    with trace_memory() as trace:
        whole = torch.zeros(8, 4)
        rows, flat = whole[2:4], whole.view(-1)
        whole.add_(1)
        flat.mul_(2)
    assert trace.peak == whole.nbytes
    assert rows.sum() == 2 * 8


def test_a_freed_address_that_is_used_again_is_a_new_tensor():
    with trace_memory() as trace:
        for _ in range(50):
            torch.zeros(1000)
        kept = [torch.zeros(1000) for _ in range(3)]
    assert trace.peak == trace.now == 3 * kept[0].nbytes


def test_forward_keeps_activations_and_backward_frees_them():
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    x = torch.randn(16, 4, dtype=torch.float64)
    with trace_memory() as trace:
        trace.label("parameters", model.parameters())
        trace.label("gradients", lambda: [p.grad for p in model.parameters() if p.grad is not None])
        before = trace.now
        loss = model(x).sum()
        # The Tanh's output, which two layers share, the last layer's output is not needed for a sum.
        assert 16 * 32 * 8 <= trace.now - before <= 2 * 16 * 32 * 8 + 16 * 8 + 8
        trace.mark("backward")
        loss.backward()
        del loss
        size = sum(p.nbytes for p in model.parameters())
        assert trace.now == before + size
    assert trace.items["parameters"] == size
    assert trace.peak == sum(trace.items.values())
    ((name, place),) = trace.marks
    assert name == "backward"
    assert 0 < place < len(trace.timeline)


def test_the_bill_is_that_of_the_peak_and_not_of_the_end():
    with trace_memory() as trace:
        kept = torch.zeros(10)
        trace.label("kept", [kept])
        with trace.allocating("scratch"):
            scratch = torch.zeros(500)
        del scratch
        late = torch.zeros(100)
        trace.label("late", lambda: [late])
    assert trace.items == {"kept": 40, "scratch": 2000}


def test_a_label_counts_tensors_from_before_the_block():
    before = torch.zeros(25)
    with trace_memory() as trace:
        trace.label("before", [before])
        torch.zeros(25)
    assert trace.items == {"before": 100, "activations": 100}


def test_a_sparse_gradient_counts_its_rows_and_indices():
    table = nn.Embedding(1000, 4, sparse=True)
    with trace_memory() as trace:
        table(torch.tensor([3, 5])).sum().backward()
        gradient = table.weight.grad
        assert gradient is not None
        del gradient
    assert 2 * 4 * 4 + 2 * 8 <= trace.now < table.weight.nbytes


def test_the_operation_that_exceeds_the_budget_raises_with_the_bill():
    def too_much():
        with trace_memory(budget=1_000_000) as trace:
            kept = torch.zeros(100_000)
            trace.label("kept", [kept])
            torch.zeros(200_000)

    with pytest.raises(OverBudget) as caught:
        too_much()
    assert str(caught.value) == (
        "1.20 MB alive after zeros, the budget is 1.00 MB (in MB: kept 0.40, activations 0.80)"
    )
    assert isinstance(caught.value, MemoryError)


def test_after_it_was_raised_the_budget_lets_the_clean_up_pass():
    with trace_memory(budget=100) as trace:
        with pytest.raises(OverBudget):
            torch.zeros(100)
        kept = torch.zeros(200)
    assert trace.now == kept.nbytes


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_that_allows_nothing_is_refused(budget):
    with pytest.raises(UserError, match=r"budget = .*bytes above 0"), trace_memory(budget):
        pass


def test_a_trace_travels_and_holds_no_tensor_alive():
    with trace_memory() as trace:
        kept = torch.zeros(1000)
        trace.label("kept", [kept])
    again = pickle.loads(pickle.dumps(trace))
    assert (again.peak, again.now, again.items, again.timeline) == (
        4000,
        4000,
        {"kept": 4000},
        trace.timeline,
    )
    del kept
    assert trace.now == 4000  # nothing is followed once the block is over


def under_ddp(as_view):
    with world(), trace_memory() as trace:
        model = nn.Linear(64, 64)
        parameters = list(model.parameters())
        trace.label("parameters", parameters)
        trace.label("gradients", lambda: [p.grad for p in parameters if p.grad is not None])
        with trace.allocating("buckets"):
            wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
            for _ in range(2):  # the second forward makes them anew
                wrapped(torch.ones(1, 64)).square().sum().backward()
        # The peak lies in a step that is larger than anything that DDP needs at its start.
        wrapped(torch.ones(4096, 64)).square().sum().backward()
    return trace.items, sum(p.nbytes for p in parameters)


def test_ddp_holds_a_copy_of_the_gradients_unless_they_are_views_of_it():
    for as_view in (False, True):
        for items, size in launch(under_ddp, 2, as_view, timeout=60, echo=False):
            assert items["gradients"] == size
            assert items.get("buckets", 0) == (0 if as_view else size)


def test_a_storage_that_is_made_smaller_gives_its_bytes_back():
    pytest.importorskip("torch.distributed.fsdp")  # which frees a block's parameters so
    with trace_memory() as trace:
        block = torch.zeros(1000)
        block.untyped_storage().resize_(0)
        torch.zeros(900)  # with the block it would be a peak of 7,600
    assert (trace.peak, trace.now) == (4000, 0)
