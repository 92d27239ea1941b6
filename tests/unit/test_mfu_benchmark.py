"""The benchmark of a card's share of peak, on a CPU: what can be tried without a card."""

import pytest
import torch
from torch import nn

from benchmarks.mfu import SMALL, card_of, measure
from dtlab.data.text import TextWindows
from dtlab.models.gpt import GPT


def test_a_step_is_counted_and_a_cpu_has_no_mfu():
    data = TextWindows(torch.arange(256, dtype=torch.uint8).repeat(2), SMALL.sequence)
    batch = data.take(torch.arange(SMALL.batch))
    plain, compiled = (measure(SMALL, "fp32", how, torch.device("cpu"), batch) for how in (False, "eager"))
    assert (plain.mfu, plain.peak_tflops, compiled.compiled) == (None, None, True)
    assert compiled.loss == pytest.approx(plain.loss, abs=1e-5)
    assert plain.tokens_per_second == pytest.approx(SMALL.batch * SMALL.sequence / plain.step_ms * 1e3)
    assert plain.tflops == pytest.approx(SMALL.flops / plain.step_ms / 1e9)


def test_the_flops_of_a_step_are_those_of_the_models_matrices_and_scores():
    with torch.device("meta"):
        model = GPT(256, SMALL.sequence, SMALL.dim, SMALL.layers, SMALL.heads)
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    tokens = SMALL.batch * SMALL.sequence
    scores = 12 * SMALL.layers * SMALL.dim * SMALL.sequence
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    assert SMALL.flops == pytest.approx(tokens * (6 * matrices + scores), rel=6 * norms / (6 * matrices))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_a_card_is_known_by_the_name_that_cuda_gives_it(name, known):
    assert card_of(name).name == known
