"""A run that is killed or told to stop, at any moment, ends as if nothing had happened."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

import dtlab
from dtlab.data.config import DataConfig
from dtlab.diagnose.faults import Fault, random_faults, reference, try_fault, weights
from dtlab.train.config import CheckpointConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_schedule import ScheduleConfig

ROOT = Path(__file__).resolve().parents[2]
CONFIG = TrainConfig(
    data=DataConfig(name="clicks", rows=4_000, root=str(ROOT / "data")),
    model=ModelConfig(dim=4, hidden=(8,)),
    optim=OptimConfig(lr=5e-3, global_batch=150, max_epochs=3, patience=3, clip=1.0),
    schedule=ScheduleConfig(kind="cosine", warmup=10),
    checkpoint=CheckpointConfig(every_steps=5),
    # Without a refit the weights of these very epochs are the result: whatever a resume loses shows in them.
    run=RunConfig(log_every=20, eval_batch=40, check_replicas_every=7, refit=False),
)
REFIT = replace(
    CONFIG,
    model=replace(CONFIG.model, dropout=0.2),
    optim=replace(CONFIG.optim, max_epochs=1),
    run=replace(CONFIG.run, refit=True),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    report = reference(CONFIG, 3, tmp_path_factory.mktemp("whole"))
    assert report["stopped_by"] is None
    assert (report["missed_rows"], report["duplicate_rows"]) == (0, 0)
    return weights(report)


def assert_as_if_nothing_happened(trial, *, same_ranks=True):
    assert trial.happened, "the fault never came: the test shows nothing"
    assert trial.survived, trial.error
    assert not trial.hang
    assert (trial.samples_lost, trial.samples_doubled, trial.orphans) == (0, 0, 0)
    assert trial.report["unique_rows_seen"] == trial.report["rows_train"]
    if same_ranks:
        assert trial.bit_equal, f"parameters differ by {trial.largest_difference}"
    else:
        assert trial.largest_difference < 1e-4


@pytest.mark.parametrize("fault", random_faults(3, 3, range(8, 50), seed=1), ids=lambda f: f.kind)
def test_killed_rank_changes_no_bit(fault, whole, tmp_path):
    assert_as_if_nothing_happened(try_fault(CONFIG, fault, tmp_path, whole))


def test_rank_killed_in_the_refit_changes_no_bit(tmp_path):
    expected = weights(reference(REFIT, 3, tmp_path / "whole"))
    trial = try_fault(REFIT, Fault("kill", 2, 32), tmp_path / "killed", expected)
    assert_as_if_nothing_happened(trial)
    assert trial.report["rows_train"] > 3_000  # training and validation rows


@pytest.mark.parametrize(
    "fault",
    [
        Fault("SIGTERM", rank=2, step=4),  # in the learning rate's warm-up, before any checkpoint
        Fault("SIGTERM", rank=1, step=1, place="evaluate"),
        Fault("SIGTERM", rank=0, step=1, place="start"),
    ],
    ids=["warm-up", "evaluation", "start"],
)
def test_told_to_stop_saves_within_the_grace_time_and_goes_on(fault, whole, tmp_path):
    trial = try_fault(CONFIG, fault, tmp_path, whole)
    assert_as_if_nothing_happened(trial)
    assert trial.seconds_to_checkpoint is not None
    assert trial.seconds_to_checkpoint < CONFIG.checkpoint.grace_seconds


def told_at_once(config):
    """The signal comes before the run has done anything."""
    from dtlab.train import job

    job.check_store = lambda *_: signal.raise_signal(signal.SIGTERM)
    return job.run(config)["stopped_by"]


def test_told_to_stop_in_its_first_instant_stops_like_any_other_run(tmp_path):
    config = replace(CONFIG, run=replace(CONFIG.run, folder=tmp_path / "run"))
    assert list(dtlab.launch(told_at_once, 2, config, timeout=90, echo=False)) == ["SIGTERM", "SIGTERM"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4)])
def test_goes_on_with_the_same_samples_on_another_number_of_ranks(before, after, whole, tmp_path):
    trial = try_fault(CONFIG, Fault("kill", 1, 30), tmp_path, whole, nproc=before, then=after)
    assert_as_if_nothing_happened(trial, same_ranks=False)
    assert trial.report["world_size"] == after
