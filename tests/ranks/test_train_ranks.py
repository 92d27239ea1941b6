"""A run gives the same model whatever the number of ranks, and reports what really reached the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dtlab
from dtlab.data.config import DataConfig
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.job import run

ROOT = Path(__file__).resolve().parents[2]
DATA = DataConfig(name="clicks", rows=20_011, root=str(ROOT / "data"))


def config(tmp_path: Path, **run_fields) -> TrainConfig:
    return TrainConfig(
        data=DATA,
        model=ModelConfig(dim=4, hidden=(16,)),
        optim=OptimConfig(lr=5e-3, global_batch=512, max_epochs=2),
        run=RunConfig(output=tmp_path, log_every=10, **run_fields),
    )


def weights(report: dict) -> dict[str, torch.Tensor]:
    return load_file(str(Path(report["run"]) / "model" / "model.safetensors"))


def test_fifty_steps_in_float64_give_the_same_parameters_on_1_2_and_4_ranks(tmp_path):
    data = DataConfig(name="flights", root=str(ROOT / "data"))
    whole = TrainConfig(
        data=data,
        run=RunConfig(output=tmp_path, dtype="float64", max_steps=50),
        model=ModelConfig(dim=4, hidden=(16,)),
    )
    reports = {n: dtlab.launch(run, n, whole, timeout=120, echo=False)[0] for n in (1, 2, 4)}
    one = weights(reports[1])
    for n in (2, 4):
        other = weights(reports[n])
        assert other.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-8, msg=f"{name} on {n} ranks")
    assert {r["optimizer_steps"] for r in reports.values()} == {50}
    assert {r["unique_rows_seen"] for r in reports.values()} == {50 * 4096}
    assert {r["duplicate_rows"] for r in reports.values()} == {0}


@pytest.fixture(scope="module")
def two_rank_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_ranks")
    return dtlab.launch(run, 2, config(folder), timeout=120, echo=False)


def test_report_says_that_every_row_reached_the_model_once_an_epoch(two_rank_run):
    report = two_rank_run[0]
    assert report == two_rank_run[1]
    assert report["world_size"] == 2
    assert report["unique_rows_seen"] == report["rows_train"]
    assert report["duplicate_rows"] == 0
    assert 0.5 < report["auc"] <= report["auc_best_reachable"] + 0.02
    for share in ("communication_share", "wait_share"):
        assert 0 <= report[share] < 1
    assert report["communication_share"] > 0
    assert report["usd_estimate"] > 0
    json.dumps(report)


def test_record_tells_the_story_of_the_run(two_rank_run):
    lines = (Path(two_rank_run[0]["run"]) / "record.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    first, last = events[0], events[-1]
    assert first["event"] == "start"
    assert first["config"]["optim"]["global_batch"] == 512
    assert first["seed"] == 0
    assert first["data"]["version"] == two_rank_run[0]["data_version"]
    assert "commit" in first
    assert last["event"] == "end"
    assert last["auc"] == two_rank_run[0]["auc"]
    readings = [event for event in events if event["event"] == "reading"]
    assert [reading["step"] for reading in readings][:3] == [10, 20, 30]
    assert all(reading["memory_bytes"] > 1e6 and reading["samples_per_second"] > 0 for reading in readings)


def test_torchrun_gives_the_same_auc_as_the_launcher(two_rank_run, tmp_path):
    c = config(tmp_path)
    report = tmp_path / "report.json"
    flags = [
        "--data.name",
        "clicks",
        "--data.rows",
        str(DATA.rows),
        "--data.root",
        DATA.root,
        "--model.dim",
        "4",
    ]
    flags += ["--model.hidden", "16", "--optim.lr", str(c.optim.lr), "--optim.global-batch", "512"]
    flags += ["--optim.max-epochs", "2", "--run.output", str(tmp_path), "--run.log-every", "10"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "dtlab.train", *flags, "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(report.read_text())["auc"] == pytest.approx(two_rank_run[0]["auc"], abs=1e-6)


def test_by_hand_engine_trains_the_same_model(two_rank_run, tmp_path):
    by_hand = dtlab.launch(run, 2, config(tmp_path, engine="by_hand"), timeout=120, echo=False)[0]
    assert by_hand["auc"] == pytest.approx(two_rank_run[0]["auc"], abs=1e-4)


def test_bad_instance_is_refused_before_the_work_with_one_line_and_code_2(tmp_path, capfd):
    from dtlab.cli import main

    code = main(["train", "--nproc", "2", "--run.instance", "ml.g5.13xlarge", "--run.output", str(tmp_path)])
    err = capfd.readouterr().err
    assert code == 2
    assert "did you mean g5.12xlarge" in err
    assert "Traceback" not in err
