"""Break a run on purpose and see whether it comes back: the fault harness (lesson 13).

A fault happens inside one rank, at a step or in a phase that is named: it is killed without a word, killed
while a checkpoint is being written, or told to stop by SIGTERM. The run is then continued, and its result is
compared with a run that nothing happened to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file

from dtlab.ranks.launcher import launch
from dtlab.ranks.report import RankError
from dtlab.train.checkpoint_store import candidates
from dtlab.train.config import TrainConfig

__all__ = ["Fault", "Trial", "random_faults", "reference", "try_fault", "weights"]

Kind = Literal["kill", "kill_while_writing", "SIGTERM"]
Place = Literal["train", "evaluate", "start"]
_LIMIT = 90.0


@dataclass(frozen=True)
class Fault:
    """What happens, to which rank, and when."""

    kind: Kind
    rank: int
    step: int = 0
    """Optimizer steps of the whole process before it; in an evaluation: batches."""
    place: Place = "train"


@dataclass
class Trial:
    """How one broken run ended."""

    fault: Fault
    survived: bool = False
    happened: bool = False
    """Whether the fault really hit a running job."""
    bit_equal: bool = False
    largest_difference: float = float("inf")
    samples_lost: int = 0
    samples_doubled: int = 0
    hang: bool = False
    orphans: int = 0
    seconds_to_checkpoint: float | None = None
    """From SIGTERM to the complete checkpoint."""
    report: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def reference(config: TrainConfig, nproc: int, folder: Path) -> dict[str, Any]:
    """The report of the run to which nothing happens."""
    whole = _placed(config, folder)
    return dict(launch(_broken_run, nproc, whole, None, timeout=_LIMIT, echo=False)[0])


def try_fault(
    config: TrainConfig,
    fault: Fault,
    folder: Path,
    expected: dict[str, torch.Tensor],
    *,
    nproc: int = 3,
    then: int | None = None,
) -> Trial:
    """Run ``config`` on ``nproc`` ranks with a fault in it, and continue on ``then`` (default: as many).

    ``expected``: the :func:`weights` of the run to which nothing happened.
    """
    trial, whole = Trial(fault), _placed(config, folder)
    goes_on_by_itself = fault.kind != "SIGTERM" and (then is None or then == nproc)
    try:
        try:
            results = launch(
                _broken_run, nproc, whole, fault, timeout=_LIMIT, echo=False,
                max_restarts=1 if goes_on_by_itself else 0,
            )  # fmt: skip
            report = results[0]
        except RankError as error:
            if goes_on_by_itself or "SIGKILL" not in str(error):
                raise
            report = None
        trial.happened = (folder / "happened").is_file()
        if report is None or report["stopped_by"]:
            if report is not None:
                trial.seconds_to_checkpoint = report["seconds_to_checkpoint"]
            report = launch(_broken_run, then or nproc, whole, None, timeout=_LIMIT, echo=False)[0]
        trial.report, trial.survived = report, True
        trial.samples_lost, trial.samples_doubled = report["missed_rows"], report["duplicate_rows"]
        found = weights(report)
        trial.bit_equal = all(torch.equal(found[name], value) for name, value in expected.items())
        trial.largest_difference = max(
            float((found[name] - value).abs().max()) for name, value in expected.items()
        )
    except RankError as error:
        trial.error = str(error)
        trial.hang = str(error).startswith("timeout")
    trial.orphans = _alive(folder)
    return trial


def weights(report: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The trained parameters that a finished run left."""
    return load_file(str(Path(report["run"]) / "model" / "model.safetensors"))


def random_faults(number: int, nproc: int, steps: Sequence[int], seed: int) -> list[Fault]:
    """Kills of any rank at any of ``steps``, every third one while a checkpoint is written."""
    draw = random.Random(seed)
    return [
        Fault("kill_while_writing" if turn % 3 == 2 else "kill", draw.randrange(nproc), draw.choice(steps))
        for turn in range(number)
    ]


def _placed(config: TrainConfig, folder: Path) -> TrainConfig:
    folder.mkdir(parents=True, exist_ok=True)
    return replace(config, run=replace(config.run, folder=folder / "run"))


# -- inside a rank -------------------------------------------------------------------------------------


def _broken_run(config: TrainConfig, fault: Fault | None) -> dict[str, Any]:
    from dtlab.train.job import run

    assert config.run.folder is not None
    notes = config.run.folder.parent
    with (notes / "processes").open("a") as file:
        file.write(f"{os.getpid()}\n")
    is_first = not (notes / "happened").exists() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if fault is not None and is_first and int(os.environ["RANK"]) == fault.rank:
        _arm(fault, config.run.folder, notes)
    return run(config)


def _arm(fault: Fault, folder: Path, notes: Path) -> None:
    """Let the fault happen in this process when its time comes."""
    from dtlab.train.trainer import Trainer
    from dtlab.train.watch import Watch

    number = signal.SIGTERM if fault.kind == "SIGTERM" else signal.SIGKILL
    done = {"train": 0, "evaluate": 0}

    def strike() -> None:
        if not (notes / "happened").exists():
            (notes / "happened").write_text(json.dumps(done))
            os.kill(os.getpid(), number)

    def counted(place: str, inner: Any) -> Any:
        def method(*arguments: Any, **named: Any) -> Any:
            done[place] += 1
            is_due = place == fault.place and done[place] > fault.step
            if is_due and (number == signal.SIGTERM or candidates(folder / "checkpoints")):
                if fault.kind == "kill_while_writing":
                    threading.Thread(target=_strike_while_writing, args=(folder, strike), daemon=True).start()
                else:
                    strike()
            return inner(*arguments, **named)

        return method

    if fault.place == "start":
        threading.Thread(target=_strike_at_start, args=(0.01 * fault.step, strike), daemon=True).start()
    Trainer.step = counted("train", Trainer.step)  # type: ignore[method-assign]
    Watch.between = counted("evaluate", Watch.between)  # type: ignore[method-assign]


def _strike_at_start(seconds: float, strike: Any) -> None:
    """That long after the run has begun to listen; before, SIGTERM ends a process that has done nothing."""
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.001)
    time.sleep(seconds)
    strike()


def _strike_while_writing(folder: Path, strike: Any) -> None:
    while True:
        if any(folder.glob("checkpoints/.save-*.writing")):
            strike()
        time.sleep(0.0002)


def _alive(folder: Path) -> int:
    """Processes of the trial that still run."""
    import psutil

    alive = 0
    for line in (folder / "processes").read_text().split():
        try:
            alive += psutil.Process(int(line)).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
    return alive
