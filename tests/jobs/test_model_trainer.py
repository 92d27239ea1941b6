"""The same job for the SDK's ModelTrainer, with the SDK's faults gone round."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.model_trainer import model_trainer, trainer_fields
from dtlab.sagemaker.tables import Compute

JOBS = Path(__file__).parents[2] / "examples" / "jobs"


def has_sdk() -> bool:
    try:
        return importlib.util.find_spec("sagemaker.train") is not None
    except ModuleNotFoundError:
        return False


def test_fields_say_what_the_request_says():
    fields = trainer_fields(modern(read_job(JOBS / "s0.toml"))[0], "code")
    assert fields["distributed"] == {"kind": "Torchrun", "process_count_per_node": 4}
    assert fields["compute"]["instance_type"] == "ml.g5.12xlarge"
    assert fields["compute"]["enable_managed_spot_training"]
    assert fields["stopping_condition"]["max_wait_time_in_seconds"] == 28800
    assert fields["retries"] == 3


def test_mpi_on_two_hosts_asks_for_the_ranks_of_both():
    job = TrainingJob(
        compute=Compute(instance_count=2), distribution={"launcher": "mpi", "mpi_options": "-x A=1"}
    )
    distributed = trainer_fields(job, "code")["distributed"]
    assert distributed["process_count_per_node"] == 8
    assert distributed["mpi_additional_options"] == ["--map-by", "ppr:4:node", "-x", "A=1"]


def test_variables_that_the_driver_overwrites_are_given_twice():
    job = TrainingJob(environment={"NCCL_PROTO": "LL", "OTHER": "x"})
    environment = trainer_fields(job, "code")["environment"]
    assert environment["DTLAB_SET_NCCL_PROTO"] == "LL"
    assert "DTLAB_SET_OTHER" not in environment


@pytest.mark.skipif(has_sdk(), reason="the SageMaker SDK is installed")
def test_without_the_sdk_the_error_names_the_extra(tmp_path):
    with pytest.raises(UserError, match=r"pip install 'dtlab\[sagemaker-sdk\]'"):
        model_trainer(read_job(JOBS / "s0.toml"), tmp_path / "staging")


@pytest.mark.skipif(not has_sdk(), reason="needs dtlab[sagemaker-sdk]")
def test_trainer_of_the_sdk_renders_the_job(tmp_path, monkeypatch):
    """Offline: the SDK needs a region, and is told not to ask AWS about the role."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("SAGEMAKER_VALIDATE_ROLE", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    job = read_job(JOBS / "s0.toml")
    trainer = model_trainer(replace(job, channels={}), tmp_path / "staging")
    assert trainer.compute.instance_count == 2
    assert trainer.distributed.process_count_per_node == 4
    assert trainer.stopping_condition.max_wait_time_in_seconds == 28800
    assert json.loads(json.dumps(trainer.hyperparameters))["config"] == "recommender.toml"
    assert (tmp_path / "staging/dtlab/sagemaker/script.py").is_file()
