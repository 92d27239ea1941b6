"""The small GPT through the same job: the same model on any number of ranks, saved and read back."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dtlab
from dtlab.data.config import DataConfig
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.job import run
from dtlab.train.package import load_package

ROOT = Path(__file__).resolve().parents[2]


def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(name="text", root=str(ROOT / "data")),
        model=ModelConfig(dim=16, num_layers=1, num_heads=2, sequence=256),
        optim=OptimConfig(lr=1e-2, global_batch=12, micro_batch=4, clip=1.0),
        schedule=ScheduleConfig(kind="linear", warmup=3),
        run=RunConfig(output=tmp_path, max_steps=10, dtype="float64", eval_batch=2**19),
    )


def test_gpt_trains_alike_on_1_2_and_3_ranks_and_its_package_can_be_loaded(tmp_path):
    reports = {n: dtlab.launch(run, n, config(tmp_path), timeout=90, echo=False)[0] for n in (1, 2, 3)}
    weights = {n: load_file(str(Path(r["run"]) / "model" / "model.safetensors")) for n, r in reports.items()}
    for n in (2, 3):
        for name, value in weights[1].items():
            torch.testing.assert_close(weights[n][name], value, rtol=0, atol=1e-8)
        assert reports[n]["log_loss"] == pytest.approx(reports[1]["log_loss"], abs=1e-8)
    report = reports[2]
    assert report["auc"] is None
    assert report["log_loss"] < math.log(256) - 0.5
    assert report["bits_per_byte"] == pytest.approx(report["log_loss"] / math.log(2))
    assert (report["optimizer_steps"], report["samples"]) == (10, 120)
    model = load_package(Path(report["run"])).model
    assert model.is_tied
    assert model(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 256)
