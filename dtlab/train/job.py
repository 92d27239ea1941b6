"""A whole run: read the data, choose the number of epochs on validation, refit, read the test set once.

:func:`run` is what every rank executes, under ``dtlab train``, ``torchrun -m dtlab.train`` or in a cell.
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dtlab.cost import billing
from dtlab.data.coverage import Coverage
from dtlab.data.datasets import Dataset, load_dataset
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.parallel.ddp import unwrap
from dtlab.ranks.seeds import seed_everything
from dtlab.ranks.worlds import World, world
from dtlab.train.config import TrainConfig
from dtlab.train.meter import Reading
from dtlab.train.metrics import Metrics
from dtlab.train.package import build_model, save_package
from dtlab.train.record import Record, environment, git_state, new_run_folder
from dtlab.train.stopping import BestEpoch
from dtlab.train.trainer import EpochResult, Trainer


def run(config: TrainConfig) -> dict[str, Any]:
    """Train as ``config`` says on the ranks of this world; every rank returns the same report.

    The report holds at least: world_size, rows_train, unique_rows_seen, duplicate_rows, epochs, auc,
    samples_per_second, communication_share, seconds, usd_estimate.

    Raises:
        UserError: the configuration, the data or a path is wrong.
    """
    with world(seed=config.run.seed) as w:
        return _Run(config, w).report()


class _Run:
    """One run's parts; the methods are its chapters."""

    def __init__(self, config: TrainConfig, w: World) -> None:
        self.config, self.world = config, w
        self.started = time.perf_counter()
        billing.cost(config.run.instance, 1.0)  # an unknown instance is refused before the work, not after it
        self.dataset = load_dataset(config.data)
        folder = new_run_folder(config.run.output) if w.is_main and config.run.output else None
        self.folder: Path | None = w.broadcast(folder)
        self.record = Record(self.folder if w.is_main else None)
        self.record.write(
            "start",
            config=config.to_dict(),
            seed=config.run.seed,
            data={"name": self.dataset.name, "version": self.dataset.version},
            world_size=w.size,
            launcher=w.launcher,
            environment=environment(),
            **(git_state() if w.is_main else {}),
        )
        self.duplicates = 0
        self.passes: list[EpochResult] = []

    def report(self) -> dict[str, Any]:
        try:
            report = self._train()
            self.record.write("end", **report)
        except BaseException as error:
            self.record.write("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.record.close()
        return report

    def _train(self) -> dict[str, Any]:
        config, validation = self.config, None
        trainer, stop, coverage = self._choose()
        dataset = self.dataset
        if stop is not None:
            validation = stop.best
            if config.run.refit:
                dataset = self.dataset.refit()
                trainer, coverage = self._fit(dataset, stop.best_epoch, "refit")
        test: Metrics = trainer.evaluate(dataset.test, batch=config.run.eval_batch)
        seconds = time.perf_counter() - self.started
        bill = billing.cost(config.run.instance, seconds)
        trained = sum(result.seconds for result in self.passes)
        report = {
            "world_size": self.world.size,
            "rows_train": len(dataset.train),
            "unique_rows_seen": coverage.unique,
            "duplicate_rows": self.duplicates,
            "epochs": stop.best_epoch if stop is not None else coverage.epochs,
            "epochs_tried": stop.epoch if stop is not None else coverage.epochs,
            "optimizer_steps": trainer.steps_done,
            "auc": test.auc,
            "log_loss": test.log_loss,
            "rows_test": test.rows,
            "auc_validation": validation,
            "auc_best_reachable": dataset.best_auc,
            "samples_per_second": sum(r.samples_per_second * r.seconds for r in self.passes) / trained,
            "communication_share": sum(r.communication_share * r.seconds for r in self.passes) / trained,
            "wait_share": sum(r.wait_share * r.seconds for r in self.passes) / trained,
            "seconds": seconds,
            "usd_estimate": bill.usd,
            "bill": bill.line(),
            "data_version": dataset.version,
            "run": str(self.folder) if self.folder else None,
        }
        if self.world.is_main and self.folder:
            save_package(self.folder / "model", unwrap(trainer.model), dataset.features, config, report)
        self.world.barrier()
        return self.world.broadcast(report)

    def _choose(self) -> tuple[Trainer, BestEpoch | None, Coverage]:
        """Train on the training rows until validation stops improving; keep the best epoch's weights."""
        config, dataset = self.config, self.dataset
        trainer, loader, coverage = self._parts(dataset)
        if config.run.max_steps is not None:
            while (left := config.run.max_steps - trainer.steps_done) > 0:
                self._pass(trainer, loader, coverage, "steps", max_steps=left)
            return trainer, None, coverage
        stop, best = BestEpoch(config.optim.patience), {}
        for _ in range(config.optim.max_epochs):
            self._pass(trainer, loader, coverage, "choose")
            metrics = trainer.evaluate(dataset.validation, batch=config.run.eval_batch)
            stopped = self.world.all_agree(stop.update(metrics.auc))
            self.record.write("validation", epoch=stop.epoch, **asdict(metrics), best_epoch=stop.best_epoch)
            if self.world.is_main:
                self.world.log.info("epoch %d: validation AUC %.4f", stop.epoch, metrics.auc)
            if stop.improved and not config.run.refit:
                best = copy.deepcopy(unwrap(trainer.model).state_dict())
            if stopped:
                break
        if stop.best_epoch == 0:
            stop.best_epoch = (
                stop.epoch
            )  # validation never gave a number (one class only): keep what there is
        if best:
            unwrap(trainer.model).load_state_dict(best)
        return trainer, stop, coverage

    def _fit(self, dataset: Dataset, epochs: int, label: str) -> tuple[Trainer, Coverage]:
        trainer, loader, coverage = self._parts(dataset)
        for _ in range(epochs):
            self._pass(trainer, loader, coverage, label)
        return trainer, coverage

    def _parts(self, dataset: Dataset) -> tuple[Trainer, Loader, Coverage]:
        config = self.config
        # Weights start from the same draw on every world size; dropout then differs from rank to rank.
        seed_everything(config.run.seed, 0)
        model = build_model(config, dataset.features).to(self.world.device)
        seed_everything(config.run.seed, self.world.rank)
        coverage = Coverage(dataset.train.ids)
        trainer = Trainer(
            model,
            _optimizer(config, model),
            engine=config.run.engine,
            log_every=config.run.log_every,
            on_batch=lambda batch: coverage.add(batch.ids),
            on_reading=self._read,
        )
        table = dataset.train.to(self.world.device, dtype=getattr(torch, config.run.dtype))
        sampler = GlobalBatchSampler(len(table), config.optim.global_batch, seed=config.run.seed)
        return trainer, Loader(table, sampler, prefetch=config.run.prefetch), coverage

    def _read(self, reading: Reading) -> None:
        self.record.write("reading", **asdict(reading))
        if self.world.is_main:
            self.world.log.info("%s", reading)

    def _pass(
        self, trainer: Trainer, loader: Loader, coverage: Coverage, label: str, max_steps: int | None = None
    ) -> None:
        name = f"{label}, epoch {loader.sampler.epoch + 1}"
        result = trainer.train_epoch(loader, label=name, max_steps=max_steps)
        self.passes.append(result)
        self.duplicates += coverage.end_epoch()
        self.record.write("epoch", phase=label, **asdict(result))


def _optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    optim = config.optim
    if optim.name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
    return torch.optim.AdamW(model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
