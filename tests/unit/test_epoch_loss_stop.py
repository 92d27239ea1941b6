"""An epoch whose mean loss is no number ends the run, also where no single step was refused."""

import math
from dataclasses import replace

import pytest

from dtlab.data.config import DataConfig
from dtlab.errors import UserError
from dtlab.train.config import OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_core import StoppingConfig
from dtlab.train.job import run
from dtlab.train.trainer import Trainer


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("policy", ["skip", "roll_back"])
def test_epoch_with_a_loss_that_is_no_number_stops_before_its_weights_are_kept(
    monkeypatch, tmp_path, loss, policy
):
    train_epoch = Trainer.train_epoch
    monkeypatch.setattr(Trainer, "train_epoch", lambda *a, **k: replace(train_epoch(*a, **k), loss=loss))
    config = TrainConfig(
        data=DataConfig(name="clicks", rows=1000, root=str(tmp_path / "data")),
        optim=OptimConfig(global_batch=512, max_epochs=1, lr=0.125),
        stopping=StoppingConfig(non_finite=policy),
        run=RunConfig(folder=tmp_path / "run", refit=False),
    )
    with pytest.raises(UserError, match=r"step 2: the mean loss .* not finite; lower optim\.lr = 0\.125"):
        run(config)
    assert not (tmp_path / "run" / "model").exists()
    assert '"event": "failed"' in (tmp_path / "run" / "record.jsonl").read_text()
