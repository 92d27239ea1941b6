"""``dtlab train`` as the entry script of a job: printed settings are runs, and the model is packed."""

import json
import os
from pathlib import Path

import pytest

from dtlab.sagemaker import script
from dtlab.sagemaker.hosts import make_container
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.small_data import write_clicks

CODE = Path(__file__).parents[2] / "examples" / "jobs" / "code"
SHORT = {"run.max_steps": 3, "optim.global_batch": 64, "checkpoint.every_steps": 2, "run.log_every": 1}


@pytest.mark.parametrize("name", ["s0", "s4"])
@pytest.mark.parametrize("is_rehearsed", [False, True])
def test_hyperparameters_of_the_printed_jobs_are_those_of_a_run(name, is_rehearsed, monkeypatch):
    monkeypatch.chdir(CODE)
    job = read_job(CODE.parent / f"{name}.toml")
    small = job.rehearsal.hyperparameters if is_rehearsed else {}
    texts = encode({**job.hyperparameters, **small})
    config = script.train_config(
        {"SM_HPS": json.dumps(texts), "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train"}
    )
    assert config.data.label == "click"
    assert config.optim.global_batch == (100 if is_rehearsed else 8192)
    assert config.schedule.scaling == ("linear" if name == "s4" else "none")


def test_model_is_packed_metrics_are_printed_and_a_finished_run_is_not_trained_again(
    tmp_path, monkeypatch, capfd
):
    write_clicks(tmp_path / "data", 1500)
    container = make_container(
        tmp_path / "algo-1",
        "algo-1",
        ["algo-1"],
        instance_type="ml.m5.xlarge",
        hyperparameters=encode({"config": str(CODE / "recommender.toml"), **SHORT}),
        channels={"train": tmp_path / "data"},
    )
    base = container.base
    (base / "code").mkdir()
    monkeypatch.chdir(base / "code")
    environ = {
        "SAGEMAKER_BASE_DIR": str(base),
        "SM_INPUT_CONFIG_DIR": str(base / "input/config"),
        "SM_CHANNEL_TRAIN": str(base / "input/data/train"),
        "DTLAB_DEVICE": "cpu",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert script.main(os.environ) == 0
    out = capfd.readouterr().out
    assert "auc=0." in out
    assert "samples_per_second=" in out
    packed = base / "model/model"
    assert sorted(path.name for path in packed.iterdir()) == ["model.json", "model.safetensors"]
    assert list((base / "checkpoints/run/checkpoints").glob("save-*"))

    # The host was lost after training, while the model was being uploaded: SageMaker starts the job again.
    weights = (packed / "model.safetensors").read_bytes()
    (packed / "model.safetensors").unlink()
    assert script.main(os.environ) == 0
    assert "auc=" not in capfd.readouterr().out
    assert (packed / "model.safetensors").read_bytes() == weights

    # Another job with the same checkpoint address must not pass that model off as its own.
    texts = encode({"config": str(CODE / "recommender.toml"), **SHORT, "optim.lr": 0.5})
    (base / "input/config/hyperparameters.json").write_text(json.dumps(texts))
    assert script.main(os.environ) == 2
    said = "".join(capfd.readouterr())
    assert "a finished run lies there with other settings (optim.lr 0.002 -> 0.5)" in said


def test_bad_setting_is_one_line_and_exit_code_2(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    assert script.main({"SM_HPS": '{"optim.lr": "fast"}'}) == 2
    captured = capfd.readouterr()
    assert (captured.out + captured.err).strip() == "dtlab: optim.lr = 'fast': give a number"
