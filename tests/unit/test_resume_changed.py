"""A run that goes on with another configuration: what the line says is what happens."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

from dtlab.data.config import DataConfig
from dtlab.errors import UserError
from dtlab.train.config import OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_core import CheckpointConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.job import run

COSINE = ScheduleConfig(kind="cosine")


def go_on(folder: Path, steps: int, **tables) -> list[dict]:
    """Run to ``steps`` steps as if interrupted there; the events of this start."""
    optim = {"global_batch": 128, "lr": 1e-3, **tables.pop("optim", {})}
    config = TrainConfig(
        data=DataConfig(name="clicks", rows=1000, root=str(folder / "data")),
        optim=OptimConfig(**optim),
        checkpoint=CheckpointConfig(every_steps=2, asynchronous=False),
        run=RunConfig(folder=folder / "run", max_steps=steps, log_every=1, check_replicas_every=0),
        **tables,
    )
    record = folder / "run" / "record.jsonl"
    before = len(record.read_text().splitlines()) if record.exists() else 0
    run(config)
    shutil.rmtree(folder / "run" / "model")  # a finished run would not go on
    return [json.loads(line) for line in record.read_text().splitlines()[before:]]


def rates(events: list[dict]) -> list[float]:
    return [event["lr"] for event in events if event["event"] == "reading"]


def lines(events: list[dict]) -> str:
    return "\n".join(event["text"] for event in events if event["event"] == "line")


def test_rate_that_was_changed_is_the_rate_that_is_used(tmp_path):
    assert rates(go_on(tmp_path, 2)) == [1e-3, 1e-3]
    events = go_on(tmp_path, 4, optim={"lr": 0.01, "weight_decay": 0.1})
    assert "optim.lr 0.001 -> 0.01" in lines(events)
    assert "optim.weight_decay 0.0 -> 0.1" in lines(events)
    assert rates(events) == [0.01, 0.01]


def test_schedule_that_the_interrupted_run_did_not_have_begins_in_the_middle_of_its_plan(tmp_path):
    go_on(tmp_path, 2)
    events = go_on(tmp_path, 4, schedule=COSINE)
    assert "schedule.kind 'constant' -> 'cosine'" in lines(events)
    assert rates(events) == pytest.approx([0.5e-3, 0.5e-3 * (1 - 2**-0.5)])  # steps 2 and 3 of 4


def test_without_the_schedule_of_before_the_rate_is_the_full_one_again(tmp_path):
    assert rates(go_on(tmp_path, 2, schedule=COSINE)) == pytest.approx([1e-3, 0.5e-3])
    events = go_on(tmp_path, 4)
    assert "schedule.kind 'cosine' -> 'constant'" in lines(events)
    assert rates(events) == [1e-3, 1e-3]


def test_same_configuration_goes_on_with_the_saved_rate(tmp_path):
    go_on(tmp_path, 4, schedule=ScheduleConfig(kind="step", step_every=1, gamma=0.5))
    with pytest.warns(UserWarning, match="total_steps 4 -> 6"):
        events = go_on(tmp_path, 6, schedule=ScheduleConfig(kind="step", step_every=1, gamma=0.5))
    assert rates(events) == pytest.approx([1e-3 / 16, 1e-3 / 32])


def test_fewer_steps_than_the_checkpoint_has_are_refused_in_one_line(tmp_path):
    go_on(tmp_path, 4)
    with pytest.raises(UserError, match=r"run\.max_steps = 2: .* at step 4 already; give 4 or more"):
        go_on(tmp_path, 2)


def test_resume_names_the_folder_that_it_takes_and_how_to_name_another(tmp_path):
    go_on(tmp_path, 2)
    config = TrainConfig(
        data=DataConfig(name="clicks", rows=1000, root=str(tmp_path / "data")),
        optim=OptimConfig(global_batch=128, lr=1e-3),
        run=RunConfig(output=tmp_path, resume=True, max_steps=3),
    )
    run(config)
    text = (tmp_path / "run" / "record.jsonl").read_text()
    assert f"going on in {tmp_path / 'run'}, the newest interrupted run" in text
    assert "--run.folder" in text


def test_warning_of_a_run_is_shown_as_its_line_alone(tmp_path, capsys):
    go_on(tmp_path, 2)
    newest = max((tmp_path / "run" / "checkpoints").glob("save-*"))
    (newest / "state.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        warnings.showwarning = lambda *a: print(warnings.formatwarning(*a[:4]), end="")
        try:
            go_on(tmp_path, 4)
        finally:
            warnings.showwarning = before
    shown = [line for line in capsys.readouterr().out.splitlines() if "passed over" in line]
    assert len(shown) == 1
    assert shown[0].startswith(f"dtlab: {newest.name} passed over: state.json cannot be read")
