"""The small GPT: shapes, causality, the loss as a sum, and that it learns real text."""

import math

import pytest
import torch
import torch.nn.functional as F

from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.text import load_text
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss


def small(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(**{"vocab_size": 11, "sequence": 8, "dim": 12, "num_layers": 2, "num_heads": 3, **changes})


def tokens(rows: int = 3, length: int = 8) -> torch.Tensor:
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_number_of_parameters_is_that_of_the_closed_form(norm, tied):
    model = small(norm=norm, tied=tied)
    width, per_norm = 12, 12 * (1 if norm == "rms" else 2)
    per_block = 12 * width**2 + 2 * per_norm
    expected = 11 * width * (1 if tied else 2) + 8 * width + 2 * per_block + per_norm
    assert model.num_parameters == expected
    assert (model.head.output.weight is model.embedding.token.weight) == tied


def test_no_position_sees_a_later_one():
    model = small().double()
    given = tokens()
    changed = given.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(given), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(2).all()


def test_a_shorter_sample_gives_the_logits_of_its_prefix():
    model = small().double()
    assert torch.allclose(model(tokens()[:, :4]), model(tokens())[:, :4], atol=1e-12)


def test_running_the_parts_one_by_one_is_running_the_model():
    model = small()
    hidden = model.embedding(tokens())
    for block in model.blocks:
        assert hidden.shape == (3, 8, 12)
        hidden = block(hidden)
    assert torch.equal(model.head(hidden), model(tokens()))


def test_attention_cut_by_heads_adds_up_to_the_whole():
    attention = small().double().blocks[0].attention
    x = torch.randn(2, 8, 12, dtype=torch.float64)
    whole, parts = attention(x), torch.zeros(2, 8, 12, dtype=torch.float64)
    layers = {name: getattr(attention, name) for name in ("query", "key", "value", "output")}
    full = {name: layer.weight.detach().clone() for name, layer in layers.items()}
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        for name in ("query", "key", "value"):
            layers[name].weight = torch.nn.Parameter(full[name][rows])
        layers["output"].weight = torch.nn.Parameter(full["output"][:, rows])
        parts += attention(x)
    assert torch.allclose(parts, whole, atol=1e-12)


def test_every_parameter_gets_a_gradient_and_an_empty_batch_gives_zeros():
    model = small()
    loss = token_loss(model(tokens()), tokens())
    loss.total.backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters()
    )
    model.zero_grad()
    empty = token_loss(model(tokens(rows=0)), tokens(rows=0))
    empty.total.backward()
    assert (empty.total.item(), empty.tokens.item()) == (0, 0)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_the_loss_starts_at_the_log_of_the_vocabulary_and_ignored_targets_do_not_count():
    model = small(tied=False)  # a tied head favours the token that was just read
    targets = tokens(rows=4)
    targets[0, 3:] = -100
    loss = token_loss(model(tokens(rows=4)), targets)
    assert loss.tokens == 4 * 8 - 5
    assert (loss.total / loss.tokens).item() == pytest.approx(math.log(11), rel=0.02)
    flat = targets.flatten()
    each = F.cross_entropy(model(tokens(rows=4)).flatten(0, 1), flat.clamp(min=0), reduction="none")
    assert loss.total.item() == pytest.approx(each[flat >= 0].sum().item(), rel=1e-6)


def test_dropout_acts_in_training_only():
    model = small(dropout=0.5)
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"dim": 0}, "dim"),
        ({"num_heads": 5}, "num_heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"norm": "batch"}, "norm"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(wrong, field):
    with pytest.raises(UserError, match=rf"^{field} = "):
        small(**wrong)


def test_a_token_outside_the_vocabulary_and_a_sample_too_long_are_named():
    with pytest.raises(UserError, match=r"11 is outside 0\.\.10"):
        small()(torch.full((1, 2), 11))
    with pytest.raises(UserError, match="9 in a sample, the model has positions for 8"):
        small()(tokens(length=9))


@pytest.fixture
def one_thread():
    """Matrices as small as these gain nothing from threads, and lose much on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_it_learns_real_text_beyond_the_frequencies_of_the_bytes(tmp_path, one_thread):
    text = load_text(32, root=tmp_path)
    frequencies = torch.bincount(text.train.data.long(), minlength=256).double() / len(text.train.data)
    seen = frequencies[frequencies > 0]
    unigram = float(-(seen * seen.log()).sum())
    torch.manual_seed(0)
    model = GPT(sequence=32, dim=64, num_layers=1, num_heads=4, tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    loader = Loader(text.train, GlobalBatchSampler(len(text.train), 32, rank=0, world_size=1), chunk_rows=64)
    held_out = text.validation.take(torch.arange(0, len(text.validation), len(text.validation) // 60))

    def validation_loss() -> float:
        with torch.no_grad():
            loss = token_loss(model(held_out.tokens), held_out.targets)
        return (loss.total / loss.tokens).item()

    assert validation_loss() > unigram
    for _, batch in zip(range(250), loader, strict=False):
        loss = token_loss(model(batch.tokens), batch.targets)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    assert validation_loss() < unigram - 0.5
