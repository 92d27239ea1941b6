"""Floating-point operations and bytes of one sample, forward and backward (lesson 01).

=============  =======================================================================================
family         FLOPs of one sample
=============  =======================================================================================
gpt, llama     s * (6 * (P - what is only looked up) + 12 * L * h * s)
bert           the same, without task head
resnet         6 * (sum over convolutions of c_in * c_out * k^2 * side^2, and the classifier)
deepfm         6 * (MLP + 2 * (fields + dense) * dim): the factorisation machine in its linear form
counted        as counted of the module, 3 * forward (`dtlab.diagnose.count_module`)
=============  =======================================================================================

- 6 is 2 for multiply and add, times 3: the backward pass has two products for each of the forward pass.
- The attention term counts all s^2 scores, also in causal models, as published MFU figures do (PaLM,
  arXiv 2204.02311, appendix B). What a kernel skips shows up as a higher share of peak, not as fewer FLOPs.
- Full recomputation adds a third to what the hardware does, and nothing to these numbers.
"""

from dataclasses import dataclass
from functools import lru_cache

from dtlab.cost.calibration import ModelKind
from dtlab.cost.parameters import resnet_convolutions
from dtlab.cost.presets import Preset, preset
from dtlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step model needs to know of a model; sizes that it does not have are 0.

    - `product_flops`, `attention_flops`: of one sample, forward and backward;
    - `parameters`: outside embedding tables; `table_parameters`: in them;
    - `table_bytes`: of the rows (fp32, first-order weights too) that one sample looks up;
    - `layers`: what the launch time counts; for a recommender its matrices and the factorisation machine.
    """

    kind: ModelKind
    product_flops: float
    attention_flops: float = 0.0
    parameters: int
    table_parameters: int = 0
    table_bytes: float = 0.0
    layers: int
    hidden: int = 0
    seq_len: int = 0

    @property
    def flops(self) -> float:
        return self.product_flops + self.attention_flops


def flops_per_sample(model: str | Preset, seq_len: int | None = None) -> float:
    """FLOPs of one sample (a sequence, an image, a row), forward and backward.

    >>> f"{flops_per_sample('ResNet-50'):.3g}", f"{flops_per_sample('Llama 7B') / 4096:.3g} a token"
    ('2.45e+10', '4.61e+10 a token')

    Raises:
        UserError: a preset whose shape is not known.
    """
    return work_of(model, seq_len).flops


@lru_cache(maxsize=256)
def work_of(model: str | Preset, seq_len: int | None = None) -> Work:
    """The `Work` of a preset; `seq_len` in place of its own.

    Raises:
        UserError: a preset whose shape is not known.
    """
    found = model if isinstance(model, Preset) else preset(model)
    if found.family in ("gpt", "llama", "bert"):
        return _transformer(found, seq_len or found.seq_len)
    if found.family == "resnet":
        convolutions = resnet_convolutions()
        products = sum(c_in * c_out * k * k * side * side for c_in, c_out, k, side in convolutions)
        return Work(
            kind="cnn",
            product_flops=6.0 * (products + 2048 * 1000),
            parameters=found.parameters,
            layers=len(convolutions),
        )
    if found.family == "deepfm":
        dense = found.parameters - found.table_parameters
        return Work(
            kind="recommender",
            product_flops=6.0 * (dense + 2 * (found.fields + found.num_dense) * found.dim),
            parameters=dense,
            table_parameters=found.table_parameters,
            table_bytes=4.0 * found.fields * (found.dim + 1),
            layers=len(found.mlp) + 3,
        )
    if found.sample_flops:
        return Work(
            kind="transformer", product_flops=float(found.sample_flops), parameters=found.parameters, layers=0
        )
    raise UserError(
        f"preset = {found.name!r}: its shape is not known, so neither are its FLOPs; give a TOML file with a "
        "[transformer] of your shape, take 'GPT 320M' for a decoder of that size, or fit runs of yours with "
        "dtlab cost fit"
    )


def _transformer(found: Preset, seq_len: int) -> Work:
    return Work(
        kind="transformer",
        product_flops=6.0 * seq_len * _multiplied(found),
        attention_flops=12.0 * found.layers * found.hidden * seq_len**2,
        parameters=found.parameters,
        layers=found.layers,
        hidden=found.hidden,
        seq_len=seq_len,
    )


def _multiplied(found: Preset) -> int:
    """Parameters that take part in products: not looked-up rows, unless the same matrix is the head too."""
    table = found.vocab * found.hidden
    if found.family == "bert":
        return found.parameters - table - (found.seq_len + 2) * found.hidden
    positions = found.seq_len * found.hidden if found.family == "gpt" else 0
    return found.parameters - positions - (0 if found.tied else table)
