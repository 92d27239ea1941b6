"""Parameter counts by formula: what is stored, and what is multiplied (lessons 01 and 07).

Symbols: h hidden size, f FFN width, a heads, L layers, V vocabulary, s positions.
Biases and norms are counted, so that the totals equal those of the published models to the last parameter.
"""

import itertools
from dataclasses import dataclass

from dtlab.errors import UserError, require_whole


def gpt_parameters(layers: int, hidden: int, vocab: int, positions: int) -> int:
    """A GPT-2/GPT-3 decoder: tied embedding, learned positions, f = 4h, biases.

    `V*h + s*h + L*(12*h**2 + 13*h) + 2*h` (Brown et al., arXiv 2005.14165, table 2.1, for the shapes).

    >>> gpt_parameters(12, 768, 50257, 1024)  # GPT-2
    124439808
    """
    return vocab * hidden + positions * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden


def decoder_units(
    layers: int,
    hidden: int,
    vocab: int,
    positions: int,
    ffn: int | None = None,
    *,
    biases: bool = False,
    tp: int = 1,
) -> list[int]:
    """A GPT decoder part by part: embedding, each block, head. What a pipeline deals out to its stages.

    - embedding `V*h + s*h`; head: the final norm and a matrix of `V*h`, which a tied model shares with it;
    - block `4*h**2 + 2*h*f + 2*h` with RMSNorm and no biases (`dtlab.models.gpt`), or
      `4*h**2 + 2*h*f + f + 9*h` with LayerNorm and biases (GPT-2, GPT-3; f = 4h gives `12*h**2 + 13*h`).
    - `tp`: what one of t tensor-parallel ranks holds: 1/t of every matrix, of the biases of query, key, value
      and the first MLP matrix, and of the vocabulary rounded up; all of positions, norms and other biases.

    Raises:
        UserError: `tp` does not divide h or f.

    >>> decoder_units(2, 8, 100, 16), decoder_units(2, 8, 100, 16, tp=2)
    ([928, 784, 784, 808], [528, 400, 400, 408])
    >>> sum(decoder_units(12, 768, 50257, 1024, biases=True)) - 50257 * 768  # GPT-2, tied
    124439808
    """
    ffn = 4 * hidden if ffn is None else ffn
    if tp < 1 or hidden % tp or ffn % tp:
        raise UserError(f"tp = {tp} does not divide hidden = {hidden} and ffn = {ffn}")
    cut = 4 * hidden**2 + 2 * hidden * ffn + (3 * hidden + ffn if biases else 0)
    whole, norm = (6 * hidden, 2 * hidden) if biases else (2 * hidden, hidden)
    table = -(-vocab // tp) * hidden
    return [table + positions * hidden, *[cut // tp + whole] * layers, norm + table]


def bert_parameters(layers: int, hidden: int, vocab: int, positions: int, types: int = 2) -> int:
    """A BERT encoder with its pooler, without a task head (Devlin et al., arXiv 1810.04805).

    `(V + s + types)*h + 2*h + L*(12*h**2 + 13*h) + h**2 + h`

    >>> bert_parameters(24, 1024, 30522, 512)  # BERT-large
    335141888
    """
    embeddings = (vocab + positions + types) * hidden + 2 * hidden
    return embeddings + layers * (12 * hidden**2 + 13 * hidden) + hidden**2 + hidden


def llama_parameters(
    layers: int,
    hidden: int,
    ffn: int,
    vocab: int,
    heads: int,
    kv_heads: int | None = None,
    tied: bool = False,
) -> int:
    """A Llama decoder: SwiGLU, RMSNorm, rotary positions, no biases.

    `L*(2*h**2*(1 + kv/a) + 3*h*f + 2*h) + h + V*h` for the input embedding, and `V*h` more for an untied head
    (Touvron et al., arXiv 2307.09288, for the shapes).

    >>> llama_parameters(32, 4096, 11008, 32000, 32)  # Llama 7B
    6738415616
    """
    kv_width = hidden * (kv_heads or heads) // heads
    layer = 2 * hidden**2 + 2 * hidden * kv_width + 3 * hidden * ffn + 2 * hidden
    return layers * layer + hidden + vocab * hidden * (1 if tied else 2)


def resnet_convolutions(
    blocks: tuple[int, ...] = (3, 4, 6, 3), image: int = 224
) -> list[tuple[int, int, int, int]]:
    """Every convolution of a bottleneck ResNet as (channels in, channels out, kernel, output side).

    The stride sits in the 3x3 convolution (v1.5, as in torchvision). He et al., arXiv 1512.03385, table 1.

    >>> len(resnet_convolutions())
    53
    """
    side = image // 2
    convolutions = [(3, 64, 7, side)]
    side //= 2
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            out_side = side // 2 if stage > 0 and block == 0 else side
            convolutions += [
                (channels, width, 1, side),
                (width, width, 3, out_side),
                (width, 4 * width, 1, out_side),
            ]
            if block == 0:
                convolutions.append((channels, 4 * width, 1, out_side))
            channels, side = 4 * width, out_side
    return convolutions


def resnet_parameters(blocks: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> int:
    """Convolutions `c_in*c_out*k**2`, two numbers per channel for each batch norm, and the classifier.

    >>> resnet_parameters()  # ResNet-50
    25557032
    """
    convolutions = sum(
        c_in * c_out * kernel**2 + 2 * c_out for c_in, c_out, kernel, _ in resnet_convolutions(blocks)
    )
    features = 256 * 2 ** (len(blocks) - 1)
    return convolutions + features * classes + classes


def deepfm_parameters(
    rows: int, fields: int, num_dense: int, dim: int, hidden: tuple[int, ...] = (128, 64)
) -> int:
    """A DeepFM: a table of `rows x dim`, first-order weights, and an MLP over the fields (arXiv 1703.04247).

    - `rows` is the sum of all cardinalities; every field looks up one row.
    - dense inputs take part as fields: `num_dense x dim` factors;
    - first order: one weight a row and one per dense input, and one bias;
    - deep part: `fields*dim + num_dense` inputs, the hidden layers, one output, with biases.

    >>> deepfm_parameters(rows=100, fields=2, num_dense=1, dim=4, hidden=(8,))
    595
    """
    widths = (fields * dim + num_dense, *hidden, 1)
    mlp = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    return (rows + num_dense) * (dim + 1) + 1 + mlp


@dataclass(frozen=True)
class EmbeddingCount:
    """`stored` parameters take memory; `multiplied` ones take part in a matrix product."""

    stored: int
    multiplied: int

    @property
    def flops_per_token(self) -> int:
        """Forward and backward, `6 * multiplied`, without attention (Kaplan et al., arXiv 2001.08361)."""
        return 6 * self.multiplied


def with_embedding(body: int, vocab: int, hidden: int, *, tied: bool) -> EmbeddingCount:
    """Add the embedding to the `body` of a language model, once if tied.

    The input look-up copies rows and multiplies nothing; the output head multiplies, tied or not.

    >>> with_embedding(1000, vocab=100, hidden=8, tied=True)
    EmbeddingCount(stored=1800, multiplied=1800)
    >>> with_embedding(1000, vocab=100, hidden=8, tied=False)
    EmbeddingCount(stored=2600, multiplied=1800)
    """
    for name, count in (("body", body), ("vocab", vocab), ("hidden", hidden)):
        require_whole(name, count, 0, "parameters" if name == "body" else "rows or columns")
    table = vocab * hidden
    return EmbeddingCount(stored=body + table * (1 if tied else 2), multiplied=body + table)
