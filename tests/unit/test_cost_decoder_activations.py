"""The closed form of saved activations equals what autograd keeps of the GPT, to the byte."""

from typing import Any

import pytest
import torch

from dtlab.cost.decoder_activations import decoder_saved_bytes
from dtlab.diagnose.saved_bytes import SavedBytes
from dtlab.errors import UserError
from dtlab.models.gpt import GPT, token_loss

BASE: dict[str, Any] = {
    "layers": 2,
    "hidden": 8,
    "heads": 2,
    "vocab": 20,
    "seq_len": 6,
    "batch": 3,
    "ffn": 24,
}
CHANGES: list[dict[str, Any]] = [
    {}, {"layers": 3}, {"hidden": 16}, {"heads": 4}, {"vocab": 33}, {"seq_len": 7}, {"batch": 5}, {"ffn": 40},
    {"norm": "layer"}, {"element_bytes": 8},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_size_changes_what_is_saved_as_the_closed_form_says(change: dict[str, Any]) -> None:
    sizes = {**BASE, **change}
    model = GPT(
        sizes["vocab"],
        sizes["seq_len"],
        sizes["hidden"],
        sizes["layers"],
        sizes["heads"],
        hidden=sizes["ffn"],
        norm=sizes.get("norm", "rms"),
    ).to({4: torch.float32, 8: torch.float64}[sizes.get("element_bytes", 4)])
    tokens = torch.randint(sizes["vocab"], (sizes["batch"], sizes["seq_len"] + 1))
    with SavedBytes([model]) as saved:
        loss = token_loss(model(tokens[:, :-1]), tokens[:, 1:]).total
    assert saved.peak == saved.now == sum(decoder_saved_bytes(**sizes))
    loss.backward()
    assert saved.now == 0
    if change:
        assert sum(decoder_saved_bytes(**sizes)) != sum(decoder_saved_bytes(**BASE))


def test_sizes_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="batch = 0"):
        decoder_saved_bytes(**{**BASE, "batch": 0})
    with pytest.raises(UserError, match="tp = 3 does not divide heads = 2"):
        decoder_saved_bytes(**BASE, tp=3)
    with pytest.raises(UserError, match="does not divide seq_len = 7"):
        decoder_saved_bytes(**{**BASE, "seq_len": 7}, tp=2, sequence_parallel=True)
