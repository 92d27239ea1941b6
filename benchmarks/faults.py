"""Thirty killed runs and ten that were told to stop: does each end as if nothing had happened?

Runs of 3 ranks, and of 2 that continue on 1 or 4, of a DeepFM on clicks: training, validation, refit.
Kills (SIGKILL of any rank at any step, every third while a checkpoint is being written) come after the first
complete checkpoint; SIGTERM reaches one rank only, in training, warm-up, evaluation or before the first step.
``--short`` makes a tenth of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.common import report, say
from dtlab.data.config import DataConfig
from dtlab.diagnose.faults import Fault, Trial, random_faults, reference, try_fault, weights
from dtlab.train.config import CheckpointConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_schedule import ScheduleConfig

CONFIG = TrainConfig(
    data=DataConfig(name="clicks", rows=6_000, root="data"),
    model=ModelConfig(dim=4, hidden=(8,)),
    optim=OptimConfig(lr=5e-3, global_batch=150, max_epochs=3, patience=3, clip=1.0),
    schedule=ScheduleConfig(kind="cosine", warmup=10),
    checkpoint=CheckpointConfig(every_steps=5),
    # Without a refit the weights of these very epochs are the result: whatever a resume loses shows in them.
    run=RunConfig(log_every=50, eval_batch=40, refit=False),
)
REFIT = replace(
    CONFIG,
    model=replace(CONFIG.model, dropout=0.2),
    optim=replace(CONFIG.optim, max_epochs=1),
    run=replace(CONFIG.run, refit=True),
)
STEPS, REFIT_STEPS = range(8, 84), range(34, 58)


def stops(number: int, seed: int) -> list[Fault]:
    """SIGTERMs at every kind of place, evaluation and warm-up among the first."""
    draw = random.Random(seed)
    places = [
        lambda rank: Fault("SIGTERM", rank, draw.randrange(1, 6), "evaluate"),
        lambda rank: Fault("SIGTERM", rank, draw.randrange(0, 9), "train"),  # warm-up
        lambda rank: Fault("SIGTERM", rank, draw.randrange(20, 90), "train"),
        lambda rank: Fault("SIGTERM", rank, draw.randrange(0, 30), "start"),
    ]
    return [places[turn % len(places)](draw.randrange(3)) for turn in range(number)]


def main() -> None:
    kills, terms = (3, 2) if "--short" in sys.argv[1:] else (30, 10)
    trials: list[Trial] = []
    other_ranks: list[Trial] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        expected = weights(reference(CONFIG, 3, root / "reference"))
        refitted = weights(reference(REFIT, 3, root / "refitted"))
        in_refit = random_faults(kills // 3, 3, REFIT_STEPS, seed=1)
        faults = in_refit + random_faults(kills - kills // 3, 3, STEPS, seed=2) + stops(terms, seed=3)
        for number, fault in enumerate(faults):
            whole = (REFIT, refitted) if number < len(in_refit) else (CONFIG, expected)
            trial = try_fault(whole[0], fault, root / f"trial{number}", whole[1])
            trials.append(trial)
            say(f"  {number + 1} of {len(faults)}: {fault} -> {outcome(trial)}")
        for number, then in enumerate((1, 4) if kills > 3 else (1,)):
            fault = Fault("kill", 1, 30 + 7 * number)
            trial = try_fault(CONFIG, fault, root / f"other{number}", expected, nproc=2, then=then)
            other_ranks.append(trial)
            say(f"  2 -> {then} ranks: {outcome(trial)}")
    both = trials + other_ranks
    waits = [t.seconds_to_checkpoint for t in trials if t.seconds_to_checkpoint is not None]
    report(
        "Faults: what a broken run loses",
        {
            "tried": len(both),
            "survived": sum(trial.survived and trial.happened for trial in both),
            "bit_equal": sum(trial.bit_equal for trial in trials),
            "bit_equal_of": len(trials),
            "samples_lost": sum(trial.samples_lost for trial in both),
            "samples_doubled": sum(trial.samples_doubled for trial in both),
            "hangs": sum(trial.hang for trial in both),
            "orphans": sum(trial.orphans for trial in both),
            "sigterms": len(waits),
            "slowest_checkpoint_after_sigterm_seconds": max(waits, default=0.0),
            "largest_difference_on_other_ranks": max(t.largest_difference for t in other_ranks),
        },
        [
            "target: all survive, all of the same world size bit-equal; 0 lost, doubled, hanging, left over;",
            f"every SIGTERM answered within the grace time of {CONFIG.checkpoint.grace_seconds:g} s",
        ],
    )


def outcome(trial: Trial) -> str:
    if not trial.happened:
        return "THE FAULT DID NOT COME"
    if not trial.survived:
        return f"LOST: {trial.error.splitlines()[0] if trial.error else 'no report'}"
    return "bit-equal" if trial.bit_equal else f"differs by {trial.largest_difference:.1e}"


if __name__ == "__main__":
    main()
