"""DeepFM: its formula, its gradients, empty batches, sparse tables and what it refuses."""

import itertools

import pytest
import torch

from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM, FieldEmbedding, pairwise_interactions

CARDINALITIES = [3, 5, 2]


def batch(size: int, num_dense: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    categorical = torch.stack(
        [torch.randint(size_, (size,), generator=generator) for size_ in CARDINALITIES], dim=1
    )
    return categorical, torch.randn(size, num_dense, generator=generator, dtype=torch.float64)


def model(num_dense: int = 4, **options: object) -> DeepFM:
    torch.manual_seed(1)
    made = DeepFM(CARDINALITIES, num_dense, dim=3, hidden=(6, 5), **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def slow_logit(made: DeepFM, categorical: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """One row, written as in the paper: pairs of fields in a double loop, one concatenated MLP input."""
    starts = [0, 3, 8]
    rows = [start + int(index) for start, index in zip(starts, categorical, strict=True)]
    vectors = [made.embedding.weight[row] for row in rows]
    fields = vectors + [x * v for x, v in zip(dense, made.dense_factors, strict=True)]
    pairs = sum((a @ b for a, b in itertools.combinations(fields, 2)), torch.zeros(()).double())
    first = made.bias + sum(made.first_order.weight[row, 0] for row in rows) + dense @ made.dense_first_order
    weight = torch.cat([made.from_embeddings.weight, made.from_dense.weight], dim=1)
    hidden = weight @ torch.cat([*vectors, dense]) + made.from_embeddings.bias
    return first + pairs + made.mlp(hidden.clone()).squeeze()


def test_logits_and_gradients_equal_the_formula_written_with_a_double_loop() -> None:
    made = model()
    categorical, dense = batch(7)
    fast = made(categorical, dense)
    slow = torch.stack([slow_logit(made, *row) for row in zip(categorical, dense, strict=True)])
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    of_fast = torch.autograd.grad((fast * weights).sum(), list(made.parameters()))
    of_slow = torch.autograd.grad((slow * weights).sum(), list(made.parameters()))
    for (name, _), a, b in zip(made.named_parameters(), of_fast, of_slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-11, msg=name)


def test_the_interaction_gradient_written_out_passes_gradcheck() -> None:
    fields = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    extra = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pairwise_interactions, (fields, extra))


@pytest.mark.parametrize("num_dense", [0, 4])
def test_an_empty_batch_gives_zero_gradients_for_every_parameter(num_dense: int) -> None:
    made = model(num_dense, dropout=0.2, embedding_dropout=0.2)
    logits = made(*batch(0, num_dense))
    assert logits.shape == (0,)
    logits.sum().backward()
    gradients = {name: parameter.grad for name, parameter in made.named_parameters()}
    assert all(gradient is not None and not gradient.any() for gradient in gradients.values()), gradients
    assert made(*batch(5, num_dense)).shape == (5,)


def test_sparse_tables_give_the_dense_gradients_and_train_with_sparse_adam() -> None:
    sparse, dense = model(sparse=True), model()
    inputs = batch(6)
    for made in (sparse, dense):
        made(*inputs).square().sum().backward()
    names = {name for name, p in sparse.named_parameters() if p.grad is not None and p.grad.is_sparse}
    assert names == {"embedding.weight", "first_order.weight"}
    assert [id(p) for p in sparse.sparse_parameters()] == [
        id(sparse.embedding.weight),
        id(sparse.first_order.weight),
    ]
    assert dense.sparse_parameters() == []
    for a, b in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(a.grad.to_dense(), b.grad, rtol=0, atol=1e-12)
    before = sparse.embedding.weight.detach().clone()
    touched = sparse.embedding.rows(inputs[0]).unique()
    torch.optim.SparseAdam(sparse.sparse_parameters(), lr=0.1).step()
    changed = (sparse.embedding.weight.detach() != before).any(1).nonzero().flatten()
    assert changed.tolist() == touched.tolist()


def test_an_index_outside_its_field_is_named_instead_of_reading_the_next_field() -> None:
    made = model()
    categorical, dense = batch(4)
    categorical[2, 1] = 5
    with pytest.raises(UserError, match=r"index 5 in field 1 of row 2 is outside 0\.\.4"):
        made(categorical, dense)
    categorical[2, 1] = -1
    with pytest.raises(UserError, match=r"index -1 in field 1 of row 2"):
        made(categorical, dense)


def test_embedding_dropout_leaves_out_whole_fields_and_only_in_training() -> None:
    made = model(embedding_dropout=0.5)
    inputs = batch(64)
    torch.manual_seed(0)
    first, second = made(*inputs), made(*inputs)
    assert not torch.equal(first, second)
    made.eval()
    assert torch.equal(made(*inputs), made(*inputs))
    assert torch.equal(made(*inputs), model().eval()(*inputs))


def test_a_fresh_model_starts_near_logit_zero_and_loads_its_own_state() -> None:
    torch.manual_seed(0)
    made = DeepFM([100, 50], 4)
    categorical = torch.stack([torch.randint(100, (256,)), torch.randint(50, (256,))], 1)
    logits = made(categorical, torch.randn(256, 4)).detach()
    assert 0.01 < float(logits.std()) < 2
    other = DeepFM([100, 50], 4)
    other.load_state_dict(made.state_dict())
    assert "embedding.offsets" not in made.state_dict()
    assert torch.equal(other.embedding.weight, made.embedding.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cardinalities": []}, "cardinalities: "),
        ({"cardinalities": [3, 0]}, r"cardinalities: \[3, 0\]"),
        ({"num_dense": -1}, "num_dense: -1"),
        ({"dim": 0}, "dim: 0"),
        ({"hidden": ()}, r"hidden: \[\]"),
        ({"dropout": 1.0}, r"dropout: 1\.0"),
        ({"embedding_dropout": -0.1}, r"embedding_dropout: -0\.1"),
    ],
)
def test_a_size_that_makes_no_model_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DeepFM(**({"cardinalities": [3, 5], "num_dense": 2} | options))


def test_one_table_gathers_what_separate_tables_would() -> None:
    table = FieldEmbedding([2, 3], dim=4)
    separate = table.weight.detach().split([2, 3])
    indices = torch.tensor([[1, 0], [0, 2]])
    expected = torch.stack([separate[0][indices[:, 0]], separate[1][indices[:, 1]]], dim=1)
    assert torch.equal(table(indices), expected)
