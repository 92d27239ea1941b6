"""The definition of a job's pipeline: its steps, their arguments, and what they hand on (lesson 16).

- A step reads the address that the step before it wrote to, by a ``Get``. An address holds the number of the
  execution, so a step that ran again hands on a new one; a step found in the cache hands on its old one.
- The cache compares addresses and settings, never the content of objects. So the code lies under its own
  hash, and the parameter DataVersion stands for the content of the raw data.
- Checkpoints lie under the hash of code and settings and the data version: an execution with others begins
  anew, one that repeats a failed one goes on.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob
from dtlab.sagemaker.processing import settings_of
from dtlab.sagemaker.request import BOOTSTRAP, create_training_job, image_of

__all__ = ["definition_of", "output_of"]

INPUT, OUTPUT = "/opt/ml/processing/input", "/opt/ml/processing/output"
_INFERENCE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312"
_METRICS = "Metrics"


def definition_of(job: TrainingJob, code: str, digest: str) -> dict[str, Any]:
    """The definition as JSON values; ``job`` from ``modern``.

    Args:
        job: with the training data in its channel ``train``.
        code: S3 folder of the packed code.
        digest: of that code.

    Raises:
        UserError: role, output folder or an image is missing.
    """
    steps = job.pipeline
    values = encode(job.hyperparameters)
    of_data = [*settings_of(values, "config", "data.")]
    raw = _get("Parameters.TrainData")
    prepared, features = _uri("Prepare"), _uri("Features")
    model = _get("Steps.Train.ModelArtifacts.S3ModelArtifacts")
    prepare = _processing(job, "prepare", of_data, {"code": code, "train": raw})
    prepare["Environment"]["DTLAB_DATA_VERSION"] = _get("Parameters.DataVersion")
    evaluation = {name: json.dumps(value) for name, value in steps.evaluation.items() if name != "least_auc"}
    scored = _processing(
        job,
        "evaluate",
        [*settings_of(values, ""), *(f"pipeline.{name}={value}" for name, value in evaluation.items())],
        {"code": code, "train": raw, "prepared": prepared, "features": features, "model": model},
    )
    packed = _processing(
        job,
        "package",
        of_data,
        {"code": code, "prepared": prepared, "model": model, "evaluated": _uri("Evaluate")},
    )
    property_file = {"PropertyFileName": _METRICS, "OutputName": "output", "FilePath": "metrics.json"}
    condition = {
        "Type": "GreaterThanOrEqualTo",
        "LeftValue": {
            "Std:JsonGet": {"PropertyFile": _get(f"Steps.Evaluate.PropertyFiles.{_METRICS}"), "Path": "auc"}
        },
        "RightValue": _get("Parameters.LeastAuc"),
    }
    low = _join("", "the model's test AUC is below ", _get("Parameters.LeastAuc"))
    return {
        "Version": "2020-12-01",
        "Metadata": {"dtlab": job.name},
        "Parameters": _parameters(job),
        "Steps": [
            _step(job, "Prepare", "Processing", prepare),
            _step(
                job,
                "Features",
                "Processing",
                _processing(
                    job,
                    "features",
                    [*of_data, *settings_of(values, "run.refit", "run.max_steps")],
                    {"code": code, "train": raw, "prepared": prepared},
                ),
            ),
            _step(job, "Train", "Training", _training(job, code, digest, features)),
            {**_step(job, "Evaluate", "Processing", scored), "PropertyFiles": [property_file]},
            {
                "Name": "GoodEnough",
                "Type": "Condition",
                "Arguments": {
                    "Conditions": [condition],
                    "IfSteps": [
                        _step(job, "Package", "Processing", packed),
                        {"Name": "Register", "Type": "RegisterModel", "Arguments": _register(job)},
                    ],
                    "ElseSteps": [{"Name": "TooLow", "Type": "Fail", "Arguments": {"ErrorMessage": low}}],
                },
            },
        ],
    }


def _parameters(job: TrainingJob) -> list[dict[str, Any]]:
    """What one execution may set without a new definition."""
    values: tuple[tuple[str, str, Any], ...] = (
        ("TrainData", "String", job.channels["train"]),
        ("DataVersion", "String", "1"),
        ("TrainInstanceType", "String", job.compute.instance_type),
        ("TrainInstanceCount", "Integer", job.compute.instance_count),
        ("ProcessingInstanceType", "String", job.pipeline.instance_type),
        ("LeastAuc", "Float", float(job.pipeline.least_auc)),
    )
    return [{"Name": name, "Type": kind, "DefaultValue": value} for name, kind, value in values]


def _step(job: TrainingJob, name: str, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"Name": name, "Type": kind, "Arguments": arguments}
    if job.pipeline.cache:
        found["CacheConfig"] = {"Enabled": True, "ExpireAfter": job.pipeline.cache}
    return found


def _processing(job: TrainingJob, step: str, settings: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a processing step; its name is left to SageMaker."""
    steps = job.pipeline
    cluster: dict[str, Any] = {
        "InstanceCount": 1,
        "InstanceType": _get("Parameters.ProcessingInstanceType"),
        "VolumeSizeInGB": steps.volume_gb,
    }
    if job.compute.volume_kms_key:
        cluster["VolumeKmsKeyId"] = job.compute.volume_kms_key
    output: dict[str, Any] = {
        "OutputName": "output",
        "S3Output": {"S3Uri": _place(job, step), "LocalPath": OUTPUT, "S3UploadMode": "EndOfJob"},
    }
    outputs: dict[str, Any] = {"Outputs": [output]}
    if job.output.kms_key:
        outputs["KmsKeyId"] = job.output.kms_key
    network: dict[str, Any] = {
        "EnableNetworkIsolation": job.network.isolated,
        "EnableInterContainerTrafficEncryption": job.network.encrypt_between_hosts,
    }
    if job.network.subnets:
        groups = list(job.network.security_groups)
        network["VpcConfig"] = {"SecurityGroupIds": groups, "Subnets": list(job.network.subnets)}
    return {
        "AppSpecification": {
            "ImageUri": image_of(job, on_cpu=True),
            "ContainerEntrypoint": ["python3", f"{INPUT}/code/{BOOTSTRAP}"],
            "ContainerArguments": [step, *settings],
        },
        "Environment": {"DTLAB_MAIN": "dtlab.sagemaker.processing"},
        "NetworkConfig": network,
        "ProcessingInputs": [
            {
                "InputName": name,
                "S3Input": {
                    "S3Uri": uri,
                    "LocalPath": f"{INPUT}/{name}",
                    "S3DataType": "S3Prefix",
                    "S3InputMode": "File",
                    "S3DataDistributionType": "FullyReplicated",
                },
            }
            for name, uri in inputs.items()
        ],
        "ProcessingOutputConfig": outputs,
        "ProcessingResources": {"ClusterConfig": cluster},
        "RoleArn": job.role,
        "StoppingCondition": {"MaxRuntimeInSeconds": steps.max_run_seconds},
    }


def _training(job: TrainingJob, code: str, digest: str, features: dict[str, Any]) -> dict[str, Any]:
    """The training job's own request, with the features as a channel and the parameters of the pipeline."""
    found = create_training_job(job, "pipeline")
    del found["TrainingJobName"]
    found["ResourceConfig"] |= {
        "InstanceType": _get("Parameters.TrainInstanceType"),
        "InstanceCount": _get("Parameters.TrainInstanceCount"),
    }
    for channel in found["InputDataConfig"]:
        source = channel["DataSource"]["S3DataSource"]
        if channel["ChannelName"] == "train":
            source["S3Uri"] = _get("Parameters.TrainData")
        elif channel["ChannelName"] == "code":
            source["S3Uri"] = code
    found["InputDataConfig"].append(
        {
            "ChannelName": "features",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": features,
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
        }
    )
    if "CheckpointConfig" in found:
        settled = json.dumps([digest, found["HyperParameters"], found["Environment"]], sort_keys=True)
        key = hashlib.sha256(settled.encode()).hexdigest()[:12]
        where = f"{found['CheckpointConfig']['S3Uri'].rstrip('/')}/{key}"
        found["CheckpointConfig"]["S3Uri"] = _join("/", where, _get("Parameters.DataVersion"))
    return found


def _register(job: TrainingJob) -> dict[str, Any]:
    """The arguments of the step that registers the packaged model, to be approved by a person."""
    steps = job.pipeline
    return {
        "ModelPackageGroupName": steps.group or job.name,
        "ModelApprovalStatus": "PendingManualApproval",
        "InferenceSpecification": {
            "Containers": [
                {
                    "Image": _inference_image(job),
                    "ModelDataUrl": _join("/", _uri("Package"), "model.tar.gz"),
                }
            ],
            "SupportedContentTypes": ["application/json"],
            "SupportedResponseMIMETypes": ["application/json"],
            "SupportedRealtimeInferenceInstanceTypes": [steps.serving_type],
            "SupportedTransformInstanceTypes": [steps.serving_type],
        },
        "ModelMetrics": {
            "ModelQuality": {
                "Statistics": {
                    "ContentType": "application/json",
                    "S3Uri": _join("/", _uri("Evaluate"), "metrics.json"),
                }
            }
        },
    }


def _inference_image(job: TrainingJob) -> str:
    if job.pipeline.inference_image is not None:
        return job.pipeline.inference_image
    if job.region != "us-east-1":
        raise UserError(
            f"pipeline.inference_image: missing; for region = {job.region!r} none is known here. In "
            f"us-east-1 it would be {_INFERENCE}; the account differs between regions"
        )
    return _INFERENCE


def output_of(job: TrainingJob) -> str:
    """The S3 folder of the pipeline.

    Raises:
        UserError: the job has no output folder.
    """
    if job.output.s3_uri is None:
        raise UserError("output.s3_uri: missing; give the S3 folder for code, outputs and model")
    return f"{job.output.s3_uri.rstrip('/')}/pipelines/{job.name}"


def _place(job: TrainingJob, step: str) -> dict[str, Any]:
    return _join("/", output_of(job), _get("Execution.PipelineExecutionId"), step)


def _uri(step: str) -> dict[str, Any]:
    return _get(f"Steps.{step}.ProcessingOutputConfig.Outputs['output'].S3Output.S3Uri")


def _get(name: str) -> dict[str, Any]:
    return {"Get": name}


def _join(on: str, *values: Any) -> dict[str, Any]:
    return {"Std:Join": {"On": on, "Values": list(values)}}
