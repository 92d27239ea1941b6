"""Tensor parallelism on real ranks: values, gradients and training equal to one process."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.collectives import traffic
from dtlab.cost.parameters import decoder_units
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.tensor import ColumnLinear, RowLinear
from dtlab.parallel.tensor_gpt import full_parameters, tensor_parallel
from dtlab.parallel.vocabulary_parallel import VocabularyEmbedding, VocabularyHead, vocabulary_parallel_loss

LENGTH, LAYERS, STEPS, BATCH = 8, 2, 4, 5
LAYOUTS = {
    "by hand": {"engine": "by_hand"},
    "by hand, parts of the logits": {"engine": "by_hand", "gather_logits": False},
    "dtensor": {"engine": "dtensor"},
    "dtensor, sequence parallel": {"engine": "dtensor", "sequence_parallel": True},
}


def run_all(functions: list[Any]) -> dict[str, Any]:
    """One launch for many tests: starting ranks takes longer than what they do."""
    with dtlab.world():
        return {function.__name__: function() for function in functions}


@pytest.fixture(scope="module")
def ranks() -> dict[int, dict[str, list[Any]]]:
    """Number of ranks -> name of a function -> what it returned on each rank."""
    found = {}
    for size, functions in (
        (2, [pair_on_ranks, vocabulary_on_ranks, train_tied, train_untied, refusals]),
        (4, [pair_on_ranks, train_tied]),
    ):
        results = dtlab.launch(run_all, size, functions, timeout=240, echo=False)
        found[size] = {fn.__name__: [result[fn.__name__] for result in results] for fn in functions}
    return found


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(3)
    a, b = nn.Linear(5, 8, bias=bias).double(), nn.Linear(8, 5, bias=bias).double()
    return a, b, torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)


def pair_on_ranks() -> dict[str, Any]:
    with dtlab.world():
        a, b, x = layers()
        column, row = ColumnLinear(a), RowLinear(b)
        with traffic() as forward:
            y = row(F.gelu(column(x)))
        with traffic() as backward:
            y.square().sum().backward()
        gradients = {
            "a.weight": column.weight.grad, "a.bias": column.bias.grad,
            "b.weight": row.weight.grad, "b.bias": row.bias.grad, "x": x.grad,
        }  # fmt: skip
        calls = [counted.by_op["all_reduce"].calls for counted in (forward, backward)]
        return {"y": y.detach(), "gradients": gradients, "all_reduces": calls}


@pytest.mark.parametrize("size", [2, 4])
def test_the_column_and_row_pair_gives_the_values_and_gradients_of_one_process(size: int, ranks: Any) -> None:
    a, b, x = layers()
    y = b(F.gelu(a(x)))
    y.square().sum().backward()
    results = ranks[size]["pair_on_ranks"]
    for result in results:
        torch.testing.assert_close(result["y"], y.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(result["gradients"]["x"], x.grad, rtol=0, atol=1e-12)
        torch.testing.assert_close(result["gradients"]["b.bias"], b.bias.grad, rtol=0, atol=1e-12)
        assert result["all_reduces"] == [1, 1], "g forward, f backward"
    for name, dim, whole in (("a.weight", 0, a.weight), ("a.bias", 0, a.bias), ("b.weight", 1, b.weight)):
        joined = torch.cat([result["gradients"][name] for result in results], dim)
        torch.testing.assert_close(joined, whole.grad, rtol=0, atol=1e-12, msg=name)


def vocabulary_on_ranks() -> dict[str, Any]:
    with dtlab.world():
        table, head, hidden, targets = vocabulary()
        embedding = VocabularyEmbedding(table)
        refused = []
        for outside in (11, -1):  # a padded row, and one that no rank has
            for call in (
                lambda one: embedding(one),
                lambda one: vocabulary_parallel_loss(torch.zeros(1, 6), one, 11),
            ):
                with pytest.raises(UserError) as caught:
                    call(torch.tensor([outside]))
                refused.append(str(caught.value))
        whole, part = VocabularyHead(head), VocabularyHead(head, gather=False)
        logits = whole(hidden)
        token_loss(logits, targets).total.backward()
        gathered, hidden.grad = hidden.grad, None
        loss = vocabulary_parallel_loss(part(hidden), targets, 11)
        loss.total.backward()
        return {
            "rows": embedding(torch.tensor([10, 0, 5, 6])).detach(),
            "held": tuple(embedding.weight.shape),
            "refused": refused,
            "logits": logits.detach(),
            "loss": (float(loss.total.detach()), int(loss.tokens)),
            "gradients": [gathered, hidden.grad],
        }


def vocabulary() -> tuple[nn.Embedding, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(4)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[10, 0, -100], [5, 6, 3]])
    return nn.Embedding(11, 4).double(), nn.Linear(4, 11, bias=False).double(), hidden, targets


def test_a_vocabulary_that_two_ranks_do_not_divide_loses_no_token(ranks: Any) -> None:
    table, head, hidden, targets = vocabulary()
    logits = head(hidden)
    loss = token_loss(logits, targets)
    loss.total.backward()
    for result in ranks[2]["vocabulary_on_ranks"]:
        assert torch.equal(result["rows"], table.weight[[10, 0, 5, 6]].detach())
        assert result["held"] == (6, 4)
        assert result["refused"] == [
            f"{name}: {outside} is outside 0..10" for outside in (11, -1) for name in ("tokens", "targets")
        ]
        torch.testing.assert_close(result["logits"], logits.detach(), rtol=0, atol=1e-12)
        assert result["loss"] == (pytest.approx(float(loss.total.detach()), abs=1e-12), 5)
        for gradient in result["gradients"]:
            torch.testing.assert_close(gradient, hidden.grad, rtol=0, atol=1e-12)


def gpt(seed: int, vocab: int, tied: bool) -> GPT:
    torch.manual_seed(seed)
    return GPT(vocab, LENGTH, dim=8, num_layers=LAYERS, num_heads=4, tied=tied).double()


def batch(step: int, vocab: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(vocab, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    targets = tokens[:, 1:].clone()
    targets[0, : step + 1] = -100
    return tokens[:, :-1], targets


def train(model: GPT, vocab: int, loss: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens, targets = batch(step, vocab)
        optimizer.zero_grad()
        total, count = loss(model(tokens), targets)
        (total / count).backward()
        optimizer.step()
        losses.append(float((total / count).detach()))
    return losses


def train_on_ranks(tied: bool) -> dict[str, Any]:
    found = {}
    with dtlab.world() as w:
        mesh = build_mesh(ParallelDims(tp=-1))["tp"]
        for name, options in LAYOUTS.items():
            vocab = vocab_of(name)
            model = tensor_parallel(gpt(w.rank, vocab, tied), mesh, **options)  # type: ignore[arg-type]

            def in_parts(logits: Tensor, targets: Tensor, vocab: int = vocab) -> Any:
                return vocabulary_parallel_loss(logits, targets, vocab)

            losses = train(model, vocab, token_loss if options.get("gather_logits", True) else in_parts)
            held = sum(
                p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters()
            )
            found[name] = {"losses": losses, "state": full_parameters(model), "held": held}
    return found


def train_tied() -> dict[str, Any]:
    return train_on_ranks(tied=True)


def train_untied() -> dict[str, Any]:
    return train_on_ranks(tied=False)


def vocab_of(layout: str) -> int:
    return 11 if layout.startswith("by hand") else 12


@pytest.mark.parametrize("size", [2, 4])
def test_training_equals_one_process_tied_and_sequence_parallel(size: int, ranks: Any) -> None:
    results = ranks[size]["train_tied"]
    for name in LAYOUTS:
        model = gpt(0, vocab_of(name), tied=True)
        losses = train(model, vocab_of(name), token_loss)
        for result in results:
            assert result[name]["losses"] == pytest.approx(losses, abs=1e-10), name
            assert set(result[name]["state"]) == {key for key, _ in model.named_parameters()}
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(
                    result[name]["state"][key], parameter.detach(), rtol=0, atol=1e-10, msg=f"{name} {key}"
                )
        embedding, *others = decoder_units(LAYERS, 8, vocab_of(name), LENGTH, tp=size)
        tied = embedding - LENGTH * 8
        assert results[0][name]["held"] == embedding + sum(others) - tied, name


def test_an_untied_head_trains_as_in_one_process(ranks: Any) -> None:
    results = ranks[2]["train_untied"]
    for name in LAYOUTS:
        model = gpt(0, vocab_of(name), tied=False)
        losses = train(model, vocab_of(name), token_loss)
        for result in results:
            assert result[name]["losses"] == pytest.approx(losses, abs=1e-10), name
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(
                    result[name]["state"][key], parameter.detach(), rtol=0, atol=1e-10, msg=f"{name} {key}"
                )


def refusals() -> list[str]:
    told = []
    with dtlab.world():
        mesh = build_mesh(ParallelDims(tp=-1))["tp"]
        for model, options in (
            (GPT(12, 4, dim=9, num_layers=1, num_heads=3), {}),
            (GPT(11, 4, dim=8, num_layers=1, num_heads=2), {}),
            (GPT(12, 4, dim=8, num_layers=1, num_heads=2, hidden=9), {"engine": "by_hand"}),
            (GPT(12, 4, dim=8, num_layers=1, num_heads=2), {"engine": "megatron"}),
            (GPT(12, 4, dim=8, num_layers=1, num_heads=2), {"engine": "by_hand", "sequence_parallel": True}),
        ):
            try:
                tensor_parallel(model, mesh, **options)  # type: ignore[arg-type]
            except UserError as error:
                told.append(str(error))
        model = tensor_parallel(GPT(12, 4, dim=8, num_layers=1, num_heads=2), mesh, sequence_parallel=True)
        try:
            model(torch.zeros(1, 3, dtype=torch.int64))
        except UserError as error:
            told.append(str(error))
    return told


def test_what_two_ranks_cannot_cut_is_refused_by_name_and_number(ranks: Any) -> None:
    for told in ranks[2]["refusals"]:
        assert "tp = 2 does not divide num_heads = 3" in told[0]
        assert "tp = 2 does not divide vocab_size = 11; pad it to 12" in told[1]
        assert "tp = 2 does not divide hidden = 9" in told[2]
        assert "engine = 'megatron'" in told[3]
        assert "sequence_parallel=True" in told[4]
        assert "tp = 2 does not divide the samples' length 3" in told[5]
