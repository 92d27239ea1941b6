"""Bytes of activations kept for the backward pass, in closed form (lessons 01 and 06).

With T = sequence length x micro-batch tokens, hidden size h, FFN width f, a heads, e bytes an element:

- GPT with fused or recomputed attention: `(16*e + 2)*h*T` a layer, 34 at e = 2 (Korthikanti et al., arXiv
  2205.05198, equation 2 without the attention term). Dropout masks take one byte.
- Llama with SwiGLU and fused attention: `(15*h + 4*f)*e*T` a layer; 30h + 8f at e = 2 fits measured runs.
  That is all a run of that kind holds beside its states; `layer_bytes` counts the tensors one by one, 16h +
  8f, and what else is held stands in items of its own.
- BERT with eager attention: `((16*e + 2)*h + (2*e + 1)*a*s)*T` a layer, times what was measured over it: 1.30
  in fp32, 1.92 under fp16 autocast, which keeps softmax and norms in fp32. One published model (BERT-large on
  a V100) stands behind each factor.
- ResNet: the output of every convolution (its batch norm's input) and of every ReLU (the next one's input).
- Language-model head: 10 bytes a logit (8 with a compiled loss, 12 measured at worst).
"""

from typing import Literal

from dtlab.cost.parameters import resnet_convolutions
from dtlab.cost.presets import Preset
from dtlab.errors import UserError

Recompute = Literal["none", "full"]
LOGIT_BYTES = 10
# Measured over theory for BERT-large, sequence length 512: 180 against 138 bytes, and 142 against 74.
BERT_MEASURED = {4: 180 / 138, 2: 142 / 74}


def activation_bytes(
    preset: Preset,
    micro_batch: int,
    *,
    element_bytes: Literal[2, 4] = 4,
    seq_len: int | None = None,
    recompute: Recompute = "none",
) -> int:
    """Activations of one forward pass, in bytes. "full" recomputation keeps each layer's input and one layer.

    Raises:
        UserError: the preset's architecture is not known, or a value is out of range.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> activation_bytes(LLAMA_7B, 1, element_bytes=2, seq_len=4096) / 4096 / 32  # bytes a token and layer
    210944.0
    """
    if isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 0:
        raise UserError(f"micro_batch={micro_batch!r} is not a number of samples: give 0 or more, whole")
    if element_bytes not in (2, 4):
        raise UserError(f"element_bytes={element_bytes!r}: use 4 (fp32) or 2 (half precision)")
    if recompute not in ("none", "full"):
        raise UserError(f"recompute={recompute!r} is unknown: use 'none' or 'full'")
    if preset.family == "unstated":
        raise UserError(f"preset={preset.name!r} has no activations by formula: {preset.note}")
    if preset.layers == 0 and recompute == "full":
        raise UserError(f"recompute='full' is a formula for transformers: {preset.name} has no equal layers")
    if preset.family == "resnet":
        return micro_batch * resnet_activation_bytes(element_bytes)
    if preset.family == "deepfm":
        row = preset.fields * preset.dim + preset.num_dense + sum(preset.mlp)
        return micro_batch * row * element_bytes
    tokens = micro_batch * _seq_len(preset, seq_len)
    layer = _layer_bytes_per_token(preset, element_bytes, _seq_len(preset, seq_len)) * tokens
    if recompute == "full":
        inputs = preset.layers * preset.hidden * element_bytes * tokens
        return round(min(inputs + layer, preset.layers * layer))  # of a single layer nothing is saved
    return round(preset.layers * layer)


def logit_bytes(preset: Preset, micro_batch: int, *, seq_len: int | None = None) -> int:
    """Logits of a language-model head and what the loss keeps of them; 0 for a model without one."""
    if preset.family not in ("gpt", "llama"):
        return 0
    return LOGIT_BYTES * micro_batch * _seq_len(preset, seq_len) * preset.vocab


def resnet_activation_bytes(element_bytes: int = 4, image: int = 224) -> int:
    """One image through ResNet-50, in bytes, with ReLU in place.

    Kept: the image, each convolution's output, each ReLU's output, the pooled maps with 8-byte indices, and
    the classifier's input. The projections' outputs go into a sum and have no ReLU of their own.

    >>> round(resnet_activation_bytes() / 1e6)
    86
    """
    outputs = sum(c_out * side**2 for _, c_out, _, side in resnet_convolutions(image=image))
    projections = sum(256 * 2**stage * (image // 4 // 2**stage) ** 2 for stage in range(4))
    pooled = 64 * (image // 4) ** 2
    elements = 3 * image**2 + outputs + (outputs - projections) + pooled + 2048
    return elements * element_bytes + pooled * 8


def _seq_len(preset: Preset, seq_len: int | None) -> int:
    chosen = preset.seq_len if seq_len is None else seq_len
    if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
        raise UserError(f"seq_len={seq_len!r} is not a number of tokens: give a whole number of 1 or more")
    return chosen


def _layer_bytes_per_token(preset: Preset, element: int, seq_len: int) -> float:
    if preset.family == "llama":
        return (15 * preset.hidden + 4 * preset.ffn) * element
    without_scores = (16 * element + 2) * preset.hidden
    if preset.family == "gpt":
        return without_scores
    scores = (2 * element + 1) * preset.heads * seq_len
    return (without_scores + scores) * BERT_MEASURED[element]
