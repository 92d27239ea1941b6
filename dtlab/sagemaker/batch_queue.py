"""The same job through an AWS Batch queue, which starts it when its turn comes (lesson 15).

SageMaker itself refuses a job beyond the account's quota. A Batch queue for service jobs keeps it and
submits it later, by priority and share.
"""

from __future__ import annotations

import json
from typing import Any

from dtlab.cost import aws
from dtlab.errors import UserError
from dtlab.sagemaker.plan import Plan

__all__ = ["service_job"]

MOST_ATTEMPTS = 10


def service_job(
    plan: Plan, queue: str, *, priority: int | None = None, share: str | None = None, attempts: int = 1
) -> dict[str, Any]:
    """A ``SubmitServiceJob`` request for AWS Batch that holds the ``CreateTrainingJob`` request.

    Args:
        plan: of the job.
        queue: name or ARN of a job queue of the type SAGEMAKER_TRAINING.
        priority: 0 to 9,999 in a queue with fair shares; higher first.
        share: share identifier in such a queue.
        attempts: submissions by Batch, 1 to 10; each is a whole job, so leave retries to one of the two.

    Raises:
        UserError: a value that Batch refuses.
    """
    if not 1 <= attempts <= MOST_ATTEMPTS:
        raise UserError(f"attempts = {attempts!r}: give 1 to {MOST_ATTEMPTS}")
    if priority is not None and not 0 <= priority <= 9999:
        raise UserError(f"priority = {priority!r}: give 0 to 9999")
    if priority is not None and share is None:
        raise UserError(f"priority = {priority}: goes with a share identifier; give share")
    # The tags go with the service job, as the queue shows them.
    payload = {name: value for name, value in plan.request.items() if name != "Tags"}
    request: dict[str, Any] = {
        "jobName": plan.name,
        "jobQueue": queue,
        "serviceJobType": "SAGEMAKER_TRAINING",
        "serviceRequestPayload": json.dumps(payload),
        "retryStrategy": {"attempts": attempts},
        "timeoutConfig": {"attemptDurationSeconds": _seconds(plan)},
        "tags": {tag["Key"]: tag["Value"] for tag in plan.request["Tags"]},
    }
    if share is not None:
        request["shareIdentifier"] = share
    if priority is not None:
        request["schedulingPriority"] = priority
    return aws.checked("batch", "SubmitServiceJob", request)


def _seconds(plan: Plan) -> int:
    """How long one attempt may take: waiting for spot hosts included."""
    return plan.job.compute.wait_seconds or plan.job.compute.max_run_seconds
