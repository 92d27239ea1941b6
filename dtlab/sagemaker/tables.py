"""The tables of a job file, one frozen dataclass for each; every one checks itself (lesson 15)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dtlab.errors import UserError
from dtlab.settings_types import settle_types

__all__ = [
    "Alarm",
    "Checkpoint",
    "Compute",
    "Mlflow",
    "Network",
    "Output",
    "Rehearsal",
    "Source",
    "require_s3",
]

# No apostrophe: the SDK writes addresses into a shell file as they are.
_S3 = re.compile(r"s3://[A-Za-z0-9._-]+(/[^'\x00-\x1f\x7f]*)?")
LOCAL = ("local", "local_gpu")
MOST_KEEP_ALIVE, MOST_RETRIES = 21_600, 30
DAY = 86_400
MOST_RUN_SECONDS = 28 * DAY  # StoppingCondition of CreateTrainingJob
MOST_VOLUME_GB = 16_384  # of an EBS volume
MOST_HOSTS = 1000  # beyond it a typing error is likelier than a quota


@dataclass(frozen=True, kw_only=True)
class Source:
    """The code that runs."""

    folder: Path = Path(".")
    """Folder with the entry script, helper modules and requirements.txt; in a job file: beside that file."""
    entry_script: str = "train.py"
    """Path inside the folder."""

    def __post_init__(self) -> None:
        settle_types(self, "source")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The hosts, and for how long."""

    instance_type: str = "ml.g5.12xlarge"
    """A SageMaker training type; "local" or "local_gpu" is for a rehearsal only."""
    instance_count: int = 1
    volume_gb: int = 100
    """Training volume of each host in GB; types with NVMe disks use those instead."""
    volume_kms_key: str | None = None
    keep_alive_seconds: int = 0
    """How long hosts stay for the next job of the same kind; billed while they wait."""
    spot: bool = False
    """Managed spot: cheaper, interrupted at any time."""
    max_run_seconds: int = DAY
    """SageMaker ends the job after this time, all attempts together."""
    max_wait_seconds: int | None = None
    """With spot: most time from submission to end, waiting for hosts included; default: twice the run."""
    retries: int = 3
    """New attempts after an error of SageMaker's own; 0: none. A spot host that is taken away is no error."""
    when_retired: Literal["refuse", "replace"] = "refuse"
    """An instance type that is no longer sold: refuse it, or take its successor and say so."""
    training_plan: str | None = None
    """ARN of a training plan that the hosts come from."""

    def __post_init__(self) -> None:
        settle_types(self, "compute")
        for name, least in (
            ("instance_count", 1),
            ("volume_gb", 1),
            ("max_run_seconds", 1),
            ("retries", 0),
            ("keep_alive_seconds", 0),
        ):
            _whole(f"compute.{name}", getattr(self, name), least)
        if self.instance_count > MOST_HOSTS:
            raise UserError(f"compute.instance_count = {self.instance_count}: give at most {MOST_HOSTS}")
        for name, most in (("volume_gb", MOST_VOLUME_GB), ("max_run_seconds", MOST_RUN_SECONDS)):
            if getattr(self, name) > most:
                shown = str(getattr(self, name))[:20]
                raise UserError(f"compute.{name} = {shown}: SageMaker takes at most {most:,}")
        if self.retries > MOST_RETRIES:
            raise UserError(f"compute.retries = {self.retries}: SageMaker makes at most {MOST_RETRIES}")
        if self.keep_alive_seconds > MOST_KEEP_ALIVE:
            raise UserError(
                f"compute.keep_alive_seconds = {self.keep_alive_seconds}: SageMaker keeps hosts for at most "
                f"{MOST_KEEP_ALIVE}"
            )
        if self.when_retired not in ("refuse", "replace"):
            raise UserError(f"compute.when_retired = {self.when_retired!r}: choose 'refuse' or 'replace'")
        if self.is_local and self.instance_count > 1:
            raise UserError(
                f"compute.instance_count = {self.instance_count} with instance_type = "
                f"{self.instance_type!r}: local "
                "mode has one host; dtlab sagemaker rehearse plays several"
            )
        if self.max_wait_seconds is not None:
            _whole("compute.max_wait_seconds", self.max_wait_seconds, 1)
            if not self.spot:
                raise UserError(
                    f"compute.max_wait_seconds = {self.max_wait_seconds} with spot = false: only spot jobs "
                    "wait; "
                    "leave it out, or set compute.spot = true"
                )
            if self.max_wait_seconds < self.max_run_seconds:
                raise UserError(
                    f"compute.max_wait_seconds = {self.max_wait_seconds}: is shorter than max_run_seconds = "
                    f"{self.max_run_seconds}, which it includes; give at least that"
                )
        if self.spot and self.keep_alive_seconds:
            raise UserError(
                f"compute.keep_alive_seconds = {self.keep_alive_seconds}: spot hosts are not kept; leave it "
                "out, or "
                "set compute.spot = false"
            )

    @property
    def is_local(self) -> bool:
        """Whether the instance type stands for this machine."""
        return self.instance_type in LOCAL

    @property
    def wait_seconds(self) -> int | None:
        """``max_wait_seconds``, or its default with spot: twice the run."""
        return (self.max_wait_seconds or 2 * self.max_run_seconds) if self.spot else None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where checkpoints go, so that a job goes on after its host was taken away."""

    s3_uri: str | None = None
    """Folder on S3 with which /opt/ml/checkpoints is kept equal; the same one continues another job."""
    every_seconds: int = 1800
    """Seconds between two checkpoints; 30 minutes."""

    def __post_init__(self) -> None:
        settle_types(self, "checkpoint")
        require_s3("checkpoint.s3_uri", self.s3_uri)
        _whole("checkpoint.every_seconds", self.every_seconds, 1)


@dataclass(frozen=True, kw_only=True)
class Network:
    """In which network the hosts stand."""

    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    encrypt_between_hosts: bool = False
    """Encrypt what the hosts send each other; slower."""
    isolated: bool = False
    """No way out of the container, not even for pip."""

    def __post_init__(self) -> None:
        settle_types(self, "network")
        if bool(self.subnets) != bool(self.security_groups):
            missing = "security_groups" if self.subnets else "subnets"
            raise UserError(f"network.{missing} is empty: a VPC needs both subnets and security_groups")
        for name, most in (("subnets", 16), ("security_groups", 5)):
            if len(getattr(self, name)) > most:
                raise UserError(f"network.{name}: {len(getattr(self, name))} of them, SageMaker takes {most}")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the model and the packed code go."""

    s3_uri: str | None = None
    kms_key: str | None = None

    def __post_init__(self) -> None:
        settle_types(self, "output")
        require_s3("output.s3_uri", self.s3_uri)


@dataclass(frozen=True, kw_only=True)
class Mlflow:
    """Run records on SageMaker's MLflow."""

    arn: str | None = None
    """ARN of the tracking server or app."""
    experiment: str | None = None
    run_name: str | None = None

    def __post_init__(self) -> None:
        settle_types(self, "mlflow")
        if self.arn is None and (self.experiment or self.run_name):
            raise UserError("mlflow.arn: missing; experiment and run_name need a tracking server")
        if self.arn is not None and ":mlflow-" not in self.arn:
            raise UserError(
                f"mlflow.arn = {self.arn!r}: give an ARN such as "
                "arn:aws:sagemaker:us-east-1:111122223333:mlflow-tracking-server/name"
            )


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A CloudWatch alarm for hosts whose cards idle. CloudWatch sums utilisation over the cards of a host."""

    percent_per_card: float = 30.0
    """Mean utilisation of a card, in percent, under which the alarm goes off."""
    minutes: int = 30
    topic: str | None = None
    """ARN of the SNS topic that is told."""

    def __post_init__(self) -> None:
        settle_types(self, "alarm")
        percent = self.percent_per_card
        if not (isinstance(percent, int | float) and math.isfinite(percent) and 0 < percent < 100):
            raise UserError(
                f"alarm.percent_per_card = {percent!r}: give percent between 0 and 100, for example 30"
            )
        _whole("alarm.minutes", self.minutes, 5)
        if self.topic is not None and not re.fullmatch(r"arn:aws[a-z-]*:sns:[^:\s]+:\d{12}:\S+", self.topic):
            raise UserError(
                f"alarm.topic = {self.topic!r}: give an ARN such as arn:aws:sns:us-east-1:111122223333:name"
            )


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """How ``dtlab sagemaker rehearse`` shrinks the job to this machine."""

    hosts: int | None = None
    """Hosts that are played; default: two, or one where the job has one."""
    ranks_per_host: int = 2
    channels: Mapping[str, Path] = field(default_factory=dict)
    """Channel -> folder of this machine with small data; in a job file: beside that file."""
    rows: int = 20_000
    """Rows of the generated click log that stands in for each channel without a folder."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of the job, to make it short."""

    def __post_init__(self) -> None:
        settle_types(self, "rehearsal")
        if self.hosts is not None:
            _whole("rehearsal.hosts", self.hosts, 1)
        _whole("rehearsal.ranks_per_host", self.ranks_per_host, 1)
        _whole("rehearsal.rows", self.rows, 1)


def require_s3(field: str, value: str | None) -> None:
    """Refuse what is no S3 address; None passes."""
    if value is None:
        return
    if not isinstance(value, str) or not _S3.fullmatch(value):
        raise UserError(f"{field} = {value!r}: give an S3 address such as s3://bucket/folder/")


def _whole(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{field} = {value!r}: give a whole number of {least} or more")
