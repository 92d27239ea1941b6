"""Ranks that would train differently are refused before the first step; few rows are no reason to fail."""

import warnings

import pytest
import torch
from torch import nn

import dtlab
from dtlab.train.config import TrainConfig
from dtlab.train.job import run
from dtlab.train.trainer import Trainer


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, categorical, dense):
        return self.linear(dense).squeeze(1)


def table(rows: int) -> dtlab.Batch:
    dense = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    none = torch.zeros(rows, 0, dtype=torch.int64)
    return dtlab.Batch(
        ids=torch.arange(rows), categorical=none, dense=dense, labels=(dense[:, 0] > 0).float()
    )


def refusals() -> dict[str, str]:
    found = {}
    with dtlab.world(seed=0) as world:
        one = world.rank == 1
        plan = dtlab.Schedule(dtlab.ScheduleConfig(kind="cosine"), 0.1, 10)
        longer = dtlab.Schedule(dtlab.ScheduleConfig(kind="cosine"), 0.1, 20)
        cases = {
            "clip": {"clip": 1.0 if one else None},
            "micro_batch": {"micro_batch": 2 if one else 4},
            "count": {"count": len if one else None},
            "precision": {"precision": "bf16" if one else "fp32"},
            "non_finite": {"non_finite": "skip" if one else "stop"},
            "log_every": {"log_every": 2 if one else 1},
            "schedule": {"schedule": plan if one else None},
            "plan": {"schedule": plan if one else longer},
            "lr": {"lr": 0.2 if one else 0.1},
            "optimizer": {"kind": torch.optim.AdamW if one else torch.optim.SGD},
            "nothing": {},
        }
        for name, options in cases.items():
            model = Scores()
            optimizer = options.pop("kind", torch.optim.SGD)(model.parameters(), lr=options.pop("lr", 0.1))
            try:
                Trainer(model, optimizer, show_progress=False, **options)
                found[name] = ""
            except dtlab.UserError as error:
                found[name] = str(error)
    return found


def test_ranks_whose_trainers_differ_are_refused_on_every_rank_with_both_values():
    first, second = dtlab.launch(refusals, 2, timeout=120)
    assert first == second
    assert first.pop("nothing") == ""
    assert all(line.startswith("ranks disagree on the trainer's") for line in first.values()), first
    assert "clip: {0: 'None', 1: '1.0'}" in first["clip"]
    assert "lr of param group 0: {0: '0.1', 1: '0.2'}" in first["lr"]
    assert "optimizer: {0: 'SGD', 1: 'AdamW'}" in first["optimizer"]
    assert "'total_steps': 20" in first["plan"]


def few_rows() -> list:
    with dtlab.world(seed=0):
        model = Scores()
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), show_progress=False)
        return [trainer.evaluate(table(rows)).rows for rows in (0, 1, 2, 3, 4, 5)]


def test_evaluation_with_fewer_rows_than_ranks_counts_each_once():
    assert list(dtlab.launch(few_rows, 4, timeout=120)) == [[0, 1, 2, 3, 4, 5]] * 4


def alone() -> list[str]:
    model = Scores()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), show_progress=False)
        with dtlab.world():
            pass
    return [str(warning.message) for warning in caught]


def test_ranks_that_joined_no_world_are_told_that_each_trains_alone():
    for said in dtlab.launch(alone, 2, timeout=120):
        assert any("WORLD_SIZE = 2" in line and "dtlab.world()" in line for line in said), said


def test_process_of_its_own_is_not_warned(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dtlab.data_parallel(Scores())


@pytest.mark.parametrize("batch", [0, -1, 2.5])
def test_evaluation_batch_that_is_none(batch):
    model = Scores()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), show_progress=False)
    with pytest.raises(dtlab.UserError, match="batch = "):
        trainer.evaluate(table(3), batch=batch)


def settings_by_rank(field: str, root: str) -> str:
    """One rank is started with another value of ``field``, as two hosts with two command lines are."""
    rank = dtlab.world().rank
    table, name = field.split(".")
    values = {
        "run.max_steps": [2, 3],
        "optim.lr": [1e-3, 2e-3],
        "parallel.pp": [1, 2],
        "run.output": ["a", "b"],
    }
    tables = {"data": {"name": "clicks", "rows": 3000, "root": root}, "run": {"output": None, "max_steps": 2}}
    tables.setdefault(table, {})[name] = values[field][rank]
    if name == "output":
        tables["run"]["output"] = f"{root}/{values[field][rank]}"
    try:
        run(TrainConfig.from_dict(tables))
    except dtlab.UserError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("run.max_steps", "ranks disagree on run.max_steps: {0: '2', 1: '3'}; give every rank the same"),
        ("optim.lr", "ranks disagree on optim.lr: {0: '0.001', 1: '0.002'}; give every rank the same"),
        ("parallel.pp", "ranks disagree on parallel.pp: {0: '1', 1: '2'}; give every rank the same"),
        ("run.output", "trained"),
    ],
)
def test_runs_started_with_other_settings_on_each_rank_end_at_once(field, told, tmp_path):
    assert dtlab.launch(settings_by_rank, 2, field, str(tmp_path), timeout=60) == [told, told]
