"""What is trained: a DeepFM on a table, or a small GPT on text. The rest of a run is the same for both.

A task has its data, its model, its loss, and one metric that early stopping and a plateau look at. Its
``evaluate`` gives None when ``between``, called after each batch on every rank, said to leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.data.datasets import Dataset, load_dataset
from dtlab.data.evaluate import gather_by_id
from dtlab.data.features import Features
from dtlab.data.loader import Loader
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.stream_dataset import StreamDataset, load_stream
from dtlab.data.stream_loader import AnyLoader, StreamLoader
from dtlab.data.text import Text, TextBatch, load_text
from dtlab.errors import UserError
from dtlab.ranks import agreement
from dtlab.train.config import TrainConfig
from dtlab.train.losses import Loss, binary_cross_entropy
from dtlab.train.metrics import Metrics, evaluate, rank_batches
from dtlab.train.package import build_model

__all__ = ["Split", "StreamTask", "TableTask", "Task", "TextMetrics", "TextTask", "Training", "load_task"]

Split = Literal["validation", "test"]
Between = Callable[[], bool]


@dataclass(frozen=True)
class Training:
    """What one phase trains on."""

    loader: AnyLoader
    ids: Tensor
    """[N] int64, of all training rows: what sample coverage counts."""
    some: Any
    """A batch of one or two training rows on the device."""


def _from_memory(config: TrainConfig, table: Any, device: torch.device) -> Training:
    sampler = GlobalBatchSampler(len(table), config.optim.global_batch, seed=config.run.seed)
    moves = None if table.ids.device == device else device
    loader = Loader(table, sampler, prefetch=config.run.prefetch, device=moves)
    return Training(loader, table.ids, table.take(torch.arange(min(2, len(table)))).to(device))


class TableTask:
    """Rows of categories and numbers, a DeepFM, AUC."""

    mode: Literal["max", "min"] = "max"
    """A larger metric is better."""
    can_refit = True
    """Whether training and validation rows can be joined."""

    def __init__(self, config: TrainConfig, data: Dataset) -> None:
        self.config, self.data = config, data
        self.features: Features | None = data.features
        self.loss: Loss = binary_cross_entropy

    def model(self) -> nn.Module:
        return build_model(self.config, self.data.features)

    def training(self, device: torch.device) -> Training:
        table = self.data.train.to(device, dtype=getattr(torch, self.config.run.dtype))
        return _from_memory(self.config, table, device)

    def evaluate(
        self, model: nn.Module, split: Split, batch: int, between: Between | None = None
    ) -> Metrics | None:
        return evaluate(model, getattr(self.data, split), batch=batch, between=between)

    def metric(self, metrics: Metrics) -> float:
        return metrics.auc

    def refit(self) -> TableTask:
        return TableTask(self.config, self.data.refit())


@dataclass(frozen=True)
class TextMetrics:
    """What evaluation says of a language model, equal on every rank."""

    loss: float
    """Mean cross-entropy in nats per token."""
    bits_per_byte: float
    rows: int
    """Windows that were scored."""


class TextTask:
    """Windows of bytes, a small GPT, cross-entropy. Every window has the same number of tokens."""

    mode: Literal["max", "min"] = "min"
    can_refit = False

    def __init__(self, config: TrainConfig, data: Text) -> None:
        self.config, self.data = config, data
        self.features: Features | None = None

    def model(self) -> nn.Module:
        return build_model(self.config, None)

    def training(self, device: torch.device) -> Training:
        return _from_memory(self.config, self.data.train, device)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The windows' mean losses per token, added up."""
        return _window_losses(model, batch).sum()

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: Split, batch: int, between: Between | None = None
    ) -> TextMetrics | None:
        windows = getattr(self.data, split)
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        ids, losses = [], []
        # Logits of a whole batch of windows would not fit: here the batch counts tokens.
        for rows in rank_batches(len(windows), max(agreement.world_size(), batch // windows.sequence)):
            piece = windows.take(rows).to(device)
            ids.append(piece.ids.cpu())
            losses.append(_window_losses(model, piece).double().cpu())
            if between is not None and between():
                model.train(was_training)
                return None
        model.train(was_training)
        found = gather_by_id(torch.cat(ids), loss=torch.cat(losses))
        # Added up in the order of the ids, so that the result does not depend on the number of ranks.
        mean = agreement.broadcast(None if found is None else float(found["loss"].mean()))
        assert mean is not None
        return TextMetrics(mean, mean / 0.6931471805599453, len(windows))

    def metric(self, metrics: TextMetrics) -> float:
        return metrics.loss

    def refit(self) -> TextTask:
        return self


def _window_losses(model: nn.Module, batch: TextBatch) -> Tensor:
    logits = model(batch.tokens)
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    return losses.view(batch.targets.shape).mean(dim=1)


class StreamTask:
    """As ``TableTask``, with rows that are read as they are needed."""

    mode: Literal["max", "min"] = "max"
    can_refit = True

    def __init__(self, config: TrainConfig, data: StreamDataset) -> None:
        self.config, self.data = config, data
        self.features: Features | None = data.features
        self.loss: Loss = binary_cross_entropy
        self._scored: dict[str, ParquetStream] = {}

    def model(self) -> nn.Module:
        return build_model(self.config, self.data.features)

    def training(self, device: torch.device) -> Training:
        run, rows = self.config.run, self.data.train
        size = agreement.world_size()
        if len(rows) < size:
            raise UserError(
                f"data.path = {self.config.data.path!r}: {len(rows)} training rows for {size} ranks; use as "
                "many ranks as rows or fewer"
            )
        stream = self.data.stream(rows, self.config.optim.global_batch, seed=run.seed)
        dtype = getattr(torch, run.dtype)
        loader = StreamLoader(
            stream,
            prefetch=run.prefetch,
            num_workers=self.config.data.workers,
            device=device,
            dtype=None if dtype == torch.float32 else dtype,
        )
        some = stream.take(np.arange(min(2, len(rows)))).to(device, dtype=dtype)
        return Training(loader, torch.from_numpy(self.data.ids(rows)), some)

    def evaluate(
        self, model: nn.Module, split: Split, batch: int, between: Between | None = None
    ) -> Metrics | None:
        if split not in self._scored:
            size = agreement.world_size()
            self._scored[split] = self.data.stream(
                getattr(self.data, split), max(1, batch // size) * size, window=1, shuffle=False
            )
        return evaluate(model, self._scored[split].walk(0, 1), between=between)

    def metric(self, metrics: Metrics) -> float:
        return metrics.auc

    def refit(self) -> StreamTask:
        return StreamTask(self.config, self.data.refit())


Task = TableTask | TextTask | StreamTask


def load_task(config: TrainConfig) -> Task:
    """What ``config.data`` names, prepared and read; every rank may call it at once."""
    if config.data.name == "text":
        return TextTask(config, load_text(config.model.sequence, root=config.data.root))
    if config.data.stream:
        return StreamTask(config, load_stream(config.data))
    return TableTask(config, load_dataset(config.data))
