"""The models that the course does its sums with, each counted by a stated formula (lesson 01)."""

import difflib
from dataclasses import dataclass
from typing import Literal

from dtlab.cost.parameters import (
    bert_parameters,
    decoder_units,
    deepfm_parameters,
    gpt_parameters,
    llama_parameters,
    resnet_parameters,
)
from dtlab.errors import UserError

Family = Literal["resnet", "bert", "gpt", "llama", "deepfm", "counted", "unstated"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model's shape and size. Fields that a family does not have are 0.

    - `parameters`: all of them; `table_parameters`: those in embedding tables of a recommender.
    - `kv_heads`: heads of keys and values; `tied`: the output matrix is the input embedding.
    - `sample_bytes`: what a counted module keeps of one sample for the backward pass, in fp32;
      `sample_flops`: its FLOPs of one sample, forward and backward.
    - `formula`: how `parameters` was counted; `source`: where the shape is from; `note`: what we assumed.
    """

    name: str
    family: Family
    parameters: int
    formula: str
    source: str
    layers: int = 0
    hidden: int = 0
    ffn: int = 0
    heads: int = 0
    vocab: int = 0
    seq_len: int = 0
    fields: int = 0
    num_dense: int = 0
    dim: int = 0
    mlp: tuple[int, ...] = ()
    table_parameters: int = 0
    kv_heads: int = 0
    tied: bool = False
    sample_bytes: int = 0
    sample_flops: int = 0
    note: str = ""


RESNET_50 = Preset(
    name="ResNet-50",
    family="resnet",
    parameters=resnet_parameters(),
    formula="sum over 53 convolutions of c_in*c_out*k^2 + 2*c_out, classifier 2048*1000 + 1000",
    source="He et al., arXiv 1512.03385, table 1; stride in the 3x3 convolution",
    note="images of 224 x 224",
)
BERT_LARGE = Preset(
    name="BERT-large",
    family="bert",
    parameters=bert_parameters(layers=24, hidden=1024, vocab=30522, positions=512),
    formula="(V + s + 2)*h + 2*h + L*(12*h^2 + 13*h) + h^2 + h",
    source="Devlin et al., arXiv 1810.04805",
    layers=24, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=30522, seq_len=512,
    note="encoder and pooler, no task head",
)  # fmt: skip
MULTIMODAL_320M = Preset(
    name="S3 multimodal 320M",
    family="unstated",
    parameters=320_000_000,
    formula="as the author states it",
    source="the course's source S3",
    note="the architecture is not given, so activations cannot be computed; the author reports 38 GB a card",
)
DEEPFM_TABLE = Preset(
    name="S4 DeepFM 1M x 1024",
    family="deepfm",
    parameters=deepfm_parameters(1_000_000, fields=26, num_dense=13, dim=1024, hidden=(128, 64)),
    formula="(rows + dense)*(dim + 1) + 1 + MLP of (26*1024 + 13) -> 128 -> 64 -> 1",
    source="the course's source S4 for the dimension of 1024",
    fields=26, num_dense=13, dim=1024, mlp=(128, 64), table_parameters=1_000_000 * 1025,
    note="1M rows, 26 fields and 13 dense inputs are our assumption: the source gives none of them",
)  # fmt: skip
GPT_320M = Preset(
    name="GPT 320M",
    family="gpt",
    parameters=sum(decoder_units(layers=24, hidden=1024, vocab=16384, positions=1024)) - 16384 * 1024,
    formula="V*h + s*h + L*(12*h^2 + 2*h) + h",
    source="dtlab.models.gpt at the size that the course's source S3 states",
    layers=24, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=16384, seq_len=1024, tied=True,
    note="S3 states 320M parameters and no shape: this shape is our assumption",
)  # fmt: skip
GPT_3 = Preset(
    name="GPT-3 175B",
    family="gpt",
    parameters=gpt_parameters(layers=96, hidden=12288, vocab=50257, positions=2048),
    formula="V*h + s*h + L*(12*h^2 + 13*h) + 2*h",
    source="Brown et al., arXiv 2005.14165, table 2.1",
    layers=96, hidden=12288, ffn=49152, heads=96, kv_heads=96, vocab=50257, seq_len=2048, tied=True,
)  # fmt: skip
LLAMA_7B = Preset(
    name="Llama 7B",
    family="llama",
    parameters=llama_parameters(layers=32, hidden=4096, ffn=11008, vocab=32000, heads=32),
    formula="L*(4*h^2 + 3*h*f + 2*h) + h + 2*V*h",
    source="Touvron et al., arXiv 2307.09288",
    layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000, seq_len=4096,
)  # fmt: skip
LLAMA_70B = Preset(
    name="Llama 70B",
    family="llama",
    parameters=llama_parameters(layers=80, hidden=8192, ffn=28672, vocab=32000, heads=64, kv_heads=8),
    formula="L*(2*h^2*(1 + 8/64) + 3*h*f + 2*h) + h + 2*V*h",
    source="Touvron et al., arXiv 2307.09288",
    layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=32000, seq_len=4096,
)  # fmt: skip

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (RESNET_50, BERT_LARGE, MULTIMODAL_320M, GPT_320M, DEEPFM_TABLE, GPT_3, LLAMA_7B, LLAMA_70B)
}


def preset(name: str) -> Preset:
    """The preset of that name, in any case.

    >>> preset("bert-large").parameters
    335141888

    Raises:
        UserError: unknown; the message lists the names.
    """
    by_lower = {known.lower(): found for known, found in PRESETS.items()}
    found = by_lower.get(str(name).strip().lower())
    if found is None:
        wanted = str(name).lower()
        near = difflib.get_close_matches(wanted, list(by_lower), n=1)
        near = near or [known for known in by_lower if set(wanted.split()) & set(known.split())][:1]
        hint = f"did you mean {by_lower[near[0]].name!r}? " if near else ""
        raise UserError(f"preset={name!r} is unknown: {hint}known are {', '.join(PRESETS)}")
    return found
