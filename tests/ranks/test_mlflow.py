"""A run on two ranks in the real MLflow: one run there, whole; a store that is gone stops nothing."""

import json
import subprocess

import pytest

from dtlab.cli import main

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'dtlab[track]'")


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    small = ["--data.name", "clicks", "--data.rows", "3000", "--optim.global-batch", "500", "--run.no-refit"]
    small += ["--optim.max-epochs", "2", "--nproc", "2", "--report", "report.json"]
    return ["train", *small]


def test_rank_0_logs_one_run_with_settings_epochs_results_commit_and_data(words, tmp_path, capfd):
    assert main([*words, "--run.mlflow", "sqlite:///mlflow.db"]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("dtlab")
    (run,) = client.search_runs([experiment.experiment_id])
    start = json.loads((tmp_path / report["run"] / "record.jsonl").read_text().splitlines()[0])
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.max_epochs"] == "2"
    assert run.data.params["world_size"] == "2"
    assert run.data.params["data version"] == start["data"]["version"]
    assert run.data.params["commit"] == str(start["commit"])
    assert run.data.metrics["auc"] == pytest.approx(report["auc"])
    epochs = client.get_metric_history(run.info.run_id, "validation.auc")
    assert [metric.step for metric in epochs] == list(range(1, report["epochs_tried"] + 1))
    assert "runs mlflow" not in capfd.readouterr().err
    # Sent again from the record alone, it is the same.
    assert (
        main(["runs", "mlflow", report["run"], "--store", "sqlite:///mlflow.db", "--experiment", "again"])
        == 0
    )
    again = client.search_runs([client.get_experiment_by_name("again").experiment_id])[0]
    assert again.data.params == run.data.params
    assert again.data.metrics == run.data.metrics


def test_store_that_is_gone_stops_nothing_and_no_password_is_shown(words, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    assert main([*words, "--run.mlflow", "env"]) == 0
    told = capfd.readouterr()
    assert "send it with dtlab runs mlflow RUN" in told.err + told.out
    assert "hunter2" not in told.err + told.out
    found = subprocess.run(
        ["grep", "-rl", "hunter2", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert json.loads((tmp_path / "report.json").read_text())["auc"] is not None
