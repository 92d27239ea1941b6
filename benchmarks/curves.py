"""Records the validation curves of lesson 15: 27 real runs, each looked at 27 times, into one JSON file.

    python -m benchmarks.curves dtlab/course/data/curves.json

The runs are those of ``dtlab train`` on 20,000 generated clicks, 2 ranks, AdamW at a constant rate: 9 rates x
3 global batches. Each goes through 9 epochs and is validated after each third of one; nothing is stopped
early. At its end a run goes back to its best epoch and reads the test rows once.
"""

from __future__ import annotations

import json
import sys
import tempfile
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

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128, 0.256)
BATCHES = (128, 256, 512)
EPOCHS, LOOKS = 9, 27
CONFIG = TrainConfig(
    data=DataConfig(name="clicks", rows=20_000, root="data"),
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


def record(rate: float, batch: int, scratch: Path, rows: int) -> dict[str, object]:
    """On a rank: one run, and its looks: those nearest to each third of an epoch."""
    heard = scratch / f"{rate:g}-{batch}.csv"
    config = replace(CONFIG, optim=replace(CONFIG.optim, lr=rate, global_batch=batch))
    # The last third of an epoch ends with it, where the run validates anyway.
    found = run(config, Recorder(heard), -(-rows // batch) // 3)
    lines = [line.split(",") for line in heard.read_text(encoding="utf-8").splitlines()]
    seen = {int(samples): float(value) for samples, value in lines}
    wanted = [rows * EPOCHS * number / LOOKS for number in range(1, LOOKS + 1)]
    nearest = [min(seen, key=lambda samples, at=at: abs(samples - at)) for at in wanted]  # type: ignore[misc]
    return {
        "lr": rate,
        "global_batch": batch,
        "samples": nearest,
        "auc": [seen[samples] for samples in nearest],
        "kept": {"validation": round(found["auc_validation"], 5), "test": round(found["auc"], 5)},
    }


def record_all(scratch: Path, rows: int) -> list[dict[str, object]]:
    """On a rank: all runs, one after the other."""
    return [record(rate, batch, scratch, rows) for batch in BATCHES for rate in RATES]


def main() -> None:
    from dtlab.data.datasets import load_dataset

    target, rows = Path(sys.argv[1]), len(load_dataset(CONFIG.data).train)
    with tempfile.TemporaryDirectory() as name:
        trials = launch(record_all, 2, Path(name), rows, echo=False, timeout=3600)[0]
    about = {
        "made by": "python -m benchmarks.curves",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": git_state()["commit"],
        "machine": machine(),
        "ranks": 2,
        "configuration": CONFIG.to_dict(),
        "training rows": rows,
        "looks": "validation AUC after so many samples; look 3 ends epoch 1, look 27 epoch 9",
        "kept": "validation and test AUC of the weights of the best epoch",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(trial) for trial in trials)
    text = f'{{"about": {json.dumps(about)},\n"trials": [\n{lines}\n]}}\n'
    with appears_whole(target, "curves") as beside:
        beside.write_text(text, encoding="utf-8")
    for trial in trials:
        say(f"lr {trial['lr']:g}, batch {trial['global_batch']}: best {max(trial['auc'])}, {trial['kept']}")


if __name__ == "__main__":
    main()
