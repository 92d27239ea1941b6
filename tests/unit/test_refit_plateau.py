"""The refit trains with the rates that validation chose, a plateau's cuts included."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.data.config import DataConfig
from dtlab.train.config import CheckpointConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.job import run
from dtlab.train.watch import Watch


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("plateau")
    return TrainConfig(
        data=DataConfig(name="clicks", rows=3_000, root=str(folder)),
        model=ModelConfig(dim=4, hidden=(8,)),
        optim=OptimConfig(lr=0.004, global_batch=256, max_epochs=4, patience=4),
        # A growing AUC is never better for mode "min": every validation after the first cuts.
        schedule=ScheduleConfig(kind="plateau", plateau_patience=0, plateau_factor=0.5),
        checkpoint=CheckpointConfig(every_seconds=None),
        run=RunConfig(log_every=1, folder=folder / "run"),
    )


def rates(folder: Path) -> dict[str, list[list[float]]]:
    """The rates of every epoch, of the search and of the refit."""
    found: dict[str, list[list[float]]] = {"choose": [], "refit": []}
    epoch: list[float] = []
    for line in (folder / "record.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "reading":
            epoch.append(event["lr"])
        elif event["event"] == "epoch":
            found[event["phase"]].append(sorted(set(epoch), reverse=True))
            epoch = []
    return found


@pytest.fixture(scope="module")
def whole(config):
    report = run(config)
    assert report["epochs"] >= 3, "the test needs cuts before the best epoch"
    return report


def test_each_epoch_of_the_refit_uses_the_rate_of_that_epoch_of_the_search(whole):
    found = rates(Path(whole["run"]))
    assert found["choose"][:3] == [[0.004], [0.004], [0.002]]
    assert found["refit"] == found["choose"][: whole["epochs"]]


def test_a_refit_that_goes_on_after_a_cut_cuts_neither_again_nor_never(whole, config, tmp_path, monkeypatch):
    config = replace(config, run=replace(config.run, folder=tmp_path / "run"))
    boundary = Watch.boundary

    def stops(self):
        # The boundary after the second epoch of the refit: saved before its cut is made.
        self.stop = self.stop or self._trainer.steps_done == second_epoch
        return boundary(self)

    second_epoch = 2 * -(-whole["rows_train"] // 256)
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "boundary", stops)
        stopped = run(config)
    assert stopped["phase"] == "refit"
    report = run(config)
    assert report["epochs"] == whole["epochs"]
    assert report["auc"] == whole["auc"]
    assert rates(tmp_path / "run")["refit"] == rates(Path(whole["run"]))["refit"]
