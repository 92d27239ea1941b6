"""Presets for models of your own: a transformer or a recommender from its shape (lesson 09). No torch.

A module that fits neither is counted as it is, on the meta device, by
`dtlab.diagnose.count_module.count_module`.
"""

from collections.abc import Sequence

from dtlab.cost.parameters import decoder_units, deepfm_parameters, llama_parameters
from dtlab.cost.pipeline import at_least_one
from dtlab.cost.presets import Preset
from dtlab.errors import UserError

MOST_LAYERS = 512  # four times the most of any published decoder; a pipeline's cuts are searched over them


def transformer(
    layers: int,
    hidden: int,
    vocab: int,
    seq_len: int,
    *,
    heads: int,
    ffn: int | None = None,
    kv_heads: int | None = None,
    gated: bool = True,
    tied: bool = False,
    biases: bool = False,
    name: str = "transformer",
) -> Preset:
    """A decoder of that shape.

    Args:
        ffn: width of the MLP; 4 * hidden by default, and 8/3 * hidden, up to a multiple of 256, if gated.
        kv_heads: heads of keys and values (grouped-query attention); as many as `heads` by default.
        gated: Llama: SwiGLU with three matrices, RMSNorm, rotary positions. False: GPT: two matrices, learned
            positions, as many key-value heads as heads.
        tied: the output matrix is the input embedding, stored once.
        biases: of a GPT, with LayerNorm (GPT-2, GPT-3).

    Raises:
        UserError: a size below 1, heads that do not divide hidden, kv_heads that do not divide heads, more
            layers than `MOST_LAYERS`.

    >>> transformer(32, 4096, 128256, 8192, heads=32, kv_heads=8, ffn=14336, name="Llama 3 8B").parameters
    8030261248
    >>> transformer(12, 768, 50257, 1024, heads=12, gated=False, tied=True, biases=True).parameters
    124439808
    """
    kv_heads = heads if kv_heads is None else kv_heads
    if ffn is None and isinstance(hidden, int):
        ffn = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
    assert ffn is not None
    sizes = {"layers": layers, "hidden": hidden, "vocab": vocab, "seq_len": seq_len, "heads": heads}
    at_least_one(**sizes, ffn=ffn, kv_heads=kv_heads)
    if layers > MOST_LAYERS:
        raise UserError(f"layers = {layers}: give those of a real model, at most {MOST_LAYERS}")
    if hidden % heads:
        raise UserError(f"heads = {heads} does not divide hidden = {hidden}: take a divisor")
    if heads % kv_heads:
        raise UserError(f"kv_heads = {kv_heads} does not divide heads = {heads}: take a divisor")
    if gated:
        if biases:
            raise UserError("biases = True with gated = True: a Llama has none; take gated = False")
        parameters = llama_parameters(layers, hidden, ffn, vocab, heads, kv_heads, tied)
        formula = f"L*(2*h^2*(1 + kv/a) + 3*h*f + 2*h) + h + {'' if tied else '2*'}V*h"
    else:
        if kv_heads != heads:
            raise UserError(f"kv_heads = {kv_heads} with gated = False: a GPT has {heads}, one for each head")
        units = decoder_units(layers, hidden, vocab, seq_len, ffn, biases=biases)
        parameters = sum(units) - (vocab * hidden if tied else 0)
        block = "4*h^2 + 2*h*f + f + 9*h" if biases else "4*h^2 + 2*h*f + 2*h"
        formula = f"{'' if tied else '2*'}V*h + s*h + L*({block}) + {'2*' if biases else ''}h"
    return Preset(
        name=name,
        family="llama" if gated else "gpt",
        parameters=parameters,
        formula=formula,
        source="the shape that was given",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        seq_len=seq_len,
        tied=tied,
    )


def recommender(
    rows: int,
    fields: int,
    dim: int,
    *,
    num_dense: int = 0,
    mlp: Sequence[int] = (128, 64),
    name: str = "recommender",
) -> Preset:
    """A DeepFM of that shape: a table of `rows` x `dim`, first-order weights, and an MLP over the fields.

    Args:
        rows: of all tables together; fields: look-ups of one sample.
        num_dense: dense inputs; mlp: widths of the hidden layers.

    Raises:
        UserError: a size below 1, or num_dense below 0.

    >>> recommender(100, fields=2, dim=4, num_dense=1, mlp=(8,)).parameters
    595
    """
    at_least_one(rows=rows, fields=fields, dim=dim, **{f"mlp[{i}]": width for i, width in enumerate(mlp)})
    if num_dense:
        at_least_one(num_dense=num_dense)
    layers = " -> ".join(map(str, mlp))
    return Preset(
        name=name,
        family="deepfm",
        parameters=deepfm_parameters(rows, fields, num_dense, dim, tuple(mlp)),
        formula=f"(rows + dense)*(dim + 1) + 1 + MLP of (fields*dim + dense) -> {layers} -> 1",
        source="the shape that was given",
        fields=fields,
        num_dense=num_dense,
        dim=dim,
        mlp=tuple(mlp),
        table_parameters=rows * (dim + 1),
    )
