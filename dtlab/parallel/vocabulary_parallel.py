"""Embedding, output head and loss with the vocabulary cut over ranks, by hand (lesson 07).

Rank r of t holds n = (padded V) / t rows of the table, ``r * n`` to ``(r + 1) * n - 1``.

- Look-up: a rank gives zeros for tokens of other ranks, and ``g`` sums: nothing is lost at the borders.
- Loss: the logits stay where they are, [B, S, V / t] a rank. Three numbers a token cross (maximum, sum of
  exponentials, the target's logit) instead of V.
- Rows that only pad belong to no token: a look-up refuses them, the loss leaves them out.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.models.gpt import IGNORED, TokenLoss
from dtlab.parallel.tensor import Group, copy_to_ranks, gather_last, shard_of, sum_over_ranks
from dtlab.parallel.vocabulary import padded_vocab_size
from dtlab.ranks import groups

__all__ = ["VocabularyEmbedding", "VocabularyHead", "vocabulary_parallel_loss"]


class VocabularyEmbedding(nn.Module):
    """Rows of a table for tokens [...] int64 -> [..., D], the same on all ranks.

    ``whole``: the table, [V, D]; it is padded to a size that the ranks divide.

    >>> table = nn.Embedding(11, 4)
    >>> VocabularyEmbedding(table)(torch.tensor([10])).equal(table(torch.tensor([10])))  # a world of one
    True
    """

    def __init__(self, whole: nn.Embedding, group: Group = None) -> None:
        super().__init__()
        self.group, self.num_embeddings = group, whole.num_embeddings
        self.weight = shard_of(_padded(whole.weight, group), 0, group)
        _mark_rows(self.weight, whole.num_embeddings)

    def forward(self, tokens: Tensor) -> Tensor:
        _check("tokens", tokens, self.num_embeddings)
        local, here = _local(tokens, len(self.weight), self.group)
        rows = F.embedding(local, self.weight) * here.unsqueeze(-1)
        return sum_over_ranks(rows, self.group)


class VocabularyHead(nn.Module):
    """The output matrix cut by tokens: [..., D] -> logits [..., V].

    ``gather=False``: this rank's part [..., padded V / t], for ``vocabulary_parallel_loss``.
    """

    def __init__(self, whole: nn.Linear, group: Group = None, *, gather: bool = True) -> None:
        super().__init__()
        if getattr(whole, "bias", None) is not None:
            raise UserError("the output head has a bias: cut one without")
        self.group, self.gather, self.vocab_size = group, gather, whole.out_features
        self.weight = shard_of(_padded(whole.weight, group), 0, group)
        _mark_rows(self.weight, whole.out_features)

    def forward(self, x: Tensor) -> Tensor:
        logits = F.linear(copy_to_ranks(x, self.group), self.weight)
        return gather_last(logits, self.group)[..., : self.vocab_size] if self.gather else logits


def vocabulary_parallel_loss(
    logits: Tensor, targets: Tensor, vocab_size: int, group: Group = None
) -> TokenLoss:
    """``token_loss`` from each rank's part of the logits, without bringing them together.

    Args:
        logits: [B, S, padded V / t], this rank's part.
        targets: [B, S] int64, the same on all ranks; -100 does not count.
        vocab_size: V, without padding.

    Raises:
        UserError: on a CPU, a target outside the vocabulary; a card does not wait for the check, and the
            loss is nan there.

    >>> loss = vocabulary_parallel_loss(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]), 4)
    >>> round(float(loss.total), 4), int(loss.tokens)  # log(4), one token
    (1.3863, 1)
    """
    counted = targets != IGNORED
    wanted = targets.masked_fill(~counted, 0)
    _check("targets", wanted, vocab_size)
    size = logits.shape[-1]
    columns = torch.arange(size, device=logits.device) + groups.rank(group) * size
    logits = logits.masked_fill(columns >= vocab_size, float("-inf"))
    highest = logits.detach().amax(-1)
    if groups.world_size(group) > 1:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    sums = sum_over_ranks((logits - highest.unsqueeze(-1)).exp().sum(-1), group)
    local, here = _local(wanted, size, group)
    picked = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1)
    target_logits = sum_over_ranks(torch.where(here, picked, 0.0), group)
    losses = sums.log() + highest - target_logits
    losses = losses.masked_fill((wanted < 0) | (wanted >= vocab_size), float("nan"))  # no rank has its logit
    return TokenLoss(torch.where(counted, losses, 0.0).sum(), counted.sum())


def _check(name: str, tokens: Tensor, vocab_size: int) -> None:
    """Refuse a token outside the vocabulary, which no rank would find; on a card the check would wait."""
    if tokens.device.type == "cpu" and tokens.numel():
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= vocab_size:
            raise UserError(f"{name}: {low if low < 0 else high} is outside 0..{vocab_size - 1}")


def _local(tokens: Tensor, size: int, group: Group) -> tuple[Tensor, Tensor]:
    """Row of this rank's part for each token (0 for those of other ranks), and whether it is here."""
    local = tokens - groups.rank(group) * size
    here = (local >= 0) & (local < size)
    return local.masked_fill(~here, 0), here


def _padded(weight: Tensor, group: Group) -> Tensor:
    rows = padded_vocab_size(len(weight), tp=groups.world_size(group))
    return nn.Parameter(F.pad(weight.detach(), (0, 0, 0, rows - len(weight))), weight.requires_grad)


def _mark_rows(parameter: nn.Parameter, rows: int) -> None:
    parameter.whole_size = rows  # type: ignore[attr-defined]
