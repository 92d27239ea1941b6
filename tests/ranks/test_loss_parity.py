"""One rank against two: a run that is right, and the ways in which runs are wrong."""

import pytest
import torch
from torch import nn

import dtlab
from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.diagnose.checks import FAIL, OK, WARN
from dtlab.diagnose.parity import compare, loss_parity
from dtlab.diagnose.short_run import config_parity, config_profile
from dtlab.diagnose.trajectory import Trajectory, TrajectoryRecorder
from dtlab.errors import UserError
from dtlab.parallel.ddp import data_parallel
from dtlab.train.config import ModelConfig, OptimConfig, TrainConfig
from dtlab.train.trainer import global_steps


def table(rows=90):
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(rows, 6, generator=generator)
    return Batch(
        torch.arange(rows), torch.zeros(rows, 0, dtype=torch.int64), dense, (dense[:, 0] > 0).float()
    )


def train(fault="none", engine="torch", lr=1e-2):
    """A hand-written loop over global batches of 24 rows: the last one of the epoch has 18."""
    with dtlab.world() as w:
        torch.manual_seed(w.rank if fault == "other weights" and w.size > 1 else 2)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        if fault not in ("no sync", "other weights"):
            model = data_parallel(model, w, engine=engine)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        batch_rows = 24 * w.size if fault == "batch per rank" else 24
        recorder = TrajectoryRecorder(model)
        for batch, rows in global_steps(Loader(table(), GlobalBatchSampler(90, batch_rows)), 4):
            optimizer.zero_grad()
            loss = (model(batch.dense)[:, 0] - batch.labels).square().sum()
            divisor = {
                "divided twice": rows,
                "summed": rows / w.size**2,
                "by own rows": len(batch),
            }.get(fault, rows / w.size)
            (loss / divisor).backward()
            optimizer.step()
            recorder.add(loss, len(batch))
        return recorder.result()


def status(parity):
    return {line.name: line.status for line in parity.lines}


@pytest.fixture(scope="module")
def alone():
    return dtlab.launch(train, 1, timeout=60, echo=False)


@pytest.fixture
def parity_of(alone):
    """The parity of a run on two ranks, with a single rank's run made once."""

    def run(*arguments):
        return compare(alone, dtlab.launch(train, 2, *arguments, timeout=60, echo=False))

    return run


@pytest.mark.parametrize("engine", ["torch", "by_hand"])
def test_right_run_agrees_to_rounding(engine, parity_of):
    parity = parity_of("none", engine)
    assert parity.status == OK, str(parity)
    assert len(parity.losses) == 4
    assert parity.loss_difference < 1e-5
    assert parity.gradient_difference < 1e-5
    assert parity.gradient_factor == pytest.approx(1.0, abs=1e-5)
    assert parity.replicas_equal
    assert str(parity).endswith("parity holds")


def test_run_without_sync_fails_although_its_losses_pass_five_percent():
    parity = loss_parity(train, 2, "no sync", lr=1e-3)
    assert parity.failed
    assert status(parity)["replicas"] == FAIL
    assert not parity.replicas_equal
    (line,) = [line for line in parity.lines if line.name == "replicas"]
    assert "data_parallel" in line.fix
    assert parity.loss_difference < 0.05  # the measure of the practitioners would have let it pass


@pytest.mark.parametrize(
    ("fault", "factor", "word"),
    [("divided twice", 0.5, "divided by the ranks twice"), ("summed", 2.0, "summed")],
)
def test_wrong_divisor_fails_on_the_gradient_which_adamw_hides_from_the_loss(fault, factor, word, parity_of):
    parity = parity_of(fault)
    assert status(parity)["gradient"] == FAIL
    assert parity.gradient_factor == pytest.approx(factor, abs=1e-4)
    (line,) = [line for line in parity.lines if line.name == "gradient"]
    assert word in line.fix
    assert status(parity)["loss"] != FAIL
    assert status(parity)["replicas"] == OK


def test_batch_of_each_rank_instead_of_a_global_one_fails_by_its_rows(parity_of):
    parity = parity_of("batch per rank")
    (line,) = [line for line in parity.lines if line.name == "rows in the first step"]
    assert (line.status, line.value) == (FAIL, "24 with one rank, 48 with 2")


def test_other_weights_are_found_before_any_update(parity_of):
    parity = parity_of("other weights")
    assert parity.failed
    (line,) = [line for line in parity.lines if line.name == "loss"]
    assert line.status in (WARN, FAIL)
    assert line.fix.startswith("step 0 differs")


def test_what_is_no_trajectory_is_refused():
    with pytest.raises(UserError, match=r"train returned a float: return recorder.result"):
        loss_parity(lambda: 0.5, 2)
    with pytest.raises(UserError, match="no step"):
        compare([Trajectory(0, 1)], [Trajectory(0, 2)])
    with pytest.raises(UserError, match="nproc = 1"):
        loss_parity(train, 1)
    with pytest.raises(UserError, match=r"rounding = 0\.2"):
        loss_parity(train, 2, rounding=0.2)


def test_loss_that_is_no_number_fails():
    def trajectory(loss, size):
        one = {"weight": torch.ones(2)}
        return Trajectory(0, size, [loss], [4.0], one, one, "same")

    parity = compare([trajectory(1.0, 1)], [trajectory(float("nan"), 2)])
    assert status(parity)["loss"] == FAIL
    almost = compare([trajectory(1.0, 1)], [trajectory(1.01, 2)])
    assert status(almost)["loss"] == WARN


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return TrainConfig(
        data=DataConfig(name="clicks", rows=4000, root=str(tmp_path_factory.mktemp("data"))),
        model=ModelConfig(dim=4, hidden=(8,), dropout=0.3),
        optim=OptimConfig(global_batch=256, micro_batch=48),
    )


def test_configuration_of_dtlab_train_keeps_parity_and_has_a_profile(config):
    parity = config_parity(config, 2, steps=3)
    assert parity.status == OK, str(parity)
    profiles = config_profile(config, 2, steps=4, device="cpu")
    assert [(each.rank, each.world_size, len(each)) for each in profiles] == [(0, 2, 3), (1, 2, 3)]
    for profile in profiles:
        assert (profile.column("communication") > 0).all()
        assert (profile.column("backward") > 0).all()
    (alone,) = config_profile(config, 1, steps=4, device="cpu")
    assert not alone.column("communication").any()
    with pytest.raises(UserError, match="steps = 0"):
        config_parity(config, 2, steps=0)
