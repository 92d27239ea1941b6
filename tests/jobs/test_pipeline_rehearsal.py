"""The definition of a pipeline played here: its containers run, hand on what they made, and leave a model."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("boto3")

from dtlab.diagnose.record_file import read_record
from dtlab.errors import UserError
from dtlab.sagemaker import processing
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.pipeline_rehearsal import _Stage, rehearse_pipeline
from dtlab.sagemaker.tables import Rehearsal

S4 = Path(__file__).parents[2] / "examples" / "jobs" / "s4.toml"


@pytest.fixture(scope="module")
def job():
    found = read_job(S4)
    small = {**found.rehearsal.hyperparameters, "run.max_steps": 20}
    quick = replace(found.pipeline, requests=20, warmup=1, batch=4)
    return replace(found, pipeline=quick, rehearsal=Rehearsal(hosts=1, rows=2000, hyperparameters=small))


@pytest.fixture(scope="module")
def played(job, tmp_path_factory):
    root = tmp_path_factory.mktemp("played")
    return root, rehearse_pipeline(job, folder=root, timeout=250)


def test_every_step_runs_in_its_order_and_a_model_is_registered(played):
    root, found = played
    order = ["Prepare", "Features", "Train", "Evaluate", "GoodEnough", "Package", "Register"]
    assert list(found.steps) == order
    assert found.passed
    (container,) = found.registered["InferenceSpecification"]["Containers"]
    assert container["ModelDataUrl"].endswith("/s4-first-job/rehearsal/package/model.tar.gz")
    assert "pytorch-inference" in container["Image"]
    assert found.archive is not None
    with tarfile.open(found.archive) as archive:
        names = archive.getnames()
    assert {"model/model.safetensors", "inputs.json", "card.json", "code/inference.py"} <= set(names)
    metrics = json.loads((root / "Evaluate/processing/output/metrics.json").read_text())
    assert metrics["auc"] == found.auc
    assert metrics["latency"]["batch"]["rows"] == 4


def test_training_maps_the_columns_that_the_features_step_made(played):
    root, found = played
    record = read_record(root / "Train/algo-1/checkpoints/run")
    assert record.end.value("cache") == {"kind": "disk", "hits": 2, "misses": 0, "rebuilds": 0, "waits": 0}
    assert record.end.number("world_size") == 2
    assert record.end.number("auc") == pytest.approx(found.auc, abs=1e-6)


@pytest.mark.parametrize(("auc", "name"), [(0.7, "Package"), (0.69, "TooLow")])
def test_condition_looks_at_the_auc_of_the_evaluate_step(job, auc, name, tmp_path):
    stage = _Stage(replace(job, pipeline=replace(job.pipeline, least_auc=0.7)), tmp_path, 1.0, print)
    stage.known["Steps.Evaluate.ProcessingOutputConfig.Outputs['output'].S3Output.S3Uri"] = "s3://bucket/e"
    place = tmp_path / "s3" / "bucket" / "e"
    place.mkdir(parents=True)
    (place / "metrics.json").write_text(json.dumps({"auc": auc}))
    (condition,) = (each for each in stage.plan.definition["Steps"] if each["Type"] == "Condition")
    assert name in stage._branch(condition)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no step"),
        (["polish"], "there are prepare, features"),
        (["prepare", "data.label"], "write name=value"),
        (["prepare", "data.name=parquet", "data.lable=y"], "did you mean data.label?"),
        (["prepare", "data.name=parquet", "data.label=y", "data.numeric=[\"x\"]"], "no such file or folder"),
    ],
)  # fmt: skip
def test_step_that_cannot_work_leaves_one_line_where_sagemaker_looks(
    words, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("DTLAB_INSTALL", "0")
    monkeypatch.chdir(tmp_path)
    assert processing.main(words) == 2
    message = (tmp_path / "output" / "message").read_text()
    assert line in message
    assert "\n" not in message
    assert message in capsys.readouterr().err


def test_step_that_fails_says_so_in_the_rehearsal(job, tmp_path):
    wrong = replace(job, hyperparameters={**job.hyperparameters, "data.label": "nobody"})
    with pytest.raises(UserError, match=r"step Prepare: prepare: .*nobody"):
        rehearse_pipeline(wrong, folder=tmp_path, timeout=200)
