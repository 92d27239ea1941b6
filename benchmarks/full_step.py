"""The loops of ``benchmarks.step`` with everything: one loop by hand, and the same through four libraries.

MLP 64-64-64-1, batch 64, AdamW on one CPU core. Every loop clips the gradient's norm at 1 and stops on a norm
that is not finite, follows a cosine with warm-up step by step, keeps the mean loss, and every 100 steps notes
loss, rate, norm and samples/s. Each returns the seconds of its steps, without what it needs to set up.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.schedule import Schedule
from dtlab.train.trainer import Trainer

BATCH, LOG_EVERY, LR, WARMUP = 64, 100, 1e-3, 20


def factor(steps: int) -> Any:
    """The schedule of every loop, as LambdaLR wants it: 0-based step -> share of the full rate."""

    def share(step: int) -> float:
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.5 * (1 + math.cos(math.pi * (step - WARMUP + 1) / (steps - WARMUP)))

    return share


class Notes:
    """What a hand-written loop logs."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.sums: list[torch.Tensor] = []
        self.mark = time.perf_counter()

    def step(self, step: int, loss: torch.Tensor, norm: float, lr: float) -> None:
        self.sums.append(loss)
        if step % LOG_EVERY == 0:
            now = time.perf_counter()
            mean = float(torch.stack(self.sums).mean())
            speed = len(self.sums) * BATCH / (now - self.mark)
            self.lines.append({"step": step, "loss": mean, "norm": norm, "lr": lr, "speed": speed})
            self.sums, self.mark = [], now


def columns(table: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    assert table.labels is not None
    return table.dense, table.labels


def raw(model: nn.Module, table: Batch, order: torch.Tensor, steps: int) -> float:
    x, y = columns(table)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scheduler = LambdaLR(optimizer, factor(steps))
    notes = Notes()
    model.train()
    started = time.perf_counter()
    for step in range(steps):
        index = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[index]).squeeze(-1), y[index])
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            raise RuntimeError("not finite")
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        notes.step(step + 1, loss.detach(), norm, lr)
    return time.perf_counter() - started


def squared_error(model: nn.Module, batch: Batch) -> torch.Tensor:
    x, y = columns(batch)
    return F.mse_loss(model(x).squeeze(-1), y, reduction="sum")


class EverySecond:
    """Shares flags about once a second, as a run of dtlab does between its steps."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.next_step = trainer, 1

    def look(self) -> bool:
        flags = self.trainer.flags
        flags.exchange(flags.every)
        self.next_step = self.trainer.steps_done + flags.every
        return bool(flags.raised)


def dtlab_full(model: nn.Module, table: Batch, steps: int) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    schedule = Schedule(ScheduleConfig(kind="cosine", warmup=WARMUP), LR, steps)
    readings: list[Any] = []
    trainer = Trainer(
        model, optimizer, loss=squared_error, clip=1.0, schedule=schedule, log_every=LOG_EVERY,
        on_reading=readings.append, show_progress=False,
    )  # fmt: skip
    loader = Loader(table, GlobalBatchSampler(len(table), BATCH), prefetch=0)
    started = time.perf_counter()
    trainer.train_epoch(loader, max_steps=steps, watch=EverySecond(trainer))
    return time.perf_counter() - started


def accelerate_full(model: nn.Module, table: Batch, order: torch.Tensor, steps: int) -> float:
    from accelerate import Accelerator

    x, y = columns(table)
    accelerator = Accelerator(cpu=True)
    plain = torch.optim.AdamW(model.parameters(), lr=LR)
    model, optimizer, scheduler = accelerator.prepare(model, plain, LambdaLR(plain, factor(steps)))
    notes = Notes()
    model.train()
    started = time.perf_counter()
    for step in range(steps):
        index = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[index]).squeeze(-1), y[index])
        accelerator.backward(loss)
        norm = float(accelerator.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            raise RuntimeError("not finite")
        lr = plain.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        notes.step(step + 1, loss.detach(), norm, lr)
    return time.perf_counter() - started


def fabric_full(model: nn.Module, table: Batch, order: torch.Tensor, steps: int) -> float:
    from lightning.fabric import Fabric

    x, y = columns(table)
    fabric = Fabric(accelerator="cpu", devices=1)
    plain = torch.optim.AdamW(model.parameters(), lr=LR)
    model, optimizer = fabric.setup(model, plain)
    scheduler = LambdaLR(plain, factor(steps))
    notes = Notes()
    model.train()
    started = time.perf_counter()
    for step in range(steps):
        index = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[index]).squeeze(-1), y[index])
        fabric.backward(loss)
        clipped = fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=True)
        assert clipped is not None
        norm = float(clipped)
        lr = plain.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        notes.step(step + 1, loss.detach(), norm, lr)
    return time.perf_counter() - started


def lightning_full(model: nn.Module, table: Batch, order: torch.Tensor, steps: int) -> float:
    import logging
    import warnings

    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    x, y = columns(table)

    class Batches(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return steps

        def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
            index = order[step * BATCH : (step + 1) * BATCH]
            return x[index], y[index]

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.notes, self.seconds = model, Notes(), 0.0

        def on_train_start(self) -> None:
            self.started = time.perf_counter()

        def on_train_end(self) -> None:
            self.seconds = time.perf_counter() - self.started

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = F.mse_loss(self.model(batch[0]).squeeze(-1), batch[1])
            self.loss = loss.detach()
            return loss

        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
        ) -> None:
            self.norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), gradient_clip_val))
            if not math.isfinite(self.norm):
                raise RuntimeError("not finite")

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            lr = self.trainer.optimizers[0].param_groups[0]["lr"]
            self.notes.step(number + 1, self.loss, self.norm, lr)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=LR)
            scheduler = LambdaLR(optimizer, factor(steps))
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, barebones=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Batches(), batch_size=None))
    return module.seconds
