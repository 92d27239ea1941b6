"""Records the validation curves of lesson 15: 27 real runs, each looked at 27 times, into one CSV.

    python -m benchmarks.curves dtlab/course/data/curves.csv scratch-folder

The runs are those of ``dtlab train`` on the flights, 2 ranks, AdamW at a constant rate: 9 rates x 3 global
batches. Each goes through 9 epochs and is validated after each third of one; nothing is stopped early. A line
of the file is one validation. The first lines say how it was made. What was recorded stays in the scratch
folder, so that a recording of half an hour goes on where it was stopped.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common import machine, say
from dtlab import launch
from dtlab.data.config import DataConfig
from dtlab.files import appears_whole
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.job import run
from dtlab.train.record import git_state

BATCHES = (4096, 2048, 8192)
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
EPOCHS, LOOKS = 9, 27
ROWS = 231_423  # training rows of the flights
CONFIG = TrainConfig(
    data=DataConfig(name="flights", root="data", cache="disk"),
    model=ModelConfig(dim=8, hidden=(64, 32)),
    optim=OptimConfig(max_epochs=EPOCHS, patience=EPOCHS),
    run=RunConfig(output=None, log_every=1000, check_replicas_every=0, refit=False),
)


class Recorder:
    """A referee that never ends a run: it writes down what it hears, on rank 0."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, samples: int, value: float) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{samples},{value:.5f}\n")


def record(rate: float, batch: int, scratch: Path) -> list[tuple[int, float]]:
    """(samples, validation AUC) at the looks of one run: those nearest to each third of an epoch."""
    config = replace(CONFIG, optim=replace(CONFIG.optim, lr=rate, global_batch=batch))
    heard = scratch / f"{rate:g}-{batch}.csv"
    if not heard.exists():
        half = scratch / "running.csv"
        half.unlink(missing_ok=True)
        # The last third of an epoch ends with it, where the run validates anyway.
        every = -(-ROWS // batch) // 3
        launch(run, 2, config, Recorder(half), every, echo=False, timeout=600)
        os.replace(half, heard)
    rows = [line.split(",") for line in heard.read_text(encoding="utf-8").splitlines()]
    seen = {int(samples): float(value) for samples, value in rows}
    wanted = [ROWS * EPOCHS * number / LOOKS for number in range(1, LOOKS + 1)]
    nearest = [min(seen, key=lambda samples, at=at: abs(samples - at)) for at in wanted]
    return [(samples, seen[samples]) for samples in nearest]


def main() -> None:
    target, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    trials = []
    for batch in BATCHES:
        for rate in RATES:
            looks = record(rate, batch, scratch)
            best = max(looks, key=lambda look: look[1])
            say(f"lr {rate:g}, batch {batch}: best {best[1]:.5f} after {best[0]:,}, last {looks[-1][1]:.5f}")
            trials.append((rate, batch, looks))
    about = [
        f"python -m benchmarks.curves, {datetime.now(UTC):%Y-%m-%d}, commit {git_state()['commit']}",
        f"{machine()}; 2 ranks, gloo, seed {CONFIG.run.seed}",
        f"flights, {ROWS:,} training rows, DeepFM dim 8, hidden 64 and 32, AdamW at a constant rate",
        f"{EPOCHS} epochs; a line is one validation: AUC after so many samples; look 3 is the end of epoch 1",
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    with appears_whole(target, "curves") as beside, beside.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {line}\n" for line in about)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("lr", "global_batch", "look", "samples", "auc"))
        for rate, batch, looks in trials:
            for number, (samples, auc) in enumerate(looks, 1):
                writer.writerow((f"{rate:g}", batch, number, samples, f"{auc:.5f}"))


if __name__ == "__main__":
    main()
