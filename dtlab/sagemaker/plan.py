"""A job's plan: the request with everything to know before it is sent, in one object (lesson 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtlab.cost import aws, billing, catalogue
from dtlab.errors import UserError
from dtlab.sagemaker import account
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.request import create_training_job, unique_name
from dtlab.sagemaker.source import check_source, packed_names

__all__ = ["Plan", "make_plan"]

_SPOT_RANGE = (0.2, 1.0)  # of the on-demand price; what has been seen lies inside


@dataclass(frozen=True)
class Plan:
    """Attributes:
    job: as it is sent.
    name: of the training job.
    request: for ``CreateTrainingJob``.
    files: names in the source folder that travel with it.
    changes: what is not as the job file says, and why.
    notes: what to know before the job is sent.
    bill: of the longest run; None where no price is known.
    """

    job: TrainingJob
    name: str
    request: dict[str, Any]
    files: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    bill: billing.Bill | None

    @property
    def usd_at_most(self) -> float | None:
        """Dollars if the job runs until SageMaker ends it, without spot's discount; None: no price is
        known."""
        return None if self.bill is None else self.bill.usd

    def price_lines(self) -> list[str]:
        """What the job may cost, a line each."""
        compute = self.job.compute
        if self.bill is None:
            return [_no_price(self.job)]
        lines = [f"at most {self.bill.line()}"]
        if compute.spot:
            low, usual, high = (
                self.bill.usd * share
                for share in (_SPOT_RANGE[0], billing.DEFAULT_SPOT_FRACTION, _SPOT_RANGE[1])
            )
            lines.append(
                f"spot: about ${usual:,.2f}, an estimate ({billing.DEFAULT_SPOT_FRACTION:.0%} of on-demand; "
                f"${low:,.2f} to ${high:,.2f}); SageMaker bills fewer seconds at the same rate"
            )
        if compute.keep_alive_seconds:
            idle = billing.cost(
                compute.instance_type,
                compute.keep_alive_seconds,
                count=compute.instance_count,
                region=self.job.region,
            )
            lines.append(f"warm pool: up to {idle.line()} while the hosts wait for the next job")
        if self.job.budget_usd is not None:
            lines.append(f"budget: ${self.job.budget_usd:,.2f}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.name,
            "world_size": self.job.world_size,
            "hosts": self.job.compute.instance_count,
            "ranks_per_host": self.job.ranks_per_host,
            "launcher": self.job.layout.launcher,
            "changes": list(self.changes),
            "notes": list(self.notes),
            "price": self.price_lines(),
            "usd_at_most": None if self.usd_at_most is None else round(self.usd_at_most, 2),
            "files": list(self.files),
            "quotas": [vars(quota) for quota in account.quotas(self.job)],
            "request": self.request,
            "alarms": account.idle_alarms(self.job, self.name),
            "role": {"trust": account.trust_policy(), "policy": account.role_policy(self.job)},
            "submitter": account.submitter_policy(self.job),
        }


def make_plan(job: TrainingJob, *, name: str | None = None) -> Plan:
    """Check the job as far as this machine can, and say what it will be. Nothing is sent.

    Raises:
        UserError: the entry script is not there, the request is not one that the service takes, the job may
            cost more than its budget.
    """
    check_source(job.source.folder, job.source.entry_script)
    sent, changes = modern(job)
    name = unique_name(sent) if name is None else name
    request = create_training_job(sent, name)
    aws.checked("sagemaker", "CreateTrainingJob", request)
    for alarm in account.idle_alarms(sent, name):
        aws.checked("cloudwatch", "PutMetricAlarm", alarm)
    bill = _bill(sent)
    if bill is not None and job.budget_usd is not None and bill.usd > job.budget_usd:
        seconds = int(job.budget_usd / bill.usd * bill.seconds)
        raise UserError(
            f"budget_usd = {job.budget_usd:g}: the job may cost {bill.line()}; lower compute.max_run_seconds "
            "to "
            f"{seconds}, or raise the budget"
        )
    files = tuple(packed_names(sent.source.folder))
    return Plan(sent, name, request, files, changes, tuple(_notes(sent, files)), bill)


def _bill(job: TrainingJob) -> billing.Bill | None:
    compute = job.compute
    try:
        return billing.cost(
            compute.instance_type, compute.max_run_seconds, count=compute.instance_count, region=job.region
        )
    except UserError:
        return None


def _no_price(job: TrainingJob) -> str:
    try:
        catalogue.instance(job.compute.instance_type).price("sagemaker", job.region)
    except UserError as error:
        return f"no price: {error}"
    return "no price is known"


def _notes(job: TrainingJob, files: tuple[str, ...]) -> list[str]:
    compute, layout, notes = job.compute, job.layout, []
    if compute.spot and compute.max_wait_seconds is None:
        notes.append(
            f"max_wait_seconds is not given: {compute.wait_seconds} are taken, twice max_run_seconds"
        )
    if compute.retries:
        notes.append(
            f"{compute.retries} retries are for errors of SageMaker's own; max_run_seconds holds for all "
            "attempts "
            "together" + (", and a spot host that is taken away counts as none" if compute.spot else "")
        )
    if job.checkpoint.s3_uri is None:
        notes.append("no checkpoint.s3_uri: a job that is stopped or fails begins at step 0 again")
    elif job.checkpoint.every_seconds >= compute.max_run_seconds:
        notes.append(
            f"checkpoint.every_seconds = {job.checkpoint.every_seconds} is not below max_run_seconds = "
            f"{compute.max_run_seconds}: a checkpoint is written on SIGTERM only"
        )
    if job.cards > job.ranks_per_host:
        idle = (job.cards - job.ranks_per_host) * compute.instance_count
        notes.append(
            f"{idle} of {job.cards * compute.instance_count} cards idle and are billed: "
            f"{job.ranks_per_host} ranks a host, {job.cards} cards"
        )
    if layout.launcher == "mpi":
        notes.append("mpirun passes no SIGTERM on to the ranks: only checkpoints by the clock survive a stop")
    if catalogue.instance(compute.instance_type).nvme_gb:
        notes.append(f"{compute.instance_type} has NVMe disks: volume_gb = {compute.volume_gb} is not used")
    if compute.instance_count > 1 and not catalogue.instance(compute.instance_type).efa:
        notes.append(f"{compute.instance_type} has no EFA: gradients cross the hosts by TCP")
    if job.network.isolated and "requirements.txt" in files:
        notes.append("network.isolated: pip cannot install requirements.txt; put the packages into the image")
    notes += _requirement_notes(job, files)
    return notes


def _requirement_notes(job: TrainingJob, files: tuple[str, ...]) -> list[str]:
    if "requirements.txt" not in files:
        return ["no requirements.txt in the source folder: the image must hold what dtlab needs"]
    lines = (job.source.folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [line.split("#")[0].strip().lower() for line in lines]
    needs = []
    if job.mlflow.arn and not any(name.startswith("sagemaker-mlflow") for name in names):
        needs.append(
            "mlflow.arn: requirements.txt does not name sagemaker-mlflow, by which mlflow finds the server"
        )
    return needs + [
        f"requirements.txt names {name!r}: it replaces the build of the image, which fits its CUDA and NCCL"
        for name in names
        if name.replace("=", " ").replace(">", " ").replace("<", " ").split()[:1] == ["torch"]
    ]
