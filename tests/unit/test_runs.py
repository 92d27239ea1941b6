"""Runs are listed, compared, found by their checkpoint and handed to MLflow, from their records alone."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.track.runs import compare, find_by_checkpoint, list_runs, read_run
from dtlab.train.config import OptimConfig, RunConfig, TrainConfig


def write_run(folder, lr=1e-3, auc=0.7, ended=True, **run):
    config = TrainConfig(optim=OptimConfig(lr=lr), run=RunConfig(output=folder.parent, **run)).to_dict()
    start = {
        "event": "start", "config": config, "world_size": 2, "data": {"name": "flights", "version": "a1"},
        "environment": {"torch": "2.13.0"}, "commit": "c" * 40, "dirty": False,
    }  # fmt: skip
    events = [start, {"event": "validation", "epoch": 1, "auc": auc - 0.01, "rows": 10}]
    if ended:
        events.append({"event": "end", "auc": auc, "samples": 100, "usd_estimate": 0.1, "stopped_by": None})
    folder.mkdir(parents=True)
    (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "runs" / "1")
    write_run(tmp_path / "runs" / "2", lr=2e-3, auc=0.72, seed=4)
    return tmp_path / "runs"


def test_two_runs_differ_in_what_was_changed_and_in_what_came_of_it(folder):
    settings, results = compare(read_run(folder / "1"), read_run(folder / "2"))
    assert {each.name: (each.first, each.second) for each in settings} == {
        "optim.lr": (1e-3, 2e-3),
        "run.seed": (0, 4),
    }
    assert {each.name: (each.first, each.second) for each in results} == {"auc": (0.7, 0.72)}


def test_place_of_a_run_is_no_difference(tmp_path):
    first, second = (read_run(write_run(tmp_path / name / "1")) for name in ("a", "b"))
    assert compare(first, second) == ([], [])


def test_list_shows_a_killed_run_with_its_validation_and_names_what_it_cannot_read(folder, capsys):
    write_run(folder / "3", ended=False)
    (folder / "4").mkdir()
    (folder / "4" / "record.jsonl").write_text("no json\n")
    assert main(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["1", "finished"], ["2", "finished"], ["3", "unfinished"],
    ]  # fmt: skip
    assert "validation auc 0.6900" in lines[3]
    assert lines[4].startswith("left out: ")


def test_run_behind_a_checkpoint_is_the_one_above_it(folder):
    saved = folder / "2" / "checkpoints" / "step-5"
    saved.mkdir(parents=True)
    assert find_by_checkpoint(saved, folder).folder.name == "2"


def test_run_behind_a_copied_model_is_the_one_that_it_names(folder, tmp_path):
    model = tmp_path / "elsewhere" / "model"
    model.mkdir(parents=True)
    description = {"config": read_run(folder / "2").record.start.values["config"]}
    (model / "model.json").write_text(json.dumps(description | {"about": {"run": "/gone/2"}}))
    assert find_by_checkpoint(model, folder).folder == folder / "2"
    (model / "model.json").write_text(json.dumps(description | {"about": {"run": "/gone/1"}}))
    with pytest.raises(UserError, match=r"no record.jsonl above it"):
        find_by_checkpoint(model, folder)  # that run has another configuration


def test_run_is_found_by_the_name_that_the_list_shows(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    assert main(["runs", "compare", "1", "2"]) == 0
    assert "optim.lr  0.001  0.002" in capsys.readouterr().out
    assert main(["runs", "compare", "1", "3"]) == 2
    assert "give a run's folder" in capsys.readouterr().err


def test_list_says_how_the_ranks_were_laid_out(folder, capsys):
    record = folder / "2" / "record.jsonl"
    start, *rest = record.read_text().splitlines()
    laid_out = json.loads(start) | {"layout": "pp 2 x tp 2, 1f1b with 4 micro-batches", "world_size": 4}
    record.write_text("\n".join([json.dumps(laid_out), *rest, ""]))
    assert main(["runs", str(folder)]) == 0
    plain, other = capsys.readouterr().out.splitlines()[1:]
    assert " 4 = pp 2 x tp 2 " in other
    assert "=" not in plain


def test_command_compares_and_finds(folder, capsys):
    assert main(["runs", "compare", str(folder / "1"), str(folder / "2"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["optim.lr"] == [1e-3, 2e-3]
    assert main(["runs", "--checkpoint", str(folder / "1" / "record.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["auc"] == 0.7


def test_missing_folder_and_missing_checkpoint_are_one_line(tmp_path, capsys):
    for words in (["runs", str(tmp_path / "no")], ["runs", "--checkpoint", str(tmp_path / "no")]):
        assert main(words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_runs_below_two_folders_are_found(folder):
    write_run(folder / "tune" / "trial-1")
    assert [run.folder.name for run in list_runs(folder)[0]] == ["1", "2", "trial-1"]


def test_missing_mlflow_is_one_line_with_the_fix(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["runs", "mlflow", str(folder / "1")]) == 2
    assert "pip install 'dtlab[track]'" in capsys.readouterr().err


def test_arn_needs_the_package_that_knows_it(folder, monkeypatch, capsys):
    there = ModuleType("mlflow")
    there.__spec__ = ModuleSpec("mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow", there)
    monkeypatch.setitem(sys.modules, "sagemaker_mlflow", None)
    store = "arn:aws:sagemaker:us-east-1:111122223333:mlflow-tracking-server/x"
    assert main(["runs", "mlflow", str(folder / "1"), "--store", store]) == 2
    assert "pip install sagemaker-mlflow" in capsys.readouterr().err
