"""A whole run: read the data, choose the number of epochs on validation, refit, read the test set once.

:func:`run` is what every rank executes, under ``dtlab train``, ``torchrun -m dtlab.train`` or in a cell.
A run that is interrupted saves its whole state and goes on from there when it is started again (lesson 13):
on the same number of ranks bit for bit, on another with the same samples.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dtlab.cost import billing
from dtlab.errors import UserError, plain_warnings
from dtlab.parallel.ddp import unwrap
from dtlab.ranks.stop_requests import listens_for_stop
from dtlab.ranks.worlds import World, world
from dtlab.train.budget import Budget
from dtlab.train.checkpoint import Checkpointer, CheckpointInfo
from dtlab.train.checkpoint_entry import on_rank_0
from dtlab.train.config import TrainConfig
from dtlab.train.job_saves import find_checkpoint, save, take_back, whole_weights, write_start
from dtlab.train.layout import layout_of
from dtlab.train.layout_parts import BestWeights
from dtlab.train.meter import Reading
from dtlab.train.mlflow_live import Live, check_store, live_store
from dtlab.train.non_finite import NonFiniteError
from dtlab.train.notice import EC2, SpotNotice
from dtlab.train.outcome import finished_report, stopped_report
from dtlab.train.package import save_package
from dtlab.train.parts import Parts, build_parts, interval_too_long
from dtlab.train.record import Record
from dtlab.train.resume import CHECKPOINTS, MODEL, beginning, check_places, check_settings_alike, run_folder
from dtlab.train.signals import StopSignals
from dtlab.train.stopping import EarlyStopping
from dtlab.train.tasks import Split, Task, TextMetrics, load_task
from dtlab.train.trainer import EpochResult
from dtlab.train.watch import Watch

__all__ = ["Referee", "run"]


Referee = Callable[[int, float], str | None]
"""Takes samples trained and the validation's metric; says why the run must end, or None. Rank 0 asks it."""


@listens_for_stop
def run(
    config: TrainConfig, referee: Referee | None = None, judge_every: int | None = None
) -> dict[str, Any]:
    """Train as ``config`` says on the ranks of this world; every rank returns the same report.

    The report holds at least: world_size, rows_train, unique_rows_seen, duplicate_rows, epochs, auc,
    samples_per_second, communication_share, seconds, usd_estimate, and ``stopped_by``: None, or the signal
    or budget that ended the run before its time, after a checkpoint. ``seconds`` begin when the ranks have
    joined: their start and imports are left out.

    A ``referee`` (of a search, see ``dtlab.tune``) hears of every validation, and of one more every
    ``judge_every`` optimizer steps. Its answer reaches all ranks; a run that it ends saves no checkpoint.

    Raises:
        UserError: the configuration, the data or a path is wrong.
    """
    url = config.checkpoint.spot_notice
    with StopSignals() as signals, plain_warnings():
        check_store(config, os.environ)
        # An unknown instance is refused before ranks join, on all alike.
        billing.cost(config.run.instance, 1.0)
        notice = SpotNotice(signals, EC2 if url == "ec2" else url) if url is not None else nullcontext()
        with world(seed=config.run.seed) as w, notice:
            return Job(config, w, signals, referee, judge_every).report()


class _Stopped(Exception):
    """All ranks have agreed to stop here."""


class Job:
    """One run's parts; the methods are its chapters."""

    def __init__(
        self,
        config: TrainConfig,
        w: World,
        signals: StopSignals,
        referee: Referee | None = None,
        judge_every: int | None = None,
    ) -> None:
        self.config, self.world, self.signals = config, w, signals
        self.referee, self.judge_every = referee, judge_every
        self.pruned: str | None = None
        check_settings_alike(config)
        limits, instance = config.stopping, config.run.instance
        self.budget = Budget(limits.max_seconds, limits.max_usd, instance=instance, count=w.num_nodes)
        self.layout = layout_of(config)  # what does not fit is refused before data are read
        on_rank_0(lambda: check_places(config))
        if w.is_main:
            w.log.info("reading %s", config.data.name)
        self.task: Task = load_task(config, self.layout)
        self.folder: Path | None = on_rank_0(lambda: run_folder(config))
        self.live: Live | None = None
        self.record = Record(None)
        on_rank_0(self._open_record)
        self.checkpoints: Checkpointer | None = None
        self.state: dict[str, Any] = {
            "phase": "choose",
            "closed": 0,  # epochs of this phase whose sums are recorded
            "steps_before": 0,  # optimizer steps of earlier phases
            "samples_before": 0,
            "passes": [],
            "duplicates": 0,
            "enough": False,  # early stopping has decided
            "cuts": [],  # epochs after which a plateau cut the rate
            "seconds": 0.0,  # of earlier attempts
            "config": config.to_dict(),
            "data_version": self.task.data.version,
        }
        rows = len(self.task.data.train)
        patience = config.stopping.patience_samples or config.optim.patience * rows
        self.stopping = EarlyStopping(patience, mode=self.task.mode, min_delta=config.stopping.min_delta)
        self.parts: Parts
        self.best: BestWeights
        self.watch: Watch

    def _open_record(self) -> None:
        self.live = live_store(self.config, self.folder, os.environ)
        self.record = Record(self.folder, also=self.live)

    def report(self) -> dict[str, Any]:
        """Run to the end, or to the point where all ranks stop."""
        options = self.config.checkpoint
        keeps = None
        if self.folder is not None:
            keeps = Checkpointer(
                self.folder / CHECKPOINTS,
                keep=options.keep,
                asynchronous=options.asynchronous,
                on_failure=options.on_failure,
            )
        try:
            with keeps if keeps is not None else nullcontext() as self.checkpoints:
                report = self._train()
            self.record.write("end", **report)
        except BaseException as error:
            self.record.write("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.record.close()
            if self.live is not None:
                self.live.close()
        return report

    def _train(self) -> dict[str, Any]:
        info = find_checkpoint(self)
        write_start(self, info)
        anew = self._beginning() if info is None else None
        if anew is not None:
            self.say(anew)
        self.budget.spent_seconds = self.state["seconds"]
        try:
            if self.state["phase"] == "choose":
                self._prepare(info)
                self._choose()
                self._go_to_best()
            if self.state["phase"] == "refit":
                self._refit(info)
            test = self._evaluate("test")
        except _Stopped:
            return self._stop()
        except NonFiniteError as error:
            raise UserError(f"{error} (optim.lr = {self.config.optim.lr:g})") from error
        report = self.world.broadcast(finished_report(self, test))
        if self.folder:
            state = whole_weights(self)
            package = self.folder / MODEL
            on_rank_0(lambda: save_package(package, state, self.task.features, self.config, report))
        self.world.barrier()
        return report

    # -- the chapters --------------------------------------------------------------------------------------

    def _prepare(self, info: CheckpointInfo | None) -> None:
        """Build the parts of this phase, and take back their state if a checkpoint holds it."""
        self.parts = build_parts(self.config, self.world, self.task, on_reading=self._read, tell=self.say)
        self.best = BestWeights(self.parts.weights)
        if info is not None and self.checkpoints is not None:
            take_back(self, info)
            self.say(
                f"resumed from {info}: step {info.step}, {info.samples:,} samples seen, saved by "
                f"{info.world_size} ranks"
            )
        line = interval_too_long(self.config, self.parts.loader.sampler.steps_per_epoch)
        if line is not None:
            self.say(line)
        self.watch = Watch(self.parts.trainer, self.config, self.signals, self.budget, partial(save, self))
        self.watch.pause_every(self.judge_every if self.state["phase"] == "choose" else None)
        self._boundary()

    def _choose(self) -> None:
        """Train on the training rows until validation stops improving."""
        config, trainer, stop = self.config, self.parts.trainer, self.stopping
        if config.run.max_steps is not None:
            while (left := config.run.max_steps - trainer.steps_done) > 0:
                self._pass("steps", max_steps=left)
            self._close_pending("steps")
            return
        while stop.epoch < config.optim.max_epochs and not self.state["enough"]:
            if self.parts.loader.sampler.epoch == stop.epoch:
                self._pass("choose")
                if self.parts.loader.sampler.epoch == stop.epoch:  # paused in mid-epoch
                    self._judge(self._evaluate("validation"))
                    continue
            self._close_pending("choose")
            metrics = self._evaluate("validation")
            value = self.task.metric(metrics)
            self.state["enough"] = stop.update(value, trainer.samples)
            if self.parts.schedule is not None and self.parts.schedule.observe(stop.value):
                self.state["cuts"].append(stop.epoch)
            self.record.write("validation", epoch=stop.epoch, **asdict(metrics), best_epoch=stop.best_epoch)
            if self.world.is_main:
                self.world.log.info("epoch %d: validation %.4f", stop.epoch, value)
            if stop.improved and not self._refits:
                self.best.keep()
            self._judge(metrics)
            self._boundary()

    def _judge(self, metrics: Any) -> None:
        """Ask the referee, once, on rank 0; all ranks do what it says."""
        if self.referee is None:
            return
        samples, value = self.parts.trainer.samples, self.task.metric(metrics)
        self.pruned = self.world.broadcast(self.referee(samples, value) if self.world.is_main else None)
        if self.pruned is not None:
            raise _Stopped

    def _go_to_best(self) -> None:
        """The best epoch's weights, or the plan to train that many epochs again on more rows."""
        if self.config.run.max_steps is not None:
            return
        if self.stopping.best_epoch == 0:
            # Validation never gave a number (one class only): keep what there is.
            self.stopping.best_epoch = self.stopping.epoch
        self.best.put_back()
        if self._refits:
            self.state["steps_before"] += self.parts.trainer.steps_done
            self.state["samples_before"] += self.parts.trainer.samples
            self.state |= {"phase": "refit", "closed": 0}

    def _refit(self, info: CheckpointInfo | None) -> None:
        self.task = self.task.refit()
        # A run that was interrupted in its refit learns from the checkpoint which epoch was best.
        is_resumed = info is not None and not hasattr(self, "parts")
        self._prepare(info if is_resumed else None)
        best, tried, rows = self.stopping.best_epoch, self.stopping.epoch, len(self.task.data.train)
        self.say(
            f"epoch {best} of {tried} was best; training again on training and validation rows ({rows:,})"
            f" for {best} {'epoch' if best == 1 else 'epochs'}"
        )
        while self.parts.loader.sampler.epoch < self.stopping.best_epoch:
            self._repeat_cuts()
            self._pass("refit")
        self._close_pending("refit")

    def _repeat_cuts(self) -> None:
        """Cut the rate after the epochs at which validation cut it: nothing is validated in the refit."""
        schedule, epoch = self.parts.schedule, self.parts.loader.sampler.epoch
        if schedule is None:
            return
        while schedule.num_cuts < sum(cut <= epoch for cut in self.state["cuts"]):
            schedule.cut()

    @property
    def _refits(self) -> bool:
        return self.config.run.refit and self.task.can_refit

    def _pass(self, label: str, max_steps: int | None = None) -> None:
        loader = self.parts.loader
        if loader.sampler.epoch > self.state["closed"]:
            self._close_pending(label)
        name = f"{label}, epoch {loader.sampler.epoch + 1}"
        self.watch.begin()
        result = self.parts.trainer.train_epoch(loader, label=name, max_steps=max_steps, watch=self.watch)
        if not math.isfinite(result.loss):
            raise self._lost("the mean loss of the epoch is not finite")
        if result.finished:
            self._close(result, label)
        self._boundary()

    def _close(self, result: EpochResult, label: str) -> None:
        self.state["passes"].append(asdict(result))
        self.state["duplicates"] += self.parts.coverage.end_epoch()
        self.state["closed"] += 1
        self.record.write("epoch", phase=label, **asdict(result))

    def _close_pending(self, label: str) -> None:
        """Record a pass that was complete when the run was interrupted, before its sums were recorded."""
        if self.parts.trainer.tally.sums["steps"]:
            self._close(self.parts.trainer.tally.result(self.state["closed"] + 1), label)

    def _evaluate(self, split: Split) -> Any:
        self.watch.evaluate()
        if split == "test" and self.world.is_main:
            self.world.log.info("scoring the test set")  # of a short run the longest part
        metrics = self.task.evaluate(
            unwrap(self.parts.trainer.model), split, self.config.run.eval_batch, self.watch.between
        )
        if metrics is None:
            raise _Stopped
        loss = metrics.loss if isinstance(metrics, TextMetrics) else metrics.log_loss
        if math.isnan(loss) and metrics.rows:
            raise self._lost(f"the model's scores of the {split} rows are not numbers (nan)")
        return metrics

    def _lost(self, what: str) -> UserError:
        """The error of a run whose weights or losses are no longer numbers; the same on every rank."""
        step = self.state["steps_before"] + self.parts.trainer.steps_done
        return UserError(f"step {step}: {what}; lower optim.lr = {self.config.optim.lr:g}, or set optim.clip")

    def _boundary(self) -> None:
        if self.watch.boundary():
            raise _Stopped

    def _beginning(self) -> str | None:
        """What to say where there was something to go on from; each host counts restarts of its own."""
        was_restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        was_restarted = any(self.world.gather(was_restarted, dst=None) or [])
        return beginning(self.config, self.folder, was_restarted=was_restarted)

    # -- saving and stopping -------------------------------------------------------------------------------

    def _stop(self) -> dict[str, Any]:
        """Save, and report how far the run came."""
        reasons = self.world.gather(self.signals.received or self.budget.reason(), dst=None) or []
        reason = self.pruned or next((text for text in reasons if text), "a rank's request")
        if self.pruned is None:
            self.watch.saves(reason)
        if self.checkpoints is not None:
            self.checkpoints.wait()
        since = self.signals.received_at
        waited = 0.0 if since is None else time.monotonic() - since
        return self.world.broadcast(stopped_report(self, reason, waited))

    # -- words ---------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Into the record, and from rank 0 into the log."""
        self.record.write("line", text=line)
        if self.world.is_main:
            self.world.log.info("%s", line)

    def _read(self, reading: Reading) -> None:
        self.record.write("reading", **asdict(reading))
        if self.world.is_main:
            self.world.log.info("%s", reading)
