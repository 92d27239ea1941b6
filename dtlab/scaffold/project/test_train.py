"""Two ranks learn what one process learns, and a second call finds the finished run."""

from dataclasses import replace

import make_data
import pytest
from train import settings, train

import dtlab


@pytest.fixture
def config(tmp_path):
    """The project's configuration on a small table of its own."""
    make_data.write(tmp_path / "data", rows=1_500)
    wanted = settings()
    data = replace(wanted.data, path=str(tmp_path / "data"), root=str(tmp_path / "runs"))
    run = replace(wanted.run, folder=tmp_path / "run")
    return replace(wanted, data=data, run=run, optim=replace(wanted.optim, max_epochs=2))


def test_two_ranks_learn_what_one_process_learns(config, tmp_path):
    alone = dtlab.launch(train, 1, config, tmp_path / "alone.safetensors", timeout=120)[0]
    apart = replace(config, run=replace(config.run, folder=tmp_path / "apart"))
    together = dtlab.launch(train, 2, apart, tmp_path / "model.safetensors", timeout=120)
    assert together[0] == together[1]
    assert together[0]["samples"] == alone["samples"]
    assert together[0]["auc"] == pytest.approx(alone["auc"], abs=1e-3)
    assert (tmp_path / "model.safetensors").is_file()
    again = dtlab.launch(train, 2, apart, tmp_path / "again.safetensors", timeout=120)
    assert again[0] == together[0]  # from its checkpoint, without another step
