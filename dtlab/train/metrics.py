"""Evaluation that counts every row once, whatever the number of ranks (lesson 04).

Scores, labels and ids travel to rank 0, are put in the order of their ids, and the metric is computed
there by torchmetrics. A rank without rows takes part like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.data.batch import Batch
from dtlab.data.evaluate import ById, gather_by_id
from dtlab.errors import UserError, require_whole
from dtlab.parallel.sharded import local_part
from dtlab.ranks import agreement
from dtlab.train.modes import kept_modes


@dataclass(frozen=True)
class Metrics:
    """What evaluation says of a model, equal on every rank."""

    auc: float
    """Area under the ROC curve; nan when only one class is present or a score is nan."""
    log_loss: float
    """Mean log loss in nats."""
    rows: int
    """Distinct rows that were scored."""


class Left(Exception):
    """An evaluation was left before its end, on every rank."""


def rank_batches(
    rows: int, batch: int, part: int | None = None, parts: int | None = None
) -> Iterator[Tensor]:
    """This rank's row numbers, ``batch`` rows at once over all ranks: the same number of batches on each.

    ``part`` of ``parts``: which rows, where ranks share samples; by default each rank has its own.

    >>> [part.tolist() for part in rank_batches(5, 2)]
    [[0, 1], [2, 3], [4]]
    >>> [part.tolist() for part in rank_batches(1, 8, part=2, parts=4)]  # fewer rows than ranks
    [[]]
    """
    require_whole("batch", batch, 1, "rows")
    rank = agreement.rank() if part is None else part
    size = agreement.world_size() if parts is None else parts
    each, most = max(1, batch // size), -(-rows // size)
    mine = torch.arange(min(rank, rows), rows, size)  # more ranks than rows: some have none
    for start in range(0, most, each):
        yield mine[start : start + each]


@torch.no_grad()
def score(
    model: nn.Module,
    table: Batch | Iterable[Batch],
    *,
    batch: int = 16384,
    between: Callable[[], bool] | None = None,
) -> ById | None:
    """``logits`` and ``labels`` (nan without labels) of ``table`` in the order of their ids, on rank 0 only.

    Each rank scores every ``world_size``-th row, ``batch`` rows at once over all ranks. Instead of a table,
    give this rank's own batches, as many on every rank. ``between`` is called after each batch, equally often
    on every rank, and gives the same answer on all.

    Raises:
        Left: ``between`` said True.
        UserError: on rank 0, two rows carry one id.

    >>> score(model, dataset.test)["logits"]  # doctest: +SKIP
    """
    weight = local_part(next(iter(model.parameters())))
    if isinstance(table, Batch):
        whole = table
        pieces: Iterable[Batch] = (whole.take(rows) for rows in rank_batches(len(whole), batch))
    else:
        pieces = table
    ids, logits, labels = [torch.empty(0, dtype=torch.int64)], [weight.new_empty(0)], [torch.empty(0)]
    with kept_modes(model):
        model.eval()
        for piece in pieces:
            ids.append(piece.ids.cpu())
            labels.append(torch.full((len(piece),), math.nan) if piece.labels is None else piece.labels.cpu())
            piece = piece.to(weight.device, dtype=weight.dtype)
            logits.append(model(piece.categorical, piece.dense))
            if between is not None and between():
                raise Left
    return gather_by_id(torch.cat(ids), logits=torch.cat(logits).cpu(), labels=torch.cat(labels))


def evaluate(
    model: nn.Module,
    table: Batch | Iterable[Batch],
    *,
    batch: int = 16384,
    between: Callable[[], bool] | None = None,
) -> Metrics | None:
    """AUC and log loss of ``model`` on ``table``; every rank calls this and gets the same answer.

    ``table`` may be this rank's own batches, as in :func:`score`. None when ``between`` (see there) said to
    leave.

    Raises:
        UserError: the table has no labels or two rows with one id.
    """
    if isinstance(table, Batch) and table.labels is None:
        raise UserError("labels = None: evaluation needs a labelled table")
    outcome: Metrics | str | None = None
    try:
        scores = score(model, table, batch=batch, between=between)
        if scores is not None:
            logits, labels = scores["logits"], scores["labels"]
            outcome = Metrics(binary_auc(logits, labels), _log_loss(logits, labels), len(scores))
    except Left:
        return None
    except UserError as error:
        outcome = str(error)
    # Rank 0 finds the fault, every rank raises: nobody is left waiting in a collective.
    outcome = agreement.broadcast(outcome)
    if not isinstance(outcome, Metrics):
        raise UserError(str(outcome))
    return outcome


def binary_auc(logits: Tensor, labels: Tensor) -> float:
    """Exact area under the ROC curve of one class against the other; nan without a class, or for a nan."""
    if len(labels) == 0 or bool((labels == labels[0]).all()) or bool(logits.isnan().any()):
        return float("nan")
    from torchmetrics.functional.classification import binary_auroc  # a second of imports: only where needed

    # A monotone map to (0, 1): torchmetrics applies a float32 sigmoid to anything outside, which ties scores.
    ranks = torch.unique(logits, return_inverse=True)[1].to(torch.float64)
    return float(binary_auroc((ranks + 1) / (ranks.max() + 2), labels.long()))


def _log_loss(logits: Tensor, labels: Tensor) -> float:
    if len(labels) == 0:
        return float("nan")
    return float(F.binary_cross_entropy_with_logits(logits.double(), labels.double()))
