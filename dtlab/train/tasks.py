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
from dtlab.models.gpt import IGNORED
from dtlab.parallel.pipelined_model import PipelinedModel, padded
from dtlab.ranks import agreement
from dtlab.train.config import TrainConfig
from dtlab.train.layout import RunLayout, plain_layout
from dtlab.train.losses import Loss, binary_cross_entropy
from dtlab.train.metrics import Metrics, evaluate, rank_batches
from dtlab.train.package import build_model
from dtlab.train.window_loss import WindowLoss, window_losses

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


def _from_memory(config: TrainConfig, table: Any, device: torch.device, layout: RunLayout) -> Training:
    seed = config.run.seed
    sampler = GlobalBatchSampler(len(table), config.optim.global_batch, seed=seed, **layout.sampler)
    moves = None if table.ids.device == device else device
    loader = Loader(table, sampler, prefetch=config.run.prefetch, device=moves)
    return Training(loader, table.ids, table.take(torch.arange(min(2, len(table)))).to(device))


class TableTask:
    """Rows of categories and numbers, a DeepFM, AUC."""

    mode: Literal["max", "min"] = "max"
    """A larger metric is better."""
    output_loss: WindowLoss | None = None
    """The loss of a pipeline's last stage; None for a model that is no chain."""
    can_refit = True
    """Whether training and validation rows can be joined."""

    def __init__(self, config: TrainConfig, data: Dataset, layout: RunLayout) -> None:
        self.config, self.data, self.layout = config, data, layout
        self.features: Features | None = data.features
        self.loss: Loss = binary_cross_entropy

    def model(self) -> nn.Module:
        return build_model(self.config, self.data.features)

    def training(self, device: torch.device) -> Training:
        table = self.data.train.to(device, dtype=getattr(torch, self.config.run.dtype))
        return _from_memory(self.config, table, device, self.layout)

    def evaluate(
        self, model: nn.Module, split: Split, batch: int, between: Between | None = None
    ) -> Metrics | None:
        return evaluate(model, getattr(self.data, split), batch=batch, between=between)

    def metric(self, metrics: Metrics) -> float:
        return metrics.auc

    def refit(self) -> TableTask:
        return TableTask(self.config, self.data.refit(), self.layout)


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

    def __init__(self, config: TrainConfig, data: Text, layout: RunLayout) -> None:
        self.config, self.data, self.layout = config, data, layout
        self.features: Features | None = None
        self.output_loss = WindowLoss()

    def model(self) -> nn.Module:
        return build_model(self.config, None)

    def training(self, device: torch.device) -> Training:
        return _from_memory(self.config, self.data.train, device, self.layout)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The windows' mean losses per token, added up."""
        return window_losses(model(batch.tokens), batch.targets).sum()

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: Split, batch: int, between: Between | None = None
    ) -> TextMetrics | None:
        windows = getattr(self.data, split)
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        ids, losses = [], []
        parts, part = self.layout.data_size, self.layout.data_rank
        # Logits of a whole batch of windows would not fit: here the batch counts tokens.
        for rows in rank_batches(len(windows), max(parts, batch // windows.sequence), part, parts):
            piece = windows.take(rows).to(device)
            ids.append(piece.ids.cpu())
            losses.append(self._scored(model, piece).double().cpu())
            if between is not None and between():
                model.train(was_training)
                return None
        model.train(was_training)
        found = gather_by_id(torch.cat(ids), group=self.layout.data_group, loss=torch.cat(losses))
        # Added up in the order of the ids, so that the result does not depend on the number of ranks.
        own = None if found is None else float(found["loss"].mean())
        mean = agreement.broadcast(own, src=self.layout.loss_rank)
        assert mean is not None
        return TextMetrics(mean, mean / 0.6931471805599453, len(windows))

    def _scored(self, model: nn.Module, batch: TextBatch) -> Tensor:
        """The windows' losses [B]; of a pipeline zeros on the ranks that do not hold its last stage."""
        if not isinstance(model, PipelinedModel):
            return window_losses(model(batch.tokens), batch.targets)
        number = model.pipe.schedule.num_micro_batches
        with self.output_loss.kept() as losses:
            model.pipe.evaluate(*padded(batch.tokens, batch.targets, number, IGNORED), 1.0)
        return torch.cat(losses)[: len(batch)] if losses else torch.zeros(len(batch))

    def metric(self, metrics: TextMetrics) -> float:
        return metrics.loss

    def refit(self) -> TextTask:
        return self


class StreamTask:
    """As ``TableTask``, with rows that are read as they are needed."""

    mode: Literal["max", "min"] = "max"
    output_loss: WindowLoss | None = None
    can_refit = True

    def __init__(self, config: TrainConfig, data: StreamDataset, layout: RunLayout) -> None:
        self.config, self.data, self.layout = config, data, layout
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
        return StreamTask(self.config, self.data.refit(), self.layout)


Task = TableTask | TextTask | StreamTask


def load_task(config: TrainConfig, layout: RunLayout | None = None) -> Task:
    """What ``config.data`` names, prepared and read; every rank may call it at once.

    ``layout``: how the ranks share samples; by default each has its own.
    """
    layout = plain_layout() if layout is None else layout
    if config.data.name == "text":
        return TextTask(config, load_text(config.model.sequence, root=config.data.root), layout)
    if config.data.stream:
        return StreamTask(config, load_stream(config.data), layout)
    return TableTask(config, load_dataset(config.data), layout)
