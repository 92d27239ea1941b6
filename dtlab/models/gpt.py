"""A small GPT: a decoder-only transformer with norms before its parts (the course's language model).

``tokens -> embedding -> blocks -> head -> logits``

- It knows nothing of ranks. What acts on parts of it (activation checkpointing, sharding, pipelines) finds
  them as modules: ``embedding``, ``blocks`` (a list; each maps [B, S, D] to [B, S, D]) and ``head``.
- Query, key and value have a matrix each, and the number of heads follows from the size of what they give, so
  that a matrix may be cut by heads.
- With ``tied`` the head's matrix is the token embedding (Press and Wolf, arXiv 1608.05859): one parameter.
- The loss is a SUM over tokens with its count. Ranks and micro-batches hold unequal numbers of tokens; a mean
  of means would weigh the tokens of a short one more.

Radford et al., "Language models are unsupervised multitask learners", 2019 (architecture, initialisation);
Zhang and Sennrich, arXiv 1910.07467 (RMSNorm). Taught in lessons 05 to 10.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.errors import UserError

__all__ = ["GPT", "Attention", "Block", "Embedding", "Head", "TokenLoss", "token_loss"]

IGNORED = -100
"""A target of this value is no token: it enters neither the sum nor the count."""


class GPT(nn.Module):
    """Logits of the next token at every position.

    Args:
        vocab_size: number of tokens; 256 for bytes.
        sequence: most tokens of a sample.
        dim: width D of the hidden vectors.
        num_layers: blocks.
        num_heads: attention heads; divides ``dim``.
        hidden: width of a block's MLP; default 4 * dim.
        dropout: after the embedding, inside attention, and at the end of both halves of a block.
        norm: "rms" or "layer".
        tied: let the head use the token embedding.

    Raises:
        UserError: a size that does not fit; in ``forward`` a sample that is too long and, on a CPU, a token
            outside the vocabulary.

    >>> import torch
    >>> model = GPT(sequence=16, dim=32, num_layers=2, num_heads=4)
    >>> model(torch.zeros(3, 16, dtype=torch.int64)).shape
    torch.Size([3, 16, 256])
    """

    def __init__(
        self,
        vocab_size: int = 256,
        sequence: int = 128,
        dim: int = 128,
        num_layers: int = 4,
        num_heads: int = 4,
        *,
        hidden: int | None = None,
        dropout: float = 0.0,
        norm: Literal["rms", "layer"] = "rms",
        tied: bool = True,
    ) -> None:
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        sizes = {"vocab_size": vocab_size, "sequence": sequence, "dim": dim, "num_layers": num_layers}
        for name, size in {**sizes, "num_heads": num_heads, "hidden": hidden}.items():
            if size < 1:
                raise UserError(f"{name} = {size!r}: must be at least 1")
        if dim % num_heads:
            raise UserError(f"num_heads = {num_heads}: does not divide dim = {dim}; choose a divisor")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout = {dropout!r}: must lie in [0, 1)")
        if norm not in ("rms", "layer"):
            raise UserError(f"norm = {norm!r}: choose 'rms' or 'layer'")
        self.vocab_size, self.sequence, self.is_tied = vocab_size, sequence, tied
        self.embedding = Embedding(vocab_size, sequence, dim, dropout)
        self.blocks = nn.ModuleList(Block(dim, num_heads, hidden, dropout, norm) for _ in range(num_layers))
        self.head = Head(dim, vocab_size, norm)
        if tied:
            self.head.output.weight = self.embedding.token.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As GPT-2: normal with standard deviation 0.02.

        Less where a block adds to the residual stream, so that its variance does not grow with the number of
        blocks.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                adds_to_residual = name.endswith(("attention.output", "mlp.output"))
                std = 0.02 / (2 * len(self.blocks)) ** 0.5 if adds_to_residual else 0.02
                nn.init.normal_(module.weight, std=std)

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens`` [B, S] int64 -> logits [B, S, vocab_size]; B may be 0."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Embedding(nn.Module):
    """Token plus position: [B, S] int64 -> [B, S, D]."""

    def __init__(self, vocab_size: int, sequence: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(sequence, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        length, longest = tokens.shape[1], self.position.num_embeddings
        if length > longest:
            raise UserError(
                f"tokens: {length} in a sample, the model has positions for {longest}; cut them shorter"
            )
        if tokens.device.type == "cpu" and tokens.numel():
            # torch says "index out of range in self"; on a GPU the check would wait for the device.
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.token.num_embeddings:
                raise UserError(
                    f"tokens: {low if low < 0 else high} is outside 0..{self.token.num_embeddings - 1}; give "
                    "vocab_size the number of tokens that there are"
                )
        return self.dropout(self.token(tokens) + self.position.weight[:length])


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``: [B, S, D] -> [B, S, D]."""

    def __init__(self, dim: int, num_heads: int, hidden: int, dropout: float, norm: str) -> None:
        super().__init__()
        self.attention_norm = _norm(norm, dim)
        self.attention = Attention(dim, num_heads, dropout)
        self.mlp_norm = _norm(norm, dim)
        self.mlp = MLP(dim, hidden, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Causal self-attention: a position sees itself and what came before it. [B, S, D] -> [B, S, D]."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.output_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)  # [B, heads, S, head_dim]
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.output_dropout(self.output(seen.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """Two matrices with a GELU between: [B, S, D] -> [B, S, D]."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.input = nn.Linear(dim, hidden, bias=False)
        self.output = nn.Linear(hidden, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.output(F.gelu(self.input(x))))


class Head(nn.Module):
    """Norm and output matrix: [B, S, D] -> logits [B, S, vocab_size]."""

    def __init__(self, dim: int, vocab_size: int, norm: str) -> None:
        super().__init__()
        self.norm = _norm(norm, dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(x))


class TokenLoss(NamedTuple):
    """Cross-entropy in nats, summed over tokens, and how many tokens that were; both 0-dimensional."""

    total: Tensor
    tokens: Tensor


def token_loss(logits: Tensor, targets: Tensor) -> TokenLoss:
    """The summed loss of ``logits`` [B, S, V] against ``targets`` [B, S] int64; targets of -100 do not count.

    The gradient of one step over all ranks and micro-batches is that of (sum of totals) / (sum of tokens).

    >>> import torch
    >>> loss = token_loss(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))
    >>> round(float(loss.total), 4), int(loss.tokens)  # log(4), one token
    (1.3863, 1)
    """
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return TokenLoss(total, (targets != IGNORED).sum())


def _norm(kind: str, dim: int) -> nn.Module:
    return nn.RMSNorm(dim) if kind == "rms" else nn.LayerNorm(dim)
