"""The same job as a ``ModelTrainer`` of the SageMaker SDK (version 3), for those who prefer it (lesson 15).

What is lost by it: the SDK's first process is a shell that passes no SIGTERM on, so only checkpoints by the
clock survive a stop; the failure file holds the driver's traceback instead of the rank's; job names have a
resolution of one second. dtlab's own request has none of the three. What ``trainer_fields`` puts right: MPI
on several hosts (the SDK starts the ranks of one host only), and NCCL variables that its driver overwrites.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.request import BASE, environment, image_of, wanted
from dtlab.sagemaker.source import check_source, pack

__all__ = ["model_trainer", "trainer_fields"]


def trainer_fields(job: TrainingJob, source_dir: str) -> dict[str, Any]:
    """The arguments of ``ModelTrainer`` and of the objects in it, as plain values.

    Args:
        job: from ``modern``.
        source_dir: folder with the source and the dtlab package in it.

    >>> trainer_fields(TrainingJob(), "code")["distributed"]
    {'kind': 'Torchrun', 'process_count_per_node': 4}
    """
    compute, layout = job.compute, job.layout
    has_requirements = (job.source.folder / "requirements.txt").is_file()
    ranks = job.ranks_per_host
    distributed: dict[str, Any] = {"kind": "Torchrun", "process_count_per_node": ranks}
    if layout.launcher == "mpi":
        # The SDK's driver passes this number to mpirun as -np: the ranks of the job, not those of a host.
        options = ["--map-by", f"ppr:{ranks}:node", *shlex.split(layout.mpi_options)]
        distributed = {
            "kind": "MPI",
            "process_count_per_node": job.world_size,
            "mpi_additional_options": options,
        }
    variables = environment(job)
    return {
        "training_image": image_of(job),
        "role": job.role,
        "base_job_name": job.name,
        "source_code": {
            "source_dir": source_dir,
            "entry_script": job.source.entry_script,
            "requirements": "requirements.txt" if has_requirements else None,
        },
        "distributed": distributed,
        "compute": {
            "instance_type": compute.instance_type,
            "instance_count": compute.instance_count,
            "volume_size_in_gb": compute.volume_gb,
            "volume_kms_key_id": compute.volume_kms_key,
            "keep_alive_period_in_seconds": compute.keep_alive_seconds or None,
            "training_plan_arn": compute.training_plan,
            "enable_managed_spot_training": compute.spot,
        },
        "networking": {
            "subnets": list(job.network.subnets) or None,
            "security_group_ids": list(job.network.security_groups) or None,
            "enable_network_isolation": job.network.isolated,
            "enable_inter_container_traffic_encryption": job.network.encrypt_between_hosts,
        },
        "stopping_condition": {
            "max_runtime_in_seconds": compute.max_run_seconds,
            "max_wait_time_in_seconds": compute.wait_seconds,
        },
        "output_data_config": {"s3_output_path": job.output.s3_uri, "kms_key_id": job.output.kms_key},
        "checkpoint_config": {"s3_uri": job.checkpoint.s3_uri, "local_path": f"{BASE}/checkpoints"},
        "input_data_config": [
            {"channel_name": name, "data_source": uri} for name, uri in job.channels.items()
        ],
        "environment": {**variables, **wanted(variables)},
        "hyperparameters": encode(job.hyperparameters),
        "tags": [{"key": key, "value": str(value)} for key, value in {"dtlab": job.name, **job.tags}.items()],
        "retries": compute.retries,
        "metrics": dict(job.metrics),
    }


def model_trainer(job: TrainingJob, staging: Path, *, session: Any = None) -> Any:
    """A ``sagemaker.train.ModelTrainer`` for the job; call its ``train()``.

    Args:
        job: as read from its file.
        staging: folder that is filled with the source and dtlab; the SDK uploads it in ``train()``.
        session: the SDK's session.

    Raises:
        UserError: the SDK is not installed, the entry script is missing, ``staging`` is not empty.
    """
    check_source(job.source.folder, job.source.entry_script)
    sent = modern(job)[0]
    configs, train, distributed = _sdk()
    if staging.exists() and any(staging.iterdir()):
        raise UserError(f"staging = {str(staging)!r}: is not empty; name a new folder")
    staging.mkdir(parents=True, exist_ok=True)
    archive = staging / "source.tar.gz"
    pack(sent.source.folder, archive)
    shutil.unpack_archive(archive, staging, filter="data")
    archive.unlink()
    fields = trainer_fields(sent, str(staging))
    kind = fields["distributed"].pop("kind")
    retries, metrics = fields.pop("retries"), fields.pop("metrics")
    trainer = train.ModelTrainer(
        sagemaker_session=session,
        training_image=fields["training_image"],
        role=fields["role"],
        base_job_name=fields["base_job_name"],
        environment=fields["environment"],
        hyperparameters=fields["hyperparameters"],
        source_code=configs.SourceCode(**_given(fields["source_code"])),
        distributed=getattr(distributed, kind)(**fields["distributed"]),
        compute=configs.Compute(**_given(fields["compute"])),
        networking=configs.Networking(**_given(fields["networking"])),
        stopping_condition=configs.StoppingCondition(**_given(fields["stopping_condition"])),
        output_data_config=configs.OutputDataConfig(**_given(fields["output_data_config"])),
        input_data_config=[configs.InputData(**one) for one in fields["input_data_config"]],
        tags=[configs.Tag(**one) for one in fields["tags"]],
        **({"checkpoint_config": configs.CheckpointConfig(**fields["checkpoint_config"])}
           if sent.checkpoint.s3_uri else {}),
    )  # fmt: skip
    if retries:
        trainer = trainer.with_retry_strategy(configs.RetryStrategy(maximum_retry_attempts=retries))
    if metrics:
        definitions = [configs.MetricDefinition(name=name, regex=text) for name, text in metrics.items()]
        trainer = trainer.with_metric_definitions(definitions)
    return trainer


def _sdk() -> tuple[Any, Any, Any]:
    try:
        from sagemaker import train
        from sagemaker.core.training import configs
        from sagemaker.train import distributed
    except ImportError as error:
        raise UserError(
            f"the SageMaker SDK 3 is not installed ({error}): pip install 'dtlab[sagemaker-sdk]'"
        ) from None
    return configs, train, distributed


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
