"""A training job: what is run, on which hosts, with which data; checked where it is built (lesson 15).

``TrainingJob`` holds a job as its owner wrote it. ``modern(job)`` is the job that is sent: retired instances
are replaced where the job allows it, and each change has its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dtlab.cost import catalogue, spot
from dtlab.errors import UserError
from dtlab.sagemaker.distribution import Layout, translate
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.pipeline_table import Steps
from dtlab.sagemaker.tables import (
    Alarm,
    Checkpoint,
    Compute,
    Mlflow,
    Network,
    Output,
    Rehearsal,
    Source,
    require_s3,
)
from dtlab.settings_types import settle_types

__all__ = ["TrainingJob", "modern"]

MOST_NAME = 42  # 63, less a time and four letters that make it unique
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_TAG = re.compile(r"[\w .:/=+@-]*")  # what tags are made of: letters of any script
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|PRIVATE|CREDENTIAL|API_?KEY", re.IGNORECASE)
RESERVED_CHANNELS = ("code", "sm_drivers")
# The rate of scenario reports; SageMaker publishes none.
_INTERRUPTIONS_PER_HOUR = 0.15


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A job for SageMaker.

    Attributes:
        name: beginning of the job's name; a time and four letters are added.
        role: ARN of the role that the job takes.
        region: AWS region.
        image: training image; default: AWS's PyTorch image of us-east-1.
        budget_usd: a job that may cost more is refused.
        hyperparameters: name -> value; sent as text.
        environment: variables of the container.
        channels: name -> S3 folder, found in the container under /opt/ml/input/data/<name>.
        distribution: see ``dtlab.sagemaker.distribution``.
        metrics: name -> regular expression over the output, with one group.
        tags: of the job.
        quotas: instance type -> how many the account may use, where known.

    Raises:
        UserError: the first field that is wrong, its value and the way out.

    >>> job = TrainingJob(name="demo", compute=Compute(instance_count=2))
    >>> job.layout.launcher, job.world_size
    ('torchrun', 8)
    """

    name: str = "dtlab"
    role: str | None = None
    region: str = "us-east-1"
    image: str | None = None
    budget_usd: float | None = None
    source: Source = field(default_factory=Source)
    compute: Compute = field(default_factory=Compute)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    network: Network = field(default_factory=Network)
    output: Output = field(default_factory=Output)
    mlflow: Mlflow = field(default_factory=Mlflow)
    alarm: Alarm = field(default_factory=Alarm)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    pipeline: Steps = field(default_factory=Steps)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    distribution: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settle_types(self, "")
        if not (_NAME.fullmatch(self.name) and len(self.name) <= MOST_NAME):
            raise UserError(
                f"name = {self.name!r}: give at most {MOST_NAME} letters, digits and hyphens, beginning and "
                "ending "
                "with a letter or digit"
            )
        if self.role is not None and not _ROLE.fullmatch(self.role):
            raise UserError(f"role = {self.role!r}: give an ARN such as arn:aws:iam::111122223333:role/name")
        if not _REGION.fullmatch(self.region):
            raise UserError(f"region = {self.region!r}: give one such as us-east-1")
        if self.image is not None and not _IMAGE.fullmatch(self.image):
            raise UserError(f"image = {self.image!r}: give the address of an image in ECR, or leave it out")
        budget = self.budget_usd
        if budget is not None and (isinstance(budget, bool) or not 0 < budget < float("inf")):
            raise UserError(f"budget_usd = {budget!r}: give dollars above 0")
        encode(self.hyperparameters)
        encode(self.rehearsal.hyperparameters)
        self._check_environment()
        self._check_channels()
        for name, pattern in self.metrics.items():
            _check_metric(name, pattern)
        for name, value in self.tags.items():
            if not isinstance(value, str | int | float):
                raise UserError(f"tags.{name} = {value!r}: give text")
            if not name or name.lower().startswith("aws:") or not _TAG.fullmatch(name + str(value)):
                raise UserError(
                    f"tags.{name} = {value!r}: a tag takes letters, digits, spaces and . : / = + - @ _, and "
                    "no name that begins with aws:"
                )
        for name, allowed in self.quotas.items():
            if isinstance(allowed, bool) or not isinstance(allowed, int) or allowed < 0:
                raise UserError(f"quotas.{name} = {allowed!r}: give the number of hosts that are allowed")
        for limit, what in ((40, "metrics"), (50, "tags"), (19, "channels"), (80, "environment")):
            if len(getattr(self, what)) > limit:
                raise UserError(f"{what}: {len(getattr(self, what))} of them; at most {limit} fit into a job")
        self._check_hosts()

    @property
    def layout(self) -> Layout:
        """How the hosts start their ranks."""
        return translate(self.distribution)

    @property
    def cards(self) -> int:
        """GPUs of one host; 0 where it has none or is this machine."""
        return 0 if self.compute.is_local else _instance(self.compute.instance_type).gpus

    @property
    def ranks_per_host(self) -> int:
        """Ranks that one host starts."""
        return self.layout.ranks_per_host or max(1, self.cards_used)

    @property
    def cards_used(self) -> int:
        """Cards of a host that the job may use: all, or as many as the variable SM_NUM_GPUS says."""
        return int(self.environment.get("SM_NUM_GPUS") or self.cards)

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.ranks_per_host * self.compute.instance_count

    def _check_environment(self) -> None:
        for name, value in self.environment.items():
            where = f"environment.{name}"
            if not _VARIABLE.fullmatch(name):
                raise UserError(f"{where}: is no name of a variable; use letters, digits and _")
            if not isinstance(value, str):
                raise UserError(f"{where} = {value!r}: give text")
            if _SECRET.search(name):
                raise UserError(
                    f"{where}: everyone who may describe the job can read it, and the SDK prints it; "
                    "keep secrets in Secrets Manager"
                )
            if "\0" in value:
                raise UserError(f"{where} = {value!r}: has a null byte; leave it out")
            if len(value) > 512:
                raise UserError(f"{where}: {len(value)} characters, SageMaker takes 512")

    def _check_channels(self) -> None:
        for name, uri in self.channels.items():
            if name in RESERVED_CHANNELS:
                raise UserError(f"channels.{name}: the name is taken by the job's code; choose another")
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
                raise UserError(f"channels.{name}: give a name of letters, digits, '.', '_' and '-'")
            require_s3(f"channels.{name}", uri)

    def _check_hosts(self) -> None:
        compute, layout = self.compute, self.layout
        if compute.is_local:
            return
        asked = self.environment.get("SM_NUM_GPUS", "")
        if asked and not (asked.isdecimal() and int(asked) <= self.cards):
            raise UserError(
                f"environment.SM_NUM_GPUS = {asked!r}: give the cards of a host to use, 0 to {self.cards}"
            )
        found = _instance(compute.instance_type)
        if found.retired and compute.when_retired == "refuse":
            named = " or ".join(f"ml.{name}" for name in found.successors)
            raise UserError(
                f"compute.instance_type = {compute.instance_type!r}: no longer sold; take {named}, or set "
                "compute.when_retired = 'replace'"
            )
        if self.cards_used and (layout.ranks_per_host or 1) > self.cards_used:
            limit = f"SM_NUM_GPUS = {asked}" if asked else f"{compute.instance_type} has {found.gpus} cards"
            raise UserError(
                f"distribution.ranks_per_host = {layout.ranks_per_host}: {limit}, and NCCL takes one rank a "
                f"card; give at most {self.cards_used}"
            )
        if self.world_size % layout.stages:
            raise UserError(
                f"distribution.stages = {layout.stages}: does not divide the {self.world_size} ranks "
                f"({compute.instance_count} hosts x {self.ranks_per_host})"
            )
        if compute.spot and self.checkpoint.s3_uri is None:
            seconds = spot.expected_wall_seconds(
                compute.max_run_seconds, spot.mtbf_seconds(_INTERRUPTIONS_PER_HOUR, compute.instance_count)
            )
            raise UserError(
                f"compute.spot = true without checkpoint.s3_uri: each interruption begins at step 0. At "
                f"{_INTERRUPTIONS_PER_HOUR:g} interruptions an hour and host "
                f"{compute.max_run_seconds / 3600:,.1f} h of "
                f"work take {_hours(seconds)} on average; name a folder on S3"
            )
        allowed = self.quotas.get(compute.instance_type)
        if allowed is not None and compute.instance_count > allowed:
            raise UserError(
                f"compute.instance_count = {compute.instance_count}: the account's quota for "
                f"{compute.instance_type} is {allowed} (quotas); ask for more in Service Quotas, or take "
                "fewer"
            )


def modern(job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job that is sent today, and a line for each thing that is not as ``job`` says.

    >>> old = TrainingJob(compute=Compute(instance_type="ml.p3.8xlarge", when_retired="replace"))
    >>> modern(old)[0].compute.instance_type
    'ml.g5.12xlarge'
    """
    lines = list(job.layout.changes)
    if not job.compute.is_local:
        old = _instance(job.compute.instance_type)
        if old.retired:
            named = [_instance(f"ml.{name}") for name in old.successors]
            new = next((one for one in named if one.gpus == old.gpus), named[0])
            lines.insert(
                0,
                f"{old.sagemaker_name} -> {new.sagemaker_name}: {old.name.split('.')[0]} is no longer "
                f"sold; {_cards(old)} become {_cards(new)}",
            )
            job = replace(job, compute=replace(job.compute, instance_type=new.sagemaker_name))
    return job, tuple(lines)


def _cards(found: catalogue.Instance) -> str:
    memory = f" of {found.gpu_memory_gib:g} GiB" if found.gpu_memory_gib else ""
    return f"{found.gpus} {found.gpu}{memory} ({found.interconnect or 'interconnect unknown'})"


def _instance(name: str) -> catalogue.Instance:
    if not name.startswith("ml."):
        right = "ml." + name.strip().lower().removeprefix("ml.")
        raise UserError(
            f"compute.instance_type = {name!r}: SageMaker's types begin with ml.; write {right!r}"
        )
    try:
        return catalogue.instance(name)
    except UserError as error:
        raise UserError(f"compute.instance_type: {error}") from None


def _check_metric(name: str, pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except (re.error, TypeError) as error:
        raise UserError(f"metrics.{name} = {pattern!r}: no regular expression ({error})") from None
    if groups != 1:
        raise UserError(
            f"metrics.{name} = {pattern!r}: put the number into one group, for example 'loss=([0-9.]+)'"
        )
    if len(pattern) > 500:
        raise UserError(f"metrics.{name}: {len(pattern)} characters, SageMaker takes 500")


def _hours(seconds: float) -> str:
    digits = 1 if seconds < 360_000 else 0  # "1.0 h of work take 1 h" would say nothing
    return f"{seconds / 3600:,.{digits}f} h" if seconds < 3.6e9 else "more than a hundred years"
