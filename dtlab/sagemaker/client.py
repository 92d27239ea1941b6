"""Send a planned job, look at it, read its output, stop it (lesson 15). The only file that talks to AWS.

Every function takes a ``session``, by default boto3's own with the job's region: credentials come from where
boto3 looks for them. What AWS refuses becomes one line.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtlab.cost import aws, billing
from dtlab.errors import UserError
from dtlab.sagemaker import account
from dtlab.sagemaker.plan import Plan
from dtlab.sagemaker.request import ARCHIVE, BOOTSTRAP, code_folder
from dtlab.sagemaker.source import pack

__all__ = ["Clients", "JobStatus", "logs", "put_code", "split_s3", "status", "stop", "submit"]

_SAVE = re.compile(r"save-(\d+)-step-(\d+)/")
_MOST_OBJECTS = 20_000


@dataclass(frozen=True)
class JobStatus:
    """What SageMaker says about a job, and what that means.

    Attributes:
        name, state, detail: state such as ``"InProgress"``; detail such as ``"Training"``, ``"Interrupted"``.
        failure: SageMaker's FailureReason, which begins with the failing rank's own error.
        hosts: such as ``"2 x ml.g5.12xlarge"``.
        training_seconds, billable_seconds: None before they are known.
        saving: 1 - billable / training, what spot saved; None without spot or before the end.
        usd: billable seconds x hosts x price; None where one of them is not known.
        uploaded_step: of the newest whole checkpoint on S3; None where there is none.
        upload_age_seconds: since that was uploaded.
    """

    name: str
    state: str
    detail: str
    failure: str | None
    hosts: str
    training_seconds: int | None
    billable_seconds: int | None
    saving: float | None
    usd: float | None
    uploaded_step: int | None
    upload_age_seconds: float | None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ("Completed", "Failed", "Stopped")

    def uploads_are_late(self, every_seconds: float = 1800.0) -> bool:
        """Whether the newest checkpoint on S3 is older than two intervals: the upload may have stopped."""
        age = self.upload_age_seconds
        return not self.is_over and age is not None and age > 2 * every_seconds


def submit(
    plan: Plan, *, session: Any = None, alarms: bool = False, queue: dict[str, Any] | None = None
) -> str:
    """Upload the code, create the job, and with ``alarms`` an alarm for each host; the job's ARN.

    ``queue``: a request of ``batch_queue.service_job``; the job then waits in that queue of AWS Batch.

    Raises:
        UserError: no credentials, or AWS refuses; nothing runs then.
    """
    job, made = plan.job, Clients(session, plan.job.region)
    put_code(made, job.source.folder, code_folder(job, plan.name))
    # Before the job, which costs: where an alarm is refused, nothing must run.
    for alarm in account.idle_alarms(job, plan.name) if alarms else ():
        aws.call(made("cloudwatch"), "put_metric_alarm", **alarm)
    if queue is not None:
        arn = aws.call(made("batch"), "submit_service_job", **queue)["jobArn"]
    else:
        arn = aws.call(made("sagemaker"), "create_training_job", **plan.request)["TrainingJobArn"]
    return str(arn)


def put_code(made: Clients, folder: Path, uri: str) -> None:
    """Upload the packed source folder, and the script that unpacks it, to the folder ``uri``.

    Raises:
        UserError: no credentials, or AWS refuses.
    """
    bucket, prefix = split_s3(uri)
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / ARCHIVE
        pack(folder, archive)
        bootstrap = Path(__file__).with_name("bootstrap.py")
        for name, path in ((ARCHIVE, archive), (BOOTSTRAP, bootstrap)):
            aws.call(made("s3"), "put_object", Bucket=bucket, Key=prefix + name, Body=path.read_bytes())


def status(name: str, *, region: str, session: Any = None, now: datetime | None = None) -> JobStatus:
    """How the job stands, and how old its newest checkpoint on S3 is.

    Raises:
        UserError: there is no such job, or AWS refuses.
    """
    made = Clients(session, region)
    found = aws.call(made("sagemaker"), "describe_training_job", TrainingJobName=name)
    resources = found.get("ResourceConfig", {})
    kind, count = resources.get("InstanceType", "?"), int(resources.get("InstanceCount", 1))
    training, billable = found.get("TrainingTimeInSeconds"), found.get("BillableTimeInSeconds")
    is_spot = bool(found.get("EnableManagedSpotTraining"))
    step, uploaded = _newest_checkpoint(made, found.get("CheckpointConfig", {}).get("S3Uri"))
    return JobStatus(
        name=name,
        state=found["TrainingJobStatus"],
        detail=found.get("SecondaryStatus", ""),
        failure=found.get("FailureReason"),
        hosts=f"{count} x {kind}",
        training_seconds=training,
        billable_seconds=billable,
        saving=1 - billable / training if is_spot and training and billable is not None else None,
        usd=_usd(kind, count, billable, region),
        uploaded_step=step,
        upload_age_seconds=None
        if uploaded is None
        else ((now or datetime.now(UTC)) - uploaded).total_seconds(),
    )


def stop(name: str, *, region: str, session: Any = None) -> None:
    """Ask SageMaker to stop the job: SIGTERM now, SIGKILL 120 seconds later.

    Raises:
        UserError: there is no such job, it has ended, or AWS refuses.
    """
    made = Clients(session, region)
    aws.call(made("sagemaker"), "stop_training_job", TrainingJobName=name)


def logs(name: str, *, region: str, session: Any = None, most: int = 1000) -> Iterator[tuple[str, str]]:
    """The last ``most`` lines of each host, as (host, line).

    Raises:
        UserError: the job has written nothing yet, or AWS refuses.
    """
    cloudwatch = Clients(session, region)("logs")
    group = account.NAMESPACE
    try:
        streams = aws.call(
            cloudwatch, "describe_log_streams", logGroupName=group, logStreamNamePrefix=f"{name}/"
        )["logStreams"]
    except UserError as error:
        if "ResourceNotFound" not in str(error):
            raise
        streams = []
    if not streams:
        raise UserError(
            f"job = {name!r}: no output yet in {group} of {region}; check the name and the region"
        )
    for stream in sorted(stream["logStreamName"] for stream in streams):
        host = stream.removeprefix(f"{name}/").rsplit("-", 1)[0]
        told = aws.call(
            cloudwatch,
            "get_log_events",
            logGroupName=group,
            logStreamName=stream,
            limit=most,
            startFromHead=False,
        )
        for event in told["events"]:
            yield host, event["message"].rstrip("\n")


class Clients:
    """Clients of one session, made when they are first asked for."""

    def __init__(self, session: Any, region: str) -> None:
        self._session, self._region = session, region
        self._made: dict[str, Any] = {}

    def __call__(self, service: str) -> Any:
        if service not in self._made:
            if self._session is None:
                self._made[service] = aws.client(service, self._region)
            else:
                self._made[service] = self._session.client(service, region_name=self._region)
        return self._made[service]


def _newest_checkpoint(made: Clients, uri: str | None) -> tuple[int | None, datetime | None]:
    """Step of the newest whole checkpoint under ``uri``, and when its last file was uploaded."""
    if uri is None:
        return None, None
    bucket, prefix = split_s3(uri)
    found: dict[tuple[int, int], list[Any]] = {}
    token: dict[str, str] = {}
    seen = 0
    while seen < _MOST_OBJECTS:
        page = aws.call(made("s3"), "list_objects_v2", Bucket=bucket, Prefix=prefix, **token)
        for entry in page.get("Contents", []):
            match = _SAVE.search(entry["Key"])
            if match and "/." not in entry["Key"]:
                found.setdefault((int(match[1]), int(match[2])), []).append(entry)
        seen += page.get("KeyCount", 0)
        if not page.get("IsTruncated"):
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    # The description is written last; without it the upload of a checkpoint is not over.
    whole = {
        key: files for key, files in found.items() if any(f["Key"].endswith("/state.json") for f in files)
    }
    if not whole:
        return None, None
    newest = max(whole)
    return newest[1], max(entry["LastModified"] for entry in whole[newest])


def _usd(kind: str, count: int, billable: int | None, region: str) -> float | None:
    if billable is None:
        return None
    try:
        return billing.cost(kind, billable, count=count, region=region).usd
    except UserError:
        return None


def split_s3(uri: str) -> tuple[str, str]:
    """Bucket and key prefix of an S3 address.

    >>> split_s3("s3://bucket/a/b/")
    ('bucket', 'a/b/')
    """
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix
