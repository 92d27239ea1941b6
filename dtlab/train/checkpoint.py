"""Checkpoints that a week of training can rely on: whole, exact, safe to read (lesson 13).

- Everything that training depends on is in it: the parts you name, and each rank's random generators.
- Tensors are stored as safetensors, the rest as one JSON file. Nothing is unpickled, ever.
- A save is written beside and renamed when all ranks are done and all bytes are on the disk. A job that
  dies at any moment leaves the previous checkpoint; what is torn or damaged is passed over with a line.
- Asynchronous: training stops for a copy in memory, not for the disk. One save at a time, on a process
  group of its own. Rank 0 writes what all ranks have in common, from one copy of its own; the others hold
  none.
- Every rank decides alike: the newest complete checkpoint is the one that all ranks see, and an error on
  one rank is raised on all.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch.distributed as dist

from dtlab.errors import DtlabWarning, UserError, require_number, require_whole
from dtlab.ranks import agreement
from dtlab.train.checkpoint_entry import enter, own_group, together
from dtlab.train.checkpoint_latest import newest_for_all
from dtlab.train.checkpoint_parts import Stateful, apply, is_per_rank
from dtlab.train.checkpoint_read import read_states
from dtlab.train.checkpoint_status import SaveStatus
from dtlab.train.checkpoint_store import CheckpointInfo, Store
from dtlab.train.checkpoint_take import check_head, take_job
from dtlab.train.checkpoint_write import Job, write
from dtlab.train.staging import Stage

__all__ = ["CheckpointInfo", "Checkpointer", "SaveStatus", "Stateful"]

_PATIENCE_AFTER_ERROR = 30.0  # seconds


class Checkpointer:
    """Saves and loads the parts of a run; made and used by all ranks alike.

    Args:
        folder: one folder for one run, seen by all ranks.
        keep: complete checkpoints that stay; older ones are removed after a newer one is complete.
        asynchronous: write in the background.
        group: the ranks that train together; default: all.
        on_failure: ``"raise"``: a save that failed raises (in the background: at the next save or wait);
            ``"warn"``: a :class:`DtlabWarning` each time with the last good step, and training goes on.
        enter_seconds: how long a save waits for a rank that does not come, before it is named; a load waits
            six times as long.
        timeout: seconds for one exchange between ranks, the slowest rank's writing included.

    Raises:
        UserError: on every rank: the folder cannot be written, another job writes to it, keep is below 1.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder, Checkpointer(folder) as checkpoints:
    ...     checkpoints.save({"model": model, "note": {"epoch": 1}}, step=10, samples=640)
    ...     checkpoints.wait()
    ...     checkpoints.load({"model": model}).step
    10

    A whole run. Early stopping is updated before the save: a run that goes on would else have forgotten its
    last validation::

        run, stop = {"enough": False}, dtlab.EarlyStopping(patience=2 * len(dataset.train))
        parts = {"run": run, "stop": stop, "model": model, "optimizer": optimizer, "loader": loader,
                 "trainer": trainer, "generators": dtlab.Generators()}
        with dtlab.Checkpointer(folder) as checkpoints:
            checkpoints.load(parts)  # the newest complete checkpoint, if there is one
            while loader.sampler.epoch < max_epochs and not run["enough"]:
                trainer.train_epoch(loader)
                run["enough"] = stop.update(validate(model), trainer.samples)
                checkpoints.save(parts, trainer.steps_done, samples=trainer.samples)
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 3,
        asynchronous: bool = True,
        group: dist.ProcessGroup | None = None,
        on_failure: Literal["raise", "warn"] = "raise",
        enter_seconds: float = 10.0,
        timeout: float = 1800.0,
    ) -> None:
        require_whole("keep", keep, 1, "complete checkpoints that stay")
        for name, seconds in (("enter_seconds", enter_seconds), ("timeout", timeout)):
            require_number(name, seconds, lambda value: value > 0, "seconds above 0")
        if not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder):
            raise UserError(f"folder = {folder!r}: name a folder, one for each run")
        if on_failure not in ("raise", "warn"):
            raise UserError(f"on_failure = {on_failure!r}: choose 'raise' or 'warn'")
        self.folder = Path(folder).absolute()
        self.asynchronous, self.on_failure = asynchronous, on_failure
        self.blocked_seconds = 0.0
        """Time that saves kept training waiting, all of them together."""
        self.lines: list[str] = []
        """What was said: checkpoints passed over, generators derived anew, saves that failed."""
        self._enter_seconds = enter_seconds
        self._group = own_group(group, timeout)
        self._rank, self._size = agreement.rank(self._group), agreement.world_size(self._group)
        self._stage = Stage()
        self._stager: Any = None
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._in_flight: int | None = None
        self._good: int | None = None
        self._last_error: str | None = None
        self._seen_step = self._failures = 0
        self._is_closed = False
        stores = self._together(lambda: self._open(keep))
        for line in stores[0]:
            self._say(line)

    def _open(self, keep: int) -> list[str]:
        self._store = Store(self.folder, keep) if self._rank == 0 else None
        return self._store.unfinished if self._store is not None else []

    # -- saving --------------------------------------------------------------------------------------------

    def save(self, parts: Mapping[str, Any], step: int, *, samples: int, reason: str = "interval") -> None:
        """Save ``parts`` as the state after ``step`` optimizer steps (collective).

        Returns when the state is copied (asynchronous) or complete on the disk. An earlier save that is
        still being written is waited for first.

        Args:
            parts: name -> Stateful (model, wrapped or not; optimizer; schedule; sampler; ``Generators()``)
                or dict. Apart from per-rank parts all ranks hold the same; rank 0's is saved.
            step: optimizer steps done.
            samples: samples that all ranks together have seen.
            reason: why, for people: "interval", "SIGTERM", ...

        Raises:
            LateRankError: a rank did not enter; it is named.
            UserError: a part cannot be saved; the disk is full, read-only, gone. Nothing is lost by it:
                earlier checkpoints stay as they are.
        """
        started = time.perf_counter()
        check_head(parts, step, samples)
        if self._is_closed:
            raise UserError(f"checkpoint folder {str(self.folder)!r}: was closed; make a new Checkpointer")
        try:
            self._finish()
            self._seen_step = step
            enter(self._group, f"save(step={step})", self._enter_seconds)
            job = self._take(parts, step, samples, reason)
            if self.asynchronous:
                self._in_flight = step
                self._thread = threading.Thread(target=self._write, args=(job,), name="dtlab-checkpoint")
                self._thread.start()
            else:
                self._write(job)
                self._raise_failure()
        finally:
            self.blocked_seconds += time.perf_counter() - started

    def wait(self) -> None:
        """Wait until the save in flight is complete (collective).

        Raises:
            UserError: it failed (with ``on_failure="raise"``).
        """
        self._finish()

    def _take(self, parts: Mapping[str, Any], step: int, samples: int, reason: str) -> Job:
        """Everything that the save needs, independent of what training does next."""
        job, self._stager, differ = take_job(
            parts,
            self._group,
            self._together,
            {"step": step, "samples": samples, "reason": reason},
            self._stage if self.asynchronous else None,
            self._stager,
        )
        for name in differ:
            self._say(
                f"part {name!r} differs between the ranks and rank 0's is saved: reduce it over the ranks "
                "before, or give it per_rank = True"
            )
        return job

    def _write(self, job: Job) -> None:
        """All of the writing, in the background or not; leaves the outcome in attributes."""
        step = job.head["step"]
        try:
            write(job, self._store, self.folder, self._group)
            self._good, self._failures, self._last_error = step, 0, None
            self._prune()
        except Exception as error:
            good = "none is complete yet" if self._good is None else f"the last good one is step {self._good}"
            self._failures += 1
            self._last_error = line = f"the checkpoint of step {step} failed, {good}: {error}"
            if not isinstance(error, UserError):
                self._failed = error
            elif self.on_failure == "raise":
                self._failed = UserError(line)
            else:
                try:
                    self._say(line)
                except (
                    DtlabWarning
                ) as warning:  # a filter made it an error: not one for the background thread
                    self._failed = warning
        finally:
            self._in_flight = None

    def _prune(self) -> None:
        if self._store is not None:
            try:
                self._store.prune()
            except OSError as error:
                self._say(f"old checkpoints in {str(self.folder)!r} could not be removed: {error.strerror}")

    # -- loading -------------------------------------------------------------------------------------------

    def latest(self) -> CheckpointInfo | None:
        """The newest checkpoint that is complete on every rank; None when there is none (collective).

        Others that are newer are passed over with a line each: torn, damaged, or not seen by a rank.

        Raises:
            LateRankError: a rank did not call it.
            UserError: rank 0 has a complete one, but there is none that all ranks can use.
        """
        self._enter("latest()")
        return newest_for_all(self.folder, self._group, self._say)

    def load(self, parts: Mapping[str, Any], info: CheckpointInfo | None = None) -> CheckpointInfo | None:
        """Put the state of a checkpoint back into ``parts`` (collective).

        On the world size that saved it every rank gets its own generators back. On another one they are
        derived anew from (seed, step, rank, world size), and a line says so. Give ``Generators()`` last.

        Args:
            parts: as for :meth:`save`; fewer are fine.
            info: which checkpoint; default: :meth:`latest`.

        Returns:
            The checkpoint, or None where there is none.

        Raises:
            LateRankError: a rank did not call it.
            UserError: on every rank: a part is not in the checkpoint or does not fit. When the checkpoint
                cannot be read, no part has been changed.
        """
        self._enter("load()")
        found = info if info is not None else newest_for_all(self.folder, self._group, self._say)
        if found is None:
            return None
        states = read_states(found.path, parts, self._group)
        self._together(lambda: self._apply(parts, states, found))
        self._good = self._seen_step = found.step
        return found

    def _enter(self, what: str) -> None:
        self._finish()
        # Ranks that have just built their models are further apart than ranks that train.
        enter(self._group, what, 6 * self._enter_seconds)

    def _apply(self, parts: Mapping[str, Any], states: dict[str, Any], info: CheckpointInfo) -> None:
        for name, part in parts.items():
            if not is_per_rank(part) or info.world_size == self._size:
                apply(name, part, states[name])
                continue
            self._say(
                f"{name!r} was saved in a world of {info.world_size}, and this one has {self._size}: each "
                f"rank derives its own anew from (seed, step {info.step}, rank, world size)"
            )
            part.rederive(states[name], step=info.step, rank=self._rank, world_size=self._size)

    # -- the rest ------------------------------------------------------------------------------------------

    def status(self, step: int | None = None) -> SaveStatus:
        """How far the saves lag behind ``step`` (default: the last step that a save was asked for)."""
        now = self._seen_step if step is None else step
        return SaveStatus(
            self._good, now - (self._good or 0), self._in_flight, self._failures, self._last_error
        )

    def close(self) -> None:
        """Wait for the save in flight and free the folder (collective); before the process group ends."""
        self._is_closed = True
        try:
            self._finish()
        finally:
            if self._store is not None:
                self._store.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if self._thread is not None:
            # The save in flight may still become whole, but a peer that hangs must not hold back the error.
            self._thread.join(_PATIENCE_AFTER_ERROR)
        if self._store is not None:
            self._store.close()

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _together(self, action: Callable[[], Any]) -> list[Any]:
        return together(self._group, self.folder, action)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if self._rank == 0:
            warnings.warn(line, DtlabWarning, stacklevel=3)
