"""The ``CreateTrainingJob`` request of a job, as plain JSON values (lesson 15).

dtlab owns the whole request. ``ContainerEntrypoint`` starts its own first process, because the SDK's lets no
SIGTERM through to the ranks. The channel ``code`` holds two files: the archive of the source folder and the
script that unpacks it.

With ``distribution.launcher = "mpi"`` the image's own toolkit starts the ranks: the request then has no
entry point but the hyper-parameters that the toolkit reads.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob

__all__ = ["ARCHIVE", "BOOTSTRAP", "code_folder", "create_training_job", "image_of", "unique_name"]

BOOTSTRAP, ARCHIVE = "bootstrap.py", "source.tar.gz"
BASE = "/opt/ml"
CODE = f"{BASE}/input/data/code"
# The newest image whose torch (2.9) has been looked up; only for us-east-1 was the account confirmed.
_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9-{}-py312"
# The SDK's drivers overwrite these; the ranks put the job's own values back (dtlab.sagemaker.rank_script).
OVERWRITTEN = ("NCCL_PROTO", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_DEBUG", "FI_PROVIDER")
WANTED = "DTLAB_SET_"


def unique_name(job: TrainingJob, *, now: float | None = None, token: str | None = None) -> str:
    """A job name that two submissions in one second do not share; the SDK's has only the second.

    >>> unique_name(TrainingJob(name="demo"), now=0, token="3f2a")
    'demo-19700101-000000-3f2a'
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{job.name}-{stamp}-{secrets.token_hex(2) if token is None else token}"


def image_of(job: TrainingJob, *, on_cpu: bool = False) -> str:
    """The training image; with ``on_cpu`` the one for a host without cards.

    Raises:
        UserError: no image is given and none is known for the region.
    """
    if job.image is not None:
        return job.image
    if job.region != "us-east-1":
        raise UserError(
            f"image: missing; for region = {job.region!r} none is known here. In us-east-1 it would be "
            f"{_IMAGE.format('gpu')}; the account differs between regions"
        )
    return _IMAGE.format("gpu" if job.cards and not on_cpu else "cpu")


def code_folder(job: TrainingJob, name: str) -> str:
    """The S3 folder of the job's packed code.

    Raises:
        UserError: the job has no output folder.
    """
    return f"{_output(job).rstrip('/')}/{name}/code/"


def create_training_job(job: TrainingJob, name: str) -> dict[str, Any]:
    """The request; ``job`` from ``modern``.

    Raises:
        UserError: role, output folder or image is missing, or the job is for this machine.

    >>> from dtlab.sagemaker.tables import Output
    >>> to = Output(s3_uri="s3://bucket/out")
    >>> job = TrainingJob(role="arn:aws:iam::111122223333:role/r", output=to)
    >>> create_training_job(job, "demo-1")["ResourceConfig"]["InstanceCount"]
    1
    """
    compute = job.compute
    if compute.is_local:
        raise UserError(
            f"compute.instance_type = {compute.instance_type!r}: is this machine, where nothing is "
            "submitted; run "
            "dtlab sagemaker rehearse, or name an ml. type"
        )
    if job.role is None:
        raise UserError(
            "role: missing; give the ARN of the role that the job takes (dtlab sagemaker plan prints "
            "what it must be allowed)"
        )
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": job.role,
        "AlgorithmSpecification": _algorithm(job),
        "HyperParameters": _hyperparameters(job, name),
        "InputDataConfig": [_channel(channel, uri) for channel, uri in job.channels.items()],
        "OutputDataConfig": {"S3OutputPath": _output(job)},
        "ResourceConfig": {
            "InstanceType": compute.instance_type,
            "InstanceCount": compute.instance_count,
            "VolumeSizeInGB": compute.volume_gb,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": compute.max_run_seconds},
        "EnableManagedSpotTraining": compute.spot,
        "EnableNetworkIsolation": job.network.isolated,
        "EnableInterContainerTrafficEncryption": job.network.encrypt_between_hosts,
        "Environment": environment(job),
        "Tags": [{"Key": key, "Value": str(value)} for key, value in {"dtlab": job.name, **job.tags}.items()],
    }
    if job.layout.launcher == "torchrun":
        request["InputDataConfig"].append(_channel("code", code_folder(job, name)))
    _add_options(request, job)
    return request


def environment(job: TrainingJob) -> dict[str, str]:
    """Variables of the container: the job's own and those by which dtlab's first process knows the layout."""
    layout = job.layout
    own = {**layout.environment, **job.environment}
    if layout.launcher == "mpi":
        own |= wanted(own)
    own["DTLAB_CHECKPOINT_SECONDS"] = str(job.checkpoint.every_seconds)
    if layout.ranks_per_host is not None:
        own["DTLAB_RANKS_PER_HOST"] = str(layout.ranks_per_host)
    if layout.stages > 1:
        own["DTLAB_STAGES"], own["DTLAB_SCHEDULE"] = str(layout.stages), layout.schedule
        own["DTLAB_MICRO_BATCHES"] = str(layout.micro_batches)
    if job.mlflow.arn:
        own["MLFLOW_TRACKING_URI"] = job.mlflow.arn
        if job.mlflow.experiment:
            own["MLFLOW_EXPERIMENT_NAME"] = job.mlflow.experiment
    return own


def wanted(environ: Mapping[str, str]) -> dict[str, str]:
    """Copies of the variables that the SDK's drivers overwrite, for the ranks to put back.

    >>> wanted({"NCCL_DEBUG": "INFO", "LANG": "C"})
    {'DTLAB_SET_NCCL_DEBUG': 'INFO'}
    """
    return {WANTED + name: environ[name] for name in OVERWRITTEN if name in environ}


def _add_options(request: dict[str, Any], job: TrainingJob) -> None:
    compute = job.compute
    if not request["InputDataConfig"]:
        del request["InputDataConfig"]
    if compute.wait_seconds is not None:
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = compute.wait_seconds
    for key, value in (
        ("KeepAlivePeriodInSeconds", compute.keep_alive_seconds),
        ("VolumeKmsKeyId", compute.volume_kms_key),
        ("TrainingPlanArn", compute.training_plan),
    ):
        if value:
            request["ResourceConfig"][key] = value
    if job.output.kms_key:
        request["OutputDataConfig"]["KmsKeyId"] = job.output.kms_key
    if job.checkpoint.s3_uri:
        request["CheckpointConfig"] = {"S3Uri": job.checkpoint.s3_uri, "LocalPath": f"{BASE}/checkpoints"}
    if compute.retries:
        request["RetryStrategy"] = {"MaximumRetryAttempts": compute.retries}
    if job.network.subnets:
        groups = list(job.network.security_groups)
        request["VpcConfig"] = {"SecurityGroupIds": groups, "Subnets": list(job.network.subnets)}
    if job.mlflow.arn:
        names = {"MlflowExperimentName": job.mlflow.experiment, "MlflowRunName": job.mlflow.run_name}
        given = {key: value for key, value in names.items() if value}
        request["MlflowConfig"] = {"MlflowResourceArn": job.mlflow.arn, **given}


def _algorithm(job: TrainingJob) -> dict[str, Any]:
    found: dict[str, Any] = {"TrainingImage": image_of(job), "TrainingInputMode": "File"}
    if job.metrics:
        found["MetricDefinitions"] = [{"Name": name, "Regex": text} for name, text in job.metrics.items()]
    if job.layout.launcher == "torchrun":
        found["ContainerEntrypoint"] = ["python3"]
        found["ContainerArguments"] = [f"{CODE}/{BOOTSTRAP}", job.source.entry_script]
    return found


def _hyperparameters(job: TrainingJob, name: str) -> dict[str, str]:
    values = encode(job.hyperparameters)
    layout = job.layout
    if layout.launcher == "torchrun":
        return values
    # The toolkit reads each of its own as JSON.
    toolkit = {
        "sagemaker_program": job.source.entry_script,
        "sagemaker_submit_directory": code_folder(job, name) + ARCHIVE,
        "sagemaker_region": job.region,
        "sagemaker_job_name": name,
        "sagemaker_container_log_level": 20,
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": job.ranks_per_host,
        "sagemaker_mpi_custom_mpi_options": layout.mpi_options,
    }
    return {**values, **{key: json.dumps(value) for key, value in toolkit.items()}}


def _channel(name: str, uri: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _output(job: TrainingJob) -> str:
    if job.output.s3_uri is None:
        raise UserError(
            "output.s3_uri: missing; give the S3 folder for the model, such as s3://bucket/models/"
        )
    return job.output.s3_uri
