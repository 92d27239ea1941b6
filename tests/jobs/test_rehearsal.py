"""A job on hosts that are folders here: whole, stopped by SIGTERM, gone on with, and equal to the bit."""

from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.drivers import command
from dtlab.sagemaker.hosts import Container
from dtlab.sagemaker.job import TrainingJob
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.rehearsal import _failure, _saves, rehearse
from dtlab.sagemaker.tables import Compute, Rehearsal, Source

JOBS = Path(__file__).parents[2] / "examples" / "jobs"


def test_job_that_is_stopped_like_a_spot_host_ends_with_the_same_weights(tmp_path):
    """The pipeline job with a rank on each host: one stage each."""
    job = read_job(JOBS / "s3.toml")
    job = replace(job, rehearsal=replace(job.rehearsal, hosts=2, ranks_per_host=1))
    found = rehearse(job, folder=tmp_path, timeout=200)
    assert found.passed
    assert (found.world_size, found.hosts) == (2, 2)
    assert found.model_files == ("model.safetensors",)
    assert found.exit_codes == (143, 143)
    assert found.seconds_to_checkpoint is not None
    assert 0 <= found.seconds_to_checkpoint < 30
    assert found.seconds_to_end < 100  # SageMaker kills after 120
    old, new = (_saves(tmp_path / name / "algo-1/checkpoints") for name in ("stopped", "resumed"))
    assert old, "nothing was saved"
    assert new - old, "nothing was saved after the stop"
    assert not _saves(tmp_path / "stopped/algo-2/checkpoints"), "the hosts share no folder"


def test_rank_that_failed_is_told_and_not_the_one_that_lost_its_peer(tmp_path):
    hosts = [Container(name, tmp_path / name, tmp_path / f"{name}.log") for name in ("algo-1", "algo-2")]
    told = ("LateRankError: rank 0 lost a peer", "ValueError: bad lr\n\nTraceback ...")
    for host, text in zip(hosts, told, strict=True):
        (host.base / "output").mkdir(parents=True)
        (host.base / "output/failure").write_text(f"host {host.name}: {text}\n")
    assert _failure(hosts, [1, 1]) == "host algo-2: ValueError: bad lr"
    (hosts[1].base / "output/failure").unlink()
    hosts[1].log.write_text("out of memory\n")
    assert _failure(hosts, [1, 137]) == "algo-2 ended with 137: out of memory"


def test_missing_script_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="there is no"):
        rehearse(TrainingJob(source=Source(folder=tmp_path)))


def test_small_data_that_is_not_there_or_of_no_channel_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    job = TrainingJob(
        source=Source(folder=tmp_path), rehearsal=Rehearsal(channels={"train": tmp_path / "no"})
    )
    with pytest.raises(UserError, match="has no such channel"):
        rehearse(job)
    with pytest.raises(UserError, match=f"no such folder .{tmp_path}/no"):
        rehearse(replace(job, channels={"train": "s3://bucket/train/"}))


def test_stages_that_the_ranks_of_a_rehearsal_cannot_hold_are_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    job = TrainingJob(
        source=Source(folder=tmp_path),
        compute=Compute(instance_count=1),
        distribution={"stages": 4},
        rehearsal=Rehearsal(ranks_per_host=2),
    )
    with pytest.raises(UserError, match=r"rehearsal\.ranks_per_host = 2"):
        rehearse(job)


def test_driver_of_the_sdk_needs_the_sdk(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dtlab\[sagemaker-sdk\]'"):
        command("sdk", tmp_path, {}, "train.py")
