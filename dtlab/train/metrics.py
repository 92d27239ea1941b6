"""Evaluation that counts every row once, whatever the number of ranks (lesson 04).

Scores, labels and ids travel to rank 0, are put in the order of their ids, and the metric is computed
there by torchmetrics. A rank without rows takes part like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.data.batch import Batch
from dtlab.errors import UserError
from dtlab.ranks import agreement


@dataclass(frozen=True)
class Scores:
    """Model outputs of a whole split, ordered by id: ``ids [N]``, ``logits [N]``, ``labels [N]``."""

    ids: Tensor
    logits: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Metrics:
    """What evaluation says of a model, equal on every rank."""

    auc: float
    """Area under the ROC curve; nan when only one class is present."""
    log_loss: float
    """Mean log loss in nats."""
    rows: int
    """Distinct rows that were scored."""


@torch.no_grad()
def score(model: nn.Module, table: Batch, *, batch: int = 16384) -> Scores | None:
    """Score ``table``, each rank taking every ``world_size``-th row; the result is on rank 0 only.

    >>> score(model, dataset.test).ids          # doctest: +SKIP
    tensor([0, 1, 2, ...])
    """
    rank, size = agreement.rank(), agreement.world_size()
    was_training = model.training
    model.eval()
    mine = table.take(torch.arange(rank, len(table), size)) if size > 1 else table
    local = max(1, batch // size)
    weight = next(iter(model.parameters()))
    parts = []
    for start in range(0, len(mine), local):
        piece = mine.take(torch.arange(start, min(start + local, len(mine)))).to(
            weight.device, dtype=weight.dtype
        )
        parts.append(model(piece.categorical, piece.dense).cpu())
    model.train(was_training)
    logits = torch.cat(parts) if parts else torch.empty(0, dtype=weight.dtype)
    labels = mine.labels if mine.labels is not None else torch.full((len(mine),), float("nan"))
    gathered = [agreement.gather(column.cpu()) for column in (mine.ids, logits, labels)]
    if rank != 0:
        return None
    ids, logits, labels = (torch.cat(parts) for parts in gathered if parts is not None)
    order = torch.argsort(ids, stable=True)
    ids = ids[order]
    return Scores(ids, logits[order], labels[order])


def evaluate(model: nn.Module, table: Batch, *, batch: int = 16384) -> Metrics:
    """AUC and log loss of ``model`` on ``table``; every rank calls this and gets the same answer.

    Raises:
        UserError: the table has no labels or two rows with one id.
    """
    if table.labels is None:
        raise UserError("labels = None: evaluation needs a labelled table")
    scores = score(model, table, batch=batch)
    # Rank 0 finds the fault, every rank raises: nobody is left waiting in a collective.
    outcome = agreement.broadcast(None if scores is None else _metrics(scores))
    if isinstance(outcome, str):
        raise UserError(outcome)
    assert isinstance(outcome, Metrics)
    return outcome


def _metrics(scores: Scores) -> Metrics | str:
    same = scores.ids[1:] == scores.ids[:-1]
    if bool(same.any()):
        return f"id = {int(scores.ids[1:][same][0])}: two rows carry it; ids must be unique"
    return Metrics(binary_auc(scores.logits, scores.labels), _log_loss(scores), len(scores.ids))


def binary_auc(logits: Tensor, labels: Tensor) -> float:
    """Exact area under the ROC curve of one class against the other; nan when a class is missing."""
    if len(labels) == 0 or bool((labels == labels[0]).all()):
        return float("nan")
    from torchmetrics.functional.classification import binary_auroc  # a second of imports: only where needed

    # A monotone map to (0, 1): torchmetrics applies a float32 sigmoid to anything outside, which ties scores.
    ranks = torch.unique(logits, return_inverse=True)[1].to(torch.float64)
    return float(binary_auroc((ranks + 1) / (ranks.max() + 2), labels.long()))


def _log_loss(scores: Scores) -> float:
    if len(scores.ids) == 0:
        return float("nan")
    return float(F.binary_cross_entropy_with_logits(scores.logits.double(), scores.labels.double()))
