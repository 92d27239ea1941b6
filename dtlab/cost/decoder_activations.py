"""What autograd keeps of `dtlab.models.gpt` between forward and backward, to the byte (lesson 09). No torch.

`activations.py` has the estimates of the literature for published models. Here every saved tensor is counted,
so that a measured peak equals it exactly. With T = batch x seq_len tokens of a rank (of a micro-batch), h
hidden, f FFN width, a heads, V vocabulary, e bytes an element, t tensor-parallel ranks:

- norm and the matrix behind it: RMSNorm keeps its input, the normalised input and one number a token,
  LayerNorm the input and two numbers; the matrix keeps what it is given: `T*e*(3*h + 1)` or `T*e*(2*h + 2)`.
- attention without the matrix of scores: query, key, value, output, and one number a head: `T*e*(4*h + a)/t`.
- MLP: before and after the GELU: `T*e*2*f/t`.
- head: norm, then the log-probabilities of all tokens: `T*e*V`, the targets `8*T`, one number.
- embedding: the tokens, `8*T`; by hand also a mask of one byte a token.

Sequence parallelism divides the norms' own part by t; the matrix behind keeps all positions. It takes
torch's attention on a CPU, no dropout, and a loss that sees all logits (Korthikanti et al., arXiv 2205.05198,
section 4, count the same kinds of tensor).
"""

from typing import Literal

from dtlab.errors import UserError


def decoder_saved_bytes(
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    seq_len: int,
    batch: int,
    ffn: int | None = None,
    *,
    element_bytes: int = 4,
    norm: Literal["rms", "layer"] = "rms",
    tp: int = 1,
    sequence_parallel: bool = False,
    by_hand: bool = False,
) -> list[int]:
    """Bytes of the embedding, each block, and the head; their sum is the peak of a step in one piece.

    Data parallelism and FSDP change `batch` alone. A pipeline's rank holds the sum over its units, times the
    micro-batches in flight (`live_activations`).

    Args:
        batch: samples of a rank, or of a micro-batch.
        tp, sequence_parallel, by_hand: as for `dtlab.parallel.tensor_gpt.tensor_parallel`.

    Raises:
        UserError: a size below 1; `tp` does not divide heads, hidden or ffn.

    >>> decoder_saved_bytes(1, 8, 2, 32, 16, 4)
    [512, 37888, 15108]
    >>> decoder_saved_bytes(1, 8, 2, 32, 16, 4, tp=2)
    [512, 25344, 15108]
    """
    ffn = 4 * hidden if ffn is None else ffn
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq_len": seq_len}
    for name, size in {**sizes, "batch": batch, "ffn": ffn, "tp": tp}.items():
        if size < 1:
            raise UserError(f"{name} = {size!r}: must be at least 1")
    for name, size in (("heads", heads), ("hidden", hidden), ("ffn", ffn)):
        if size % tp:
            raise UserError(f"tp = {tp} does not divide {name} = {size}")
    if sequence_parallel and seq_len % tp:
        raise UserError(f"sequence_parallel: tp = {tp} does not divide seq_len = {seq_len}")
    tokens = batch * seq_len
    inside = (2 * hidden + 1) if norm == "rms" else (hidden + 2)
    normed = (tokens * inside // (tp if sequence_parallel else 1) + tokens * hidden) * element_bytes
    attention = tokens * (4 * hidden + heads) // tp * element_bytes
    mlp = tokens * 2 * ffn // tp * element_bytes
    mask = tokens if by_hand and tp > 1 else 0
    head = normed + tokens * vocab * element_bytes + 8 * tokens + element_bytes
    return [8 * tokens + mask, *[2 * normed + attention + mlp] * layers, head]
