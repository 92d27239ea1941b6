"""Any module is counted without a byte of it: parameters exactly, activations as autograd keeps them."""

import pytest
import torch
from torch import nn

from dtlab.cost.activations import resnet_activation_bytes
from dtlab.cost.builders import transformer
from dtlab.cost.decoder_activations import decoder_saved_bytes
from dtlab.cost.rank_memory import rank_memory
from dtlab.cost.step_time import step_time
from dtlab.cost.strategy import Strategy
from dtlab.cost.work import flops_per_sample
from dtlab.diagnose.count_module import count_module
from dtlab.diagnose.saved_bytes import SavedBytes
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.models.gpt import GPT


def test_a_gpt_is_counted_as_the_closed_form_counts_it() -> None:
    shape = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64}
    tokens = torch.zeros(3, 16, dtype=torch.long)
    counted = count_module(lambda: GPT(vocab_size=64, sequence=16, dim=32, num_layers=2, num_heads=4), tokens)
    embedding, *blocks, head = decoder_saved_bytes(seq_len=16, batch=3, **shape)
    loss = 3 * 16 * 64 * 4 + 8 * 3 * 16 + 4  # log-probabilities, targets and a count: this model has no loss
    assert 3 * counted.sample_bytes == embedding + sum(blocks) + head - loss


def test_a_module_is_left_as_it_is_and_counts_as_on_the_cpu() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    counted = count_module(model, torch.randn(5, 6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert next(model.parameters()).device.type == "cpu"
    assert counted.parameters == sum(parameter.numel() for parameter in model.parameters())
    with SavedBytes([model.train()]) as saved:
        output = model(torch.randn(5, 6))
    assert counted.sample_bytes * 5 == saved.now
    del output


def test_a_shared_matrix_counts_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert count_module(model, torch.ones(1, 4)).parameters == 16


def test_a_table_is_known_as_one() -> None:
    counted = count_module(lambda: DeepFM([50, 30], 2, dim=4, hidden=(8,)), *_clicks(7))
    assert counted.table_parameters > 0
    assert counted.parameters == sum(p.numel() for p in DeepFM([50, 30], 2, dim=4, hidden=(8,)).parameters())


def _clicks(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, 2, dtype=torch.long), torch.zeros(rows, 2)


def test_a_model_larger_than_memory_is_counted() -> None:
    counted = count_module(
        lambda: nn.Linear(400_000, 400_000, bias=False), torch.empty(1, 400_000, device="meta")
    )
    assert counted.parameters == 160 * 10**9
    (bill,) = rank_memory(counted, Strategy(dp_shard=8, zero=3))
    assert bill.items["optimizer"] == 160 * 10**9 * 12 // 8


def test_counted_activations_grow_with_the_micro_batch_and_halve_in_half_precision() -> None:
    counted = count_module(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.ones(2, 8))
    sizes = [
        rank_memory(counted, Strategy(micro_batch=n, precision=precision))[0].items["activations"]  # type: ignore[arg-type]
        for n, precision in ((1, "fp32"), (10, "fp32"), (10, "amp"))
    ]
    assert sizes == [counted.sample_bytes, 10 * counted.sample_bytes, 5 * counted.sample_bytes]


def test_a_convolution_keeps_what_the_resnet_formula_keeps_of_its_first_layers() -> None:
    stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    counted = count_module(stem, torch.empty(2, 3, 224, 224, device="meta"))
    assert counted.sample_bytes == pytest.approx((3 * 224**2 + 2 * 64 * 112**2) * 4, rel=0.001)
    assert counted.sample_bytes < resnet_activation_bytes()


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (nn.Linear(3, 1), (), "inputs"),
        (nn.Linear(3, 1), (torch.tensor(1.0),), "inputs"),
        (nn.Linear(3, 1), (torch.ones(2, 4),), "module = Linear: its forward pass fails"),
        (Branches(), (torch.ones(2, 4),), "module = Branches: its forward pass fails"),
        (lambda: "no module", (torch.ones(2, 4),), "give a torch module"),
    ],
)
def test_what_cannot_be_counted_is_said(module: object, inputs: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        count_module(module, *inputs)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_flops_of_a_counted_gpt_are_those_of_the_formula_and_give_a_step_time() -> None:
    model = GPT(vocab_size=512, sequence=64, dim=64, num_layers=2, num_heads=4)
    counted = count_module(model, torch.zeros(3, 64, dtype=torch.int64), name="counted GPT")
    shape = transformer(2, 64, 512, 64, heads=4, gated=False, tied=True)
    assert counted.sample_flops == pytest.approx(flops_per_sample(shape), rel=0.01)
    found = step_time(counted, Strategy(dp_replicate=8, micro_batch=8), "ml.g5.48xlarge")
    assert found.compute > 0
    assert found.error.startswith("estimate: FLOPs as counted")


def test_what_is_no_module_is_refused():
    with pytest.raises(UserError, match=r"^module = 'BERT-large': give a torch module"):
        count_module("BERT-large", torch.zeros(1, 2))
