"""The small GPT on a card: bf16 and torch.compile train as fp32 does, and the share of peak is one."""

import pytest
import torch

from benchmarks.mfu import Shape, card_of, measure, some_text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
SHAPE = Shape(layers=4, dim=512, heads=8, sequence=512, batch=8, warmup=3, steps=5)


def test_bf16_and_compiled_steps_end_at_the_loss_of_fp32():
    device, data = torch.device("cuda"), some_text(SHAPE)
    plain = measure(SHAPE, "fp32", False, device, data)
    for compiled in (False, True):
        half = measure(SHAPE, "bf16", compiled, device, data)
        assert half.loss == pytest.approx(plain.loss, rel=0.02)
        if card_of(torch.cuda.get_device_name()) is not None:
            assert half.mfu is not None
            assert 0 < half.mfu < 1
