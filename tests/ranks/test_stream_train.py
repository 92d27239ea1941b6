"""A run that streams its table: the same promises as a run from memory, whatever happens to it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dtlab
from dtlab.cli import guarded, main
from dtlab.data.config import DataConfig
from dtlab.diagnose.faults import Fault, reference, try_fault, weights
from dtlab.train.config import CheckpointConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.job import run
from dtlab.train.metrics import binary_auc

ROWS = 3_000


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """Three files in row groups of 90 rows; the id says nothing of the row's place."""
    rng = np.random.default_rng(5)
    shop, price = rng.integers(0, 12, ROWS), rng.normal(20, 5, ROWS)
    chance = 1 / (1 + np.exp(-(0.8 * (shop % 4) - 0.3 * (price - 20))))
    columns = {
        "row": rng.permutation(ROWS) * 3 + 7,
        "shop": [None if i % 17 == 0 else f"shop {s}" for i, s in enumerate(shop)],
        "price": [None if i % 23 == 0 else float(p) for i, p in enumerate(price)],
        "bought": (rng.random(ROWS) < chance).astype(np.int64),
    }
    folder = tmp_path_factory.mktemp("log") / "log"
    folder.mkdir()
    for number in range(3):
        part = pa.table(columns).slice(number * 1000, 1000)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=90)
    return folder


@pytest.fixture(scope="module")
def config(log) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(
            name="parquet",
            path=str(log),
            root=str(log.parent / "data"),
            label="bought",
            id="row",
            categorical=("shop",),
            numeric=("price",),
            stream=True,
            window=3,
        ),
        model=ModelConfig(dim=4, hidden=(8,)),
        optim=OptimConfig(lr=2e-2, global_batch=100, max_epochs=2, patience=2),
        checkpoint=CheckpointConfig(every_steps=5),
        # Without a refit the weights of these very epochs are the result: what a resume loses shows in them.
        run=RunConfig(log_every=20, eval_batch=128, check_replicas_every=7, refit=False),
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The run on two ranks to which nothing happens."""
    report = reference(config, 2, tmp_path_factory.mktemp("whole"))
    assert report["stopped_by"] is None
    return report


def test_every_row_reaches_the_model_once_an_epoch_and_is_scored_once(whole, config):
    assert (whole["duplicate_rows"], whole["missed_rows"]) == (0, 0)
    assert whole["unique_rows_seen"] == whole["rows_train"]
    assert whole["samples"] == 2 * whole["rows_train"]
    rows = whole["rows_train"] + whole["rows_test"]
    assert 0 < ROWS - rows < 500  # the rest are validation rows
    assert whole["cache"] == {"kind": "none", "hits": 0, "misses": 0, "rebuilds": 0, "waits": 0}


def test_predict_gives_the_scores_that_evaluation_of_the_stream_used(whole, config, log, tmp_path):
    scores = tmp_path / "scores.parquet"
    assert main(["predict", whole["run"], str(log), "--output", str(scores)]) == 0
    found = pq.read_table(scores)
    by_id = dict(zip(found["id"].to_pylist(), found["score"].to_pylist(), strict=True))
    table = pq.read_table(log)
    from dtlab.data.stream_dataset import load_stream

    data = load_stream(config.data)
    ids = data.ids(data.test).tolist()
    label = dict(zip(table["row"].to_pylist(), table["bought"].to_pylist(), strict=True))
    auc = binary_auc(
        torch.tensor([by_id[i] for i in ids], dtype=torch.float64),
        torch.tensor([float(label[i]) for i in ids]),
    )
    assert len(ids) == whole["rows_test"]
    assert auc == pytest.approx(whole["auc"], abs=1e-9)
    assert auc > 0.6


@pytest.mark.parametrize(
    ("fault", "then"),
    [
        (Fault("kill", 1, 30), 2),
        (Fault("SIGTERM", 1, 13), 2),
        (Fault("SIGTERM", 0, 1, place="evaluate"), 2),
        (Fault("kill", 0, 12), 3),
    ],
    ids=["killed", "told to stop", "told to stop in evaluation", "other ranks"],
)
def test_a_broken_stream_goes_on_in_mid_epoch_as_if_nothing_had_happened(
    fault, then, whole, config, tmp_path
):
    trial = try_fault(config, fault, tmp_path, weights(whole), nproc=2, then=then)
    assert trial.happened, "the fault never came: the test shows nothing"
    assert trial.survived, trial.error
    assert (trial.samples_lost, trial.samples_doubled, trial.orphans) == (0, 0, 0)
    assert trial.report["unique_rows_seen"] == whole["rows_train"]
    assert trial.report["samples"] == whole["samples"]
    if then == 2:
        assert trial.bit_equal, f"parameters differ by {trial.largest_difference}"
    else:
        assert trial.largest_difference < 1e-4
        assert trial.report["world_size"] == then


def test_a_kept_stream_trains_the_same_model_and_says_how_often_it_was_found(whole, config, tmp_path):
    data = replace(config.data, cache="disk", root=str(tmp_path / "data"))
    kept = replace(config, data=data, run=replace(config.run, output=tmp_path))
    first, again = (dtlab.launch(run, 2, kept, timeout=90, echo=False)[0] for _ in range(2))
    # Training, validation and test rows, asked for by two ranks each.
    assert (first["cache"]["kind"], first["cache"]["misses"], first["cache"]["rebuilds"]) == ("disk", 3, 0)
    assert first["cache"]["hits"] + first["cache"]["waits"] == 3
    assert again["cache"] == {"kind": "disk", "hits": 6, "misses": 0, "rebuilds": 0, "waits": 0}
    expected = weights(whole)
    for report in (first, again):
        assert all(torch.equal(value, weights(report)[name]) for name, value in expected.items())


def write_to_a_shard(config: TrainConfig, shard: Path) -> dict:
    """Train, and let somebody write the same rows again into a shard at step 5."""
    from dtlab.train.trainer import Trainer

    step = Trainer.step

    def and_write(self, *arguments):
        if self.steps_done == 5 and self.rank == 1:
            pq.write_table(pq.read_table(shard), shard, row_group_size=90)
        return step(self, *arguments)

    Trainer.step = and_write  # type: ignore[method-assign]
    return run(config)


def test_a_shard_that_is_written_during_the_run_ends_it_with_one_line(config, log, tmp_path, capfd):
    copy = tmp_path / "log"
    copy.mkdir()
    for path in log.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    data = replace(config.data, path=str(copy), root=str(tmp_path / "data"))
    changed = replace(config, data=data, run=replace(config.run, output=tmp_path / "runs"))
    code = guarded(
        lambda: dtlab.launch(write_to_a_shard, 2, changed, copy / "1.parquet", timeout=90, echo=False)
    )
    lines = capfd.readouterr().err.strip().splitlines()
    assert (code, len(lines)) == (2, 1), lines
    assert "1.parquet was changed while the run read it" in lines[0]


def test_more_ranks_than_training_rows_is_one_line_and_code_2(config, log, tmp_path, capfd):
    few = tmp_path / "few.parquet"
    parts = ["train", "validation", "validation", "test", "test"]
    pq.write_table(pq.read_table(log).slice(0, 5).append_column("part", pa.array(parts)), few)
    words = [
        "--data.name",
        "parquet",
        "--data.path",
        str(few),
        "--data.label",
        "bought",
        "--data.split",
        "part",
    ]
    words += ["--data.categorical", "shop", "--data.stream", "--data.root", str(tmp_path / "data")]
    code = main(["train", *words, "--nproc", "2", "--run.output", str(tmp_path / "runs")])
    lines = capfd.readouterr().err.strip().splitlines()
    assert (code, len(lines)) == (2, 1), lines
    assert "1 training rows for 2 ranks" in lines[0]


def test_command_line_streams_and_reports_the_cache(config, log, tmp_path, capfd):
    report = tmp_path / "report.json"
    words = ["--data.name", "parquet", "--data.path", str(log), "--data.label", "bought", "--data.stream"]
    words += ["--data.categorical", "shop", "--data.window", "2", "--data.cache", "memory"]
    words += ["--data.root", str(tmp_path), "--run.output", str(tmp_path / "runs"), "--report", str(report)]
    assert main(["train", *words, "--optim.max-epochs", "1", "--run.prefetch", "1"]) == 0
    assert "cache          0 hits, 4 misses" in capfd.readouterr().out
    found = json.loads(report.read_text())
    assert found["unique_rows_seen"] == found["rows_train"]  # refitted on training and validation rows
    assert found["duplicate_rows"] == 0
