"""The example for a model of one's own: any layout trains alike, and goes on from another's checkpoint."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dtlab

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model_layouts.py"


def run(folder: Path, *flags: str) -> str:
    command = [sys.executable, str(EXAMPLE), "--folder", str(folder), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def alone(steps: int) -> float:
    """The same training on one process, without the library's layouts: the loss of the last step."""
    spec = importlib.util.spec_from_file_location("own_model_layouts", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, (inputs, targets) = example.own_model(), example.own_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = dtlab.GlobalBatchSampler(len(inputs), example.GLOBAL_BATCH, rank=0, world_size=1, tail="drop")
    for _, rows in zip(range(steps), sampler, strict=False):
        optimizer.zero_grad()
        loss = example.own_loss(model(inputs[rows]), targets[rows]) / example.GLOBAL_BATCH
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def last_loss(output: str) -> float:
    return float(output.split("loss ")[-1])


def test_a_pipeline_goes_on_where_fsdp_stopped_and_trains_as_one_process_does(tmp_path: Path) -> None:
    assert last_loss(run(tmp_path, "--dp-shard", "2", "--steps", "2")) == pytest.approx(alone(2), abs=2e-6)
    resumed = run(tmp_path, "--pp", "2", "--steps", "4")
    assert "goes on from step 2, saved by 2 ranks" in resumed
    assert last_loss(resumed) == pytest.approx(alone(4), abs=2e-6)
