"""Data parallelism on real ranks: equal to one process, synchronised only when due, faults named."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.collectives import traffic
from dtlab.models.deepfm import DeepFM
from dtlab.parallel import data_parallel, unwrap, weighted_statistics

ENGINES = ("torch", "by_hand")
CARDINALITIES = [7, 4, 11]
STEPS = 5


def launch(function: Any, nproc: int, *args: Any) -> list[Any]:
    return list(dtlab.launch(function, nproc, *args, timeout=60, echo=False))


def global_batch(step: int, size: int = 13) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    categorical = torch.stack([torch.randint(n, (size,), generator=generator) for n in CARDINALITIES], 1)
    dense = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return categorical, dense, torch.randint(2, (size,), generator=generator).double()


def deepfm(seed: int, *, sparse: bool = False) -> DeepFM:
    torch.manual_seed(seed)
    return DeepFM(CARDINALITIES, 3, dim=4, hidden=(8, 6), sparse=sparse).double()


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    tables = model.sparse_parameters()
    rest = [p for p in model.parameters() if not any(p is table for table in tables)]
    sparse = [torch.optim.SparseAdam(tables, lr=0.01)] if tables else []
    return [torch.optim.Adam(rest, lr=0.01), *sparse]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in unwrap(model).state_dict().items()}


def train_on_slices(engine: str, bucket_mb: float | None, sparse: bool) -> dict[str, Any]:
    """Rank r takes rows r::size; in step 2 the whole batch has one row, so that other ranks have none."""
    with dtlab.world() as w:
        model = data_parallel(deepfm(seed=w.rank, sparse=sparse), w, engine=engine, bucket_mb=bucket_mb)
        steppers = optimizers(unwrap(model))
        all_reduces = []
        for step in range(STEPS):
            batch = global_batch(step, size=1 if step == 2 else 13)
            categorical, dense, labels = (column[w.rank :: w.size] for column in batch)
            loss = F.binary_cross_entropy_with_logits(model(categorical, dense), labels, reduction="sum")
            with traffic() as counted:
                (loss * w.size / len(batch[0])).backward()
            all_reduces.append(counted.by_op["all_reduce"].calls)
            for stepper in steppers:
                stepper.step()
                stepper.zero_grad()
        return {"state": state(model), "all_reduces": all_reduces}


def train_in_one_process(sparse: bool = False) -> dict[str, Tensor]:
    model = deepfm(seed=0, sparse=sparse)
    steppers = optimizers(model)
    for step in range(STEPS):
        categorical, dense, labels = global_batch(step, size=1 if step == 2 else 13)
        F.binary_cross_entropy_with_logits(model(categorical, dense), labels).backward()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
    return state(model)


@pytest.mark.parametrize(("engine", "nproc"), [("torch", 2), ("torch", 4), ("by_hand", 2), ("by_hand", 3)])
def test_training_equals_one_process_on_the_joined_batch_also_when_ranks_have_no_row(
    engine: str, nproc: int
) -> None:
    expected = train_in_one_process()
    results = launch(train_on_slices, nproc, engine, None, False)
    for result in results:
        for name, tensor in result["state"].items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12, msg=name)
            assert torch.equal(tensor, results[0]["state"][name]), f"replicas differ in {name}"
        assert result["all_reduces"] == [1] * STEPS, "one bucket on a CPU"


@pytest.mark.parametrize("engine", ENGINES)
def test_sparse_tables_train_as_in_one_process(engine: str) -> None:
    expected = train_in_one_process(sparse=True)
    for result in launch(train_on_slices, 2, engine, None, True):
        for name, tensor in result["state"].items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12, msg=name)


def test_small_buckets_take_more_all_reduces_and_give_the_same_parameters() -> None:
    expected = train_in_one_process()
    for result in launch(train_on_slices, 2, "by_hand", 0.001, False):
        assert result["all_reduces"] == [3] * STEPS
        for name, tensor in result["state"].items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12, msg=name)


def wide_in_buckets(engine: str) -> list[int]:
    with dtlab.world() as w:
        torch.manual_seed(0)
        # Four layers of 1.05 MB each.
        model = data_parallel(
            nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]), w, engine=engine, bucket_mb=1.1
        )
        counts = []
        for _ in range(3):
            with traffic() as counted:
                model(torch.ones(1, 512)).sum().backward()
            counts.append(counted.by_op["all_reduce"].calls)
        return counts


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bucket_size_given_in_mb_is_kept(engine: str) -> None:
    for counts in launch(wide_in_buckets, 2, engine):
        # torch sends the first backward's gradients together and then makes its buckets from their order.
        assert counts == ([1, 4, 4] if engine == "torch" else [4, 4, 4])


def accumulate(engine: str, with_no_sync: bool) -> tuple[int, dict[str, Tensor]]:
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = data_parallel(nn.Linear(3, 1).double(), w, engine=engine)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.arange(8 * 2 * 3, dtype=torch.float64).reshape(8, 2, 3).div(10).sin()[:, w.rank]
        with traffic() as counted:
            for micro, row in enumerate(data):
                is_last = micro % 4 == 3
                if with_no_sync and not is_last:
                    with model.no_sync():
                        (model(row).sum().square() / 4).backward()
                else:
                    (model(row).sum().square() / 4).backward()
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
        return counted.by_op["all_reduce"].calls, state(model)


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_share_gradients_once_per_step_and_equal_the_big_batch(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.arange(8 * 2 * 3, dtype=torch.float64).reshape(8, 2, 3).div(10).sin()
    for rows in data.reshape(2, 8, 3):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    for all_reduces, trained in launch(accumulate, 2, engine, True):
        assert all_reduces == 2, "8 micro-batches, accumulated by 4"
        for name, tensor in trained.items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=0, atol=1e-12)
    assert [calls for calls, _ in launch(accumulate, 2, engine, False)] == [8, 8], "no_sync forgotten"


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head_a = nn.Linear(3, 1)
        self.head_b = nn.Linear(3, 1)

    def forward(self, x: Tensor, heads: str) -> Tensor:
        hidden = self.body(x)
        return sum(getattr(self, f"head_{head}")(hidden) for head in heads).sum()


def use_heads(engine: str, find_unused: bool, heads_of_ranks: list[str]) -> dict[str, Any]:
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = data_parallel(TwoHeads(), w, engine=engine, find_unused=find_unused)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
        before = state(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3), heads_of_ranks[w.rank]).backward()
            optimizer.step()
        gradient = unwrap(model).head_b.bias.grad
        return {"before": before, "after": state(model), "gradient of head_b.bias": gradient}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unused_branch_is_reported_by_name_before_the_first_step(engine: str) -> None:
    with pytest.raises(dtlab.RankError, match=r"head_b\.weight, head_b\.bias.*find_unused=True"):
        launch(use_heads, 2, engine, False, ["a", "a"])


@pytest.mark.parametrize("engine", ENGINES)
def test_find_unused_leaves_a_branch_that_no_rank_used_as_it_was(engine: str) -> None:
    for result in launch(use_heads, 2, engine, True, ["a", "a"]):
        changed = {n for n, t in result["after"].items() if not torch.equal(t, result["before"][n])}
        assert changed == {"body.weight", "body.bias", "head_a.weight", "head_a.bias"}
        assert result["gradient of head_b.bias"] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_branch_used_by_one_rank_gets_that_ranks_gradient_over_the_number_of_ranks(engine: str) -> None:
    results = launch(use_heads, 2, engine, True, ["ab", "a"])
    for result in results:
        assert result["gradient of head_b.bias"].item() == 2 / 2
        for name, tensor in result["after"].items():
            assert torch.equal(tensor, results[0]["after"][name])


def unused_without_an_optimizer() -> None:
    with dtlab.world() as w:
        model = data_parallel(TwoHeads(), w)
        for _ in range(2):
            model(torch.ones(2, 3), "a").backward()


def test_a_loop_without_an_optimizer_gets_the_names_in_the_next_forward() -> None:
    with pytest.raises(dtlab.RankError, match=r"head_b\.weight, head_b\.bias"):
        launch(unused_without_an_optimizer, 2)


def sparse_rows(engine: str) -> tuple[Tensor, bool]:
    with dtlab.world() as w:
        table = nn.ModuleDict({"embedding": nn.Embedding(5, 1, sparse=True)})
        table.forward = lambda rows: table["embedding"](rows)  # type: ignore[method-assign]
        model = data_parallel(table, w, engine=engine)
        model(torch.tensor([1, 2] if w.rank == 0 else [2, 3])).sum().backward()
        gradient = table["embedding"].weight.grad
        return gradient.to_dense(), gradient.is_sparse


@pytest.mark.parametrize("engine", ENGINES)
def test_sparse_gradients_are_the_mean_and_count_a_row_that_two_ranks_touched_twice(engine: str) -> None:
    for gradient, is_sparse in launch(sparse_rows, 2, engine):
        assert is_sparse
        assert gradient.flatten().tolist() == [0.0, 0.5, 1.0, 0.5, 0.0]


def wrap_odd_models(engine: str) -> dict[str, Any]:
    with dtlab.world() as w:
        results: dict[str, Any] = {}
        frozen = nn.Linear(3, 2).requires_grad_(False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapped = data_parallel(frozen, w, engine=engine)
        results["note"] = [str(w.message) for w in caught if issubclass(w.category, dtlab.DtlabWarning)]
        results["is unwrapped"] = wrapped is frozen
        with wrapped.no_sync():
            head = data_parallel(nn.Linear(2, 1), w, engine=engine)
            head(wrapped(torch.full((1, 3), float(w.rank)))).sum().backward()
        results["head gradient"] = unwrap(head).bias.grad
        # A part frozen, and buffers that differ between ranks until the model is wrapped.
        partly = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        partly[0].requires_grad_(False)
        partly.register_buffer("steps", torch.tensor(w.rank + 5))
        model = data_parallel(partly, w, engine=engine)
        model(torch.ones(1, 3)).sum().backward()
        results["partly"] = state(model)
        # Only rank 0 evaluates: its own model needs no other rank.
        if w.is_main:
            with torch.no_grad():
                unwrap(model)(torch.ones(1, 3))
        w.barrier()
        return results


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_without_trainable_parameters_is_not_wrapped_and_the_rest_trains(engine: str) -> None:
    results = launch(wrap_odd_models, 2, engine)
    for result in results:
        assert result["is unwrapped"]
        assert len(result["note"]) == 1
        assert "Linear has no trainable parameter" in result["note"][0]
        assert result["head gradient"].item() == 1
        assert result["partly"]["steps"] == 5
        assert torch.equal(result["partly"]["0.weight"], results[0]["partly"]["0.weight"])


def siamese_with_batch_norm(engine: str) -> dict[str, Any]:
    with dtlab.world() as w:
        torch.manual_seed(w.rank)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        model = data_parallel(net, w, engine=engine)
        for step in range(3):
            a, b = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(10 * step + w.rank))
            loss = (model(a) - model(b)).square().mean()
            model.zero_grad()
            loss.backward()
        with torch.no_grad():
            with traffic() as counted:
                model.eval()
                unwrap(model)(torch.ones(1, 3))
            model.train()
            model(torch.full((4, 3), float(w.rank)))
        gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
        return {"gradients": gradients, "evaluation": counted.collectives, "state": state(model)}


def test_two_forwards_before_one_backward_work_with_batch_norm_and_both_engines_agree() -> None:
    by_engine = {engine: launch(siamese_with_batch_norm, 2, engine) for engine in ENGINES}
    for rank in range(2):
        first, second = (by_engine[engine][rank] for engine in ENGINES)
        assert first["evaluation"] == second["evaluation"] == 0
        for name, gradient in first["gradients"].items():
            assert torch.equal(gradient, by_engine["torch"][0]["gradients"][name])
            torch.testing.assert_close(gradient, second["gradients"][name], rtol=0, atol=1e-7)


def built_for_one_rank(change: str, rank: int) -> nn.Module:
    """Two layers; rank 1's differ in what `change` says."""
    changed = change if rank == 1 else ""
    layers = [nn.Linear(3, 5 if changed == "shape" else 4), nn.Linear(5 if changed == "shape" else 4, 1)]
    if changed == "more layers":
        layers.insert(0, nn.Linear(3, 3))
    if changed == "fewer layers":
        layers.pop()
    model = nn.Sequential(*layers)
    if changed == "name":
        model = nn.Sequential()
        model.add_module("0", layers[0])
        model.add_module("head", layers[1])
    if changed == "buffer":
        model.register_buffer("scale", torch.ones(2))
    if changed == "frozen":
        model.requires_grad_(False)
    return model.double() if changed == "dtype" else model


def wrap_different_models(engine: str, changes: list[str]) -> list[str]:
    messages = []
    with dtlab.world() as w:
        for change in changes:
            try:
                data_parallel(built_for_one_rank(change, w.rank), w, engine=engine)  # type: ignore[arg-type]
            except dtlab.UserError as error:
                messages.append(str(error))
            else:
                messages.append("wrapped")
    return messages


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_with_different_models_are_told_the_first_difference_at_wrapping(engine: str) -> None:
    first = "rank 0 has parameter (4, 3) float32, rank 1 has"
    expected = {
        "": "wrapped",
        "dtype": f"0.weight: {first} parameter (4, 3) float64;",
        "shape": f"0.weight: {first} parameter (5, 3) float32;",
        "more layers": f"0.weight: {first} parameter (3, 3) float32;",
        "fewer layers": "1.weight: rank 0 has parameter (1, 4) float32, rank 1 has nothing of that name;",
        "name": "head.weight: rank 0 has nothing of that name, rank 1 has parameter (1, 4) float32;",
        "buffer": "scale: rank 0 has nothing of that name, rank 1 has buffer (2,) float32;",
        "frozen": f"0.weight: {first} frozen parameter (4, 3) float32;",
    }
    by_rank = launch(wrap_different_models, 3, engine, list(expected))
    for messages in by_rank:
        for message, begin in zip(messages, expected.values(), strict=True):
            assert message.startswith(begin)


def statistics_of_unequal_batches() -> list[Any]:
    with dtlab.world() as w:
        unequal = [torch.ones(4, 1), torch.full((2, 1), 4.0), torch.empty(0, 1)][w.rank]
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(30, 2, generator=generator, dtype=torch.float64) + 1000
        uneven = samples.split([20, 9, 1])[w.rank]
        return [*weighted_statistics(unequal), *weighted_statistics(uneven)]


def test_statistics_over_unequal_batches_are_those_of_all_samples_not_a_mean_of_means() -> None:
    samples = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1000
    for mean, variance, count, of_samples, spread, number in launch(statistics_of_unequal_batches, 3):
        assert (mean.item(), variance.item(), count) == (2.0, 2.0, 6)
        assert number == 30
        torch.testing.assert_close(of_samples, samples.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(spread, samples.var(0, unbiased=False), rtol=0, atol=1e-12)
