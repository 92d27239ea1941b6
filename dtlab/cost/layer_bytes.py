"""Bytes that a transformer layer keeps for the backward pass on one rank, tensor by tensor (lesson 09).

A layer keeps three kinds of tensor; t tensor-parallel ranks share them differently:

| kind | Llama (SwiGLU, RMSNorm) | GPT (GELU, dropout) | cut by tensor parallelism |
|---|---|---|---|
| the stream: norms' inputs, dropout masks | 2eh | 2eh + 2h | only with sequence parallelism |
| inputs of the first matrices | 2eh | 2eh | only with it, where they are gathered again |
| inside: q, k, v, attention's output, MLP | eh(2 + 2k/a) + 4ef + 4a | 4eh + 2ef | always |

in bytes a token; with e = 2 and a = k these are 16h + 8f + 4a and, with f = 4h, the 34h of Korthikanti et al.
(arXiv 2205.05198, equations 2 to 4; their 10 + 24/t too). Attention is fused and keeps no scores; BERT's is
not, and keeps `(2e + 1)*a*s` a token more, times what was measured over theory (`activations.BERT_MEASURED`).
"""

from dataclasses import dataclass
from functools import lru_cache

from dtlab.cost.activations import BERT_MEASURED
from dtlab.cost.presets import Preset
from dtlab.cost.programs import Program
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes on one rank for one micro-batch.

    - `kept`: of each layer; `once`: beside them, for one layer at a time (recomputation).
    - `stream`: one tensor of T x h as a rank keeps it; `whole`: the same, not cut.
    - `gradients`: of the activations of the layer that is in its backward pass.
    - `logits`: how many of them a rank has.
    """

    kept: float
    once: float
    stream: float
    whole: float
    gradients: float
    logits: float


def layer_bytes(
    model: Preset, strategy: Strategy, program: Program, seq_len: int | None = None
) -> LayerBytes:
    """The bytes of one layer of a transformer under a strategy.

    Raises:
        UserError: seq_len is no number of tokens.

    >>> from dtlab.cost.presets import LLAMA_7B
    >>> from dtlab.cost.programs import TORCH
    >>> layer_bytes(LLAMA_7B, Strategy(), TORCH).kept / 4096 == 16 * 4096 + 8 * 11008 + 4 * 32
    True
    """
    s = model.seq_len if seq_len is None else seq_len
    if type(s) is not int or s < 1:
        raise UserError(f"seq_len = {seq_len!r}: give a whole number of tokens, 1 or more")
    tokens, t, h = s * strategy.micro_batch, strategy.tp, model.hidden
    element = 4 if strategy.precision == "fp32" else 2
    stream, inside, mlp = _per_token(model, element, s, strategy.recompute == "selective")
    entering = 2 * element * h
    norms_cut = t if strategy.sequence_parallel else 1
    entering_cut = norms_cut if program.gathers_again else 1
    full = tokens * (stream / norms_cut + entering / entering_cut + inside / t)
    cut_stream = tokens * element * h / norms_cut
    with_head = model.family in ("gpt", "llama")
    return LayerBytes(
        kept=cut_stream if strategy.recompute == "full" else full,
        once=full if strategy.recompute == "full" else 0.0,
        stream=cut_stream,
        whole=float(tokens * element * h),
        gradients=tokens * mlp / t,
        logits=tokens * model.vocab / (t if strategy.loss_parallel else 1) if with_head else 0.0,
    )


@lru_cache(maxsize=1024)
def _per_token(model: Preset, element: int, seq_len: int, drop_scores: bool) -> tuple[float, float, float]:
    """Stream, inside, and gradients of the MLP, in bytes a token."""
    h, f, a = model.hidden, model.ffn, model.heads
    if model.family == "llama":
        inside = element * h * (2 + 2 * (model.kv_heads or a) / a) + 4 * element * f + 4 * a
        return 2.0 * element * h, inside, 3.0 * element * f
    scores = 0.0 if model.family == "gpt" or drop_scores else (2 * element + 1) * a * seq_len
    measured = model.family == "bert"
    times = BERT_MEASURED[element] if measured else 1.0
    entering = 2 * element * h
    stream, inside = 2 * element * h + 2 * h, 4 * element * h + 2 * element * f + scores
    # What is measured over theory is put on what is kept inside; inputs of matrices are counted elsewhere.
    mlp = 0.0 if measured else 2.0 * element * f
    return stream * times, inside * times + entering * (times - 1), mlp
