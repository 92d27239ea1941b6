"""``dtlab pipeline`` as a SageMaker pipeline: its definition in JSON, version 2020-12-01 (lesson 16).

::

    Prepare -> Features -> Train -> Evaluate -> GoodEnough -> Package -> Register
                                                     \\-> TooLow (the execution fails)

Prepare, Features, Evaluate and Package are processing jobs that run ``dtlab.sagemaker.processing``; Train is
the training job of the file as it is, with the features as a channel. What they hand on: ``pipeline_steps``.

The form of the definition: the schema that AWS publishes under aws-sagemaker-mlops on GitHub.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtlab.cost import aws, billing
from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.pipeline_check import checked_definition
from dtlab.sagemaker.pipeline_steps import definition_of, output_of
from dtlab.sagemaker.request import ARCHIVE, BOOTSTRAP
from dtlab.sagemaker.script import train_config
from dtlab.sagemaker.source import check_source, pack

__all__ = ["PipelinePlan", "make_pipeline_plan"]


@dataclass(frozen=True)
class PipelinePlan:
    """Attributes:
    job: the training job of the file, as it is sent.
    name: of the pipeline.
    definition: the pipeline as JSON values.
    request: for ``CreatePipeline``.
    code: S3 folder where the packed code goes.
    notes: what to know before it is sent.
    training: bill of the training job if it runs as long as it may; None where no price is known.
    processing: the same of all other steps together.
    """

    job: TrainingJob
    name: str
    definition: dict[str, Any]
    request: dict[str, Any]
    code: str
    notes: tuple[str, ...]
    training: billing.Bill | None
    processing: billing.Bill | None

    @property
    def usd_at_most(self) -> float | None:
        """Dollars of one execution in which every step runs as long as it may; None: a price is not known."""
        if self.training is None or self.processing is None:
            return None
        return self.training.usd + self.processing.usd

    def price_lines(self) -> list[str]:
        """What one execution may cost, a line each."""
        steps = self.job.pipeline
        lines = []
        for what, kind, bill in (
            ("training", self.job.compute.instance_type, self.training),
            ("the other steps", steps.instance_type, self.processing),
        ):
            lines.append(
                f"{what}: " + (f"no price of {kind} is known" if bill is None else f"at most {bill.line()}")
            )
        return lines


def make_pipeline_plan(job: TrainingJob) -> PipelinePlan:
    """The pipeline of a job file, checked as far as this machine can. Nothing is sent.

    Raises:
        UserError: the data are not Parquet in a channel ``train``, something is missing, the service would
            not take a step, or one execution may cost more than the budget.
    """
    check_source(job.source.folder, job.source.entry_script)
    sent, changes = modern(job)
    if "train" not in sent.channels:
        raise UserError("channels.train: missing; name the S3 folder of the raw Parquet files")
    if sent.layout.launcher != "torchrun":
        raise UserError(
            "distribution.launcher = 'mpi': a pipeline's training step starts torchrun; leave it out"
        )
    _check_data(sent)
    digest = _code_digest(sent.source.folder)
    code = f"{output_of(sent)}/code/{digest}/"
    definition = definition_of(sent, code, digest)
    checked_definition(definition)
    request = {
        "PipelineName": sent.name,
        "PipelineDefinition": json.dumps(definition),
        # The same definition is the same request, so a repeated call makes nothing twice.
        "ClientRequestToken": hashlib.sha256(json.dumps(definition).encode()).hexdigest(),
        "RoleArn": sent.role,
        "Tags": [{"Key": key, "Value": str(value)} for key, value in {"dtlab": job.name, **job.tags}.items()],
    }
    aws.checked("sagemaker", "CreatePipeline", request)
    training = _bill(
        sent.compute.instance_type, sent.compute.max_run_seconds, sent.compute.instance_count, sent
    )
    steps = sent.pipeline
    processing = _bill(steps.instance_type, 4 * steps.max_run_seconds, 1, sent)
    known = sum(bill.usd for bill in (training, processing) if bill is not None)
    if sent.budget_usd is not None and known > sent.budget_usd:
        raise UserError(
            f"budget_usd = {sent.budget_usd:g}: one execution may cost ${known:,.2f}; lower "
            "compute.max_run_seconds or pipeline.max_run_seconds, or raise the budget"
        )
    notes = (*changes, *_notes(sent))
    return PipelinePlan(sent, sent.name, definition, request, code, notes, training, processing)


def _check_data(job: TrainingJob) -> None:
    """Refuse a run that does not read the channel: there is nothing to prepare from.

    Raises:
        UserError: the settings of the run do not fit, or its data are not Parquet.
    """
    hyperparameters = encode(job.hyperparameters)
    if "config" in hyperparameters:
        hyperparameters["config"] = os.path.join(job.source.folder, hyperparameters["config"])
    config = train_config({"SM_HPS": json.dumps(hyperparameters), "SM_INPUT_CONFIG_DIR": "/no/such/folder"})
    if config.data.name != "parquet":
        raise UserError(
            f"data.name = {config.data.name!r}: a pipeline's container prepares the Parquet files of the "
            "channel train; set data.name = 'parquet' and its columns"
        )


def _code_digest(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / ARCHIVE
        pack(folder, archive)
        total = hashlib.sha256(archive.read_bytes())
    total.update(Path(__file__).with_name(BOOTSTRAP).read_bytes())
    return total.hexdigest()[:16]


def _bill(kind: str, seconds: float, count: int, job: TrainingJob) -> billing.Bill | None:
    try:
        return billing.cost(kind, seconds, count=count, region=job.region)
    except UserError:
        return None


def _notes(job: TrainingJob) -> list[str]:
    notes = [
        "creating the pipeline costs nothing; an execution starts only with --start",
        "new raw data under the same address: start with another DataVersion, or the cache is used",
        "what the role and its submitter must be allowed: --rights",
    ]
    if job.compute.keep_alive_seconds:
        notes.append(
            "compute.keep_alive_seconds: the hosts of a pipeline's training step may wait, and are billed"
        )
    if job.checkpoint.s3_uri is None:
        notes.append("no checkpoint.s3_uri: a training step that fails begins at step 0 again")
    return notes
