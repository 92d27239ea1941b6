"""What happens between two steps of a run: flags, checkpoints, a look at the replicas (lesson 13).

Everything is due at a step number that all ranks know, so no rank enters a collective alone. Between these
numbers a step costs one comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dtlab.parallel.copies import check_copies
from dtlab.parallel.desync import check_replicas
from dtlab.train.budget import Budget
from dtlab.train.config import TrainConfig
from dtlab.train.signals import StopSignals
from dtlab.train.trainer import Trainer

__all__ = ["Watch"]


class Watch:
    """Looks after one trainer; made and used by all ranks alike.

    Args:
        trainer: whose steps and flags.
        config: how often to save and to compare.
        signals: of this process.
        budget: of the run.
        save: writes a checkpoint (collective); takes the reason.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: TrainConfig,
        signals: StopSignals,
        budget: Budget,
        save: Callable[[str], None],
    ) -> None:
        self.stop = False
        """Whether the run must end at the next boundary; the same on every rank."""
        self._trainer, self._flags, self._signals, self._save = trainer, trainer.flags, signals, save
        self._save_every = config.checkpoint.every_steps or 0
        self._save_seconds = config.checkpoint.every_seconds or math.inf
        self._pause_steps = 0
        self._compare_every = config.run.check_replicas_every if trainer.world_size > 1 else 0
        self._saved_at = time.monotonic()
        self._ticks = self._last_ticks = 0
        self._flags.watch("stop", lambda: signals.received is not None)
        self._flags.watch("checkpoint", self._wants_checkpoint)
        # One clock decides, so that a difference of milliseconds cannot matter.
        self._flags.watch("budget", lambda: trainer.rank == 0 and budget.is_spent())
        if config.stopping.non_finite == "stop":
            self._flags.watch("not_finite", lambda: not math.isfinite(trainer.tally.losses.total()))
        self.begin()

    def _wants_checkpoint(self) -> bool:
        is_late = self._trainer.rank == 0 and time.monotonic() - self._saved_at >= self._save_seconds
        return self._signals.wants_checkpoint or is_late

    def pause_every(self, steps: int | None) -> None:
        """Leave a pass every ``steps`` optimizer steps, for a look from outside; None: never."""
        self._pause_steps = steps or 0
        self.begin()

    def begin(self) -> None:
        """Training begins or goes on after something else."""
        step = self._trainer.steps_done
        self._flags.restart()
        self._flags_at, self._flags_last = step + 1, step
        self._save_at = _next(step, self._save_every)
        self._compare_at = _next(step, self._compare_every)
        self._pause_at = _next(step, self._pause_steps)
        self.next_step = self._flags_at
        self._schedule_next()

    def _schedule_next(self) -> None:
        self.next_step = int(min(self._flags_at, self._save_at, self._compare_at, self._pause_at))

    def look(self) -> bool:
        """Do what is due after this step (collective); True: leave the pass, the run must end."""
        step = self._trainer.steps_done
        raised: frozenset[str] = frozenset()
        if step >= self._flags_at:
            raised = self._flags.exchange(step - self._flags_last)
            self._flags_at, self._flags_last = step + self._flags.every, step
        if "not_finite" in raised:
            self._trainer.check_finite()
        if step >= self._compare_at:
            layout = self._trainer.layout
            if layout is None:
                check_replicas(self._trainer.model, step)
            else:
                assert layout.mesh is not None
                check_copies(self._trainer.model, layout.mesh, step)
            self._compare_at = _next(step, self._compare_every)
        self.stop = self.stop or bool(raised & {"stop", "budget"})
        is_due = step >= self._save_at
        if is_due:
            self._save_at = _next(step, self._save_every)
        if not self.stop and (is_due or "checkpoint" in raised):
            self.saves("interval" if is_due else "asked for or due by the clock")
        pauses = step >= self._pause_at
        if pauses:
            self._pause_at = _next(step, self._pause_steps)
        self._schedule_next()
        return self.stop or pauses

    def saves(self, reason: str) -> None:
        """Save now (collective), unless the weights are no longer numbers."""
        self._trainer.check_finite()
        self._signals.wants_checkpoint = False
        self._save(reason)
        self._saved_at = time.monotonic()

    def boundary(self) -> bool:
        """The end of an epoch or of an evaluation (collective); True: the run must end here."""
        raised = self._flags.exchange()
        self.stop = self.stop or bool(raised & {"stop", "budget"})
        if not self.stop and "checkpoint" in raised:
            self.saves("asked for or due by the clock")
        return self.stop

    def evaluate(self) -> None:
        """An evaluation begins."""
        self._flags.restart()
        self._ticks = self._last_ticks = 0

    def between(self) -> bool:
        """Called by every rank after each batch of an evaluation (collective when due); True: leave it."""
        self._ticks += 1
        if self._ticks - self._last_ticks >= self._flags.every:
            raised = self._flags.exchange(self._ticks - self._last_ticks)
            self._last_ticks = self._ticks
            self.stop = self.stop or bool(raised & {"stop", "budget"})
        return self.stop


def _next(step: int, every: int) -> float:
    return (step // every + 1) * every if every else math.inf
