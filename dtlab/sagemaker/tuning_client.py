"""Send a planned tuning job, look at it, stop it (lesson 15)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dtlab.cost import aws, billing
from dtlab.errors import UserError
from dtlab.sagemaker.client import Clients, put_code
from dtlab.sagemaker.request import code_folder
from dtlab.sagemaker.tuning import TuningPlan

__all__ = ["TuningStatus", "stop_tuning", "submit_tuning", "tuning_status"]

_MOST_JOBS = 1000


@dataclass(frozen=True)
class TuningStatus:
    """What SageMaker says about a tuning job.

    Attributes:
        name, state: state such as ``"InProgress"``.
        failure: why it failed, in SageMaker's words.
        counts: how many training jobs ended how: Completed, InProgress, RetryableError, NonRetryableError,
            Stopped.
        jobs_at_most: training jobs that it may start.
        best: name of the best training job so far; None where there is none.
        best_metric: its objective.
        best_values: its settings, as SageMaker's text.
        seconds: of all training jobs, from start to end, added up; hosts that were shared are not.
        usd: seconds x hosts x price; None where a price is not known. Spot is billed for fewer seconds.
    """

    name: str
    state: str
    failure: str | None
    counts: dict[str, int]
    jobs_at_most: int | None
    best: str | None
    best_metric: float | None
    best_values: dict[str, str]
    seconds: float
    usd: float | None

    def lines(self) -> list[str]:
        """As aligned lines."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) or "none yet"
        limit = "" if self.jobs_at_most is None else f" of at most {self.jobs_at_most}"
        rows = [("tuning", self.name), ("state", self.state), ("jobs", counts + limit)]
        if self.failure:
            rows.append(("failure", self.failure))
        price = "" if self.usd is None else f", about ${self.usd:,.2f}"
        rows.append(("trained", f"{self.seconds:,.0f} s{price}"))
        if self.best is not None:
            metric = "" if self.best_metric is None else f", {self.best_metric:g}"
            rows.append(("best", self.best + metric))
            rows += [("", f"{name} = {value}") for name, value in self.best_values.items()]
        return [f"{field:<8} {text}" for field, text in rows]


def submit_tuning(plan: TuningPlan, *, session: Any = None) -> str:
    """Upload the code and create the tuning job; its ARN.

    Raises:
        UserError: no credentials, or AWS refuses; nothing runs then.
    """
    made = Clients(session, plan.job.region)
    put_code(made, plan.job.source.folder, code_folder(plan.job, plan.name))
    answer = aws.call(made("sagemaker"), "create_hyper_parameter_tuning_job", **plan.request)
    return str(answer["HyperParameterTuningJobArn"])


def tuning_status(
    name: str, *, region: str, session: Any = None, now: datetime | None = None
) -> TuningStatus:
    """How the tuning job stands: its training jobs, the best one, what they have cost.

    Raises:
        UserError: there is no such job, or AWS refuses.
    """
    sagemaker = Clients(session, region)("sagemaker")
    found = aws.call(sagemaker, "describe_hyper_parameter_tuning_job", HyperParameterTuningJobName=name)
    best = found.get("BestTrainingJob") or {}
    metric = best.get("FinalHyperParameterTuningJobObjectiveMetric") or {}
    resources = (found.get("TrainingJobDefinition") or {}).get("ResourceConfig") or {}
    limits = found.get("HyperParameterTuningJobConfig", {}).get("ResourceLimits", {})
    counts = {str(key): int(value) for key, value in found.get("TrainingJobStatusCounters", {}).items()}
    seconds = _seconds(sagemaker, name, now or datetime.now(UTC)) if any(counts.values()) else 0.0
    return TuningStatus(
        name=name,
        state=found["HyperParameterTuningJobStatus"],
        failure=found.get("FailureReason"),
        counts=counts,
        jobs_at_most=limits.get("MaxNumberOfTrainingJobs"),
        best=best.get("TrainingJobName"),
        best_metric=metric.get("Value"),
        best_values=best.get("TunedHyperParameters") or {},
        seconds=seconds,
        usd=_usd(resources, seconds, region),
    )


def stop_tuning(name: str, *, region: str, session: Any = None) -> None:
    """Ask SageMaker to stop the tuning job and its running training jobs.

    Raises:
        UserError: there is no such job, it has ended, or AWS refuses.
    """
    sagemaker = Clients(session, region)("sagemaker")
    aws.call(sagemaker, "stop_hyper_parameter_tuning_job", HyperParameterTuningJobName=name)


def _seconds(sagemaker: Any, name: str, now: datetime) -> float:
    """Seconds of all training jobs; one that goes on counts until now."""
    total = 0.0
    for job in _jobs(sagemaker, name):
        start = job.get("TrainingStartTime")
        if start is not None:
            total += max(0.0, ((job.get("TrainingEndTime") or now) - start).total_seconds())
    return total


def _jobs(sagemaker: Any, name: str) -> Iterator[dict[str, Any]]:
    token: dict[str, str] = {}
    seen = 0
    while seen < _MOST_JOBS:
        page = aws.call(
            sagemaker,
            "list_training_jobs_for_hyper_parameter_tuning_job",
            HyperParameterTuningJobName=name,
            **token,
        )
        yield from page["TrainingJobSummaries"]
        seen += len(page["TrainingJobSummaries"])
        if not page.get("NextToken") or not page["TrainingJobSummaries"]:
            return
        token = {"NextToken": page["NextToken"]}


def _usd(resources: dict[str, Any], seconds: float, region: str) -> float | None:
    kind, count = resources.get("InstanceType"), resources.get("InstanceCount")
    if kind is None or count is None:
        return None
    try:
        return billing.cost(kind, seconds, count=int(count), region=region).usd
    except UserError:
        return None
