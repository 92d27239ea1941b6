"""The ``CreateHyperParameterTuningJob`` request of a job and a space, checked offline (lesson 15).

The tuning API has no ``ContainerEntrypoint``: a tuned job runs the image's own toolkit. The SDK does not tell
the toolkit to start torchrun, so its tuned jobs run one plain process a host and leave the other cards idle.
Here the toolkit's own settings travel as static hyper-parameters, ``sagemaker_torch_distributed_enabled``
among them, and the toolkit starts torchrun with all ranks on every host.

What the API cannot carry, or the toolkit does not do, is said in a note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dtlab.cost import aws, billing
from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.request import ARCHIVE, code_folder, create_training_job, unique_name, wanted
from dtlab.sagemaker.source import check_source
from dtlab.tune.space import Choice, Space

__all__ = ["TuningPlan", "make_tuning_plan"]

Strategy = Literal["Bayesian", "Hyperband", "Random"]
_MOST_JOBS = 10_000  # the service's own limit, of a random search
_MOST_NAME = 32  # of a tuning job; its training jobs add to it
_PASSED_ON = (
    "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig", "ResourceConfig", "VpcConfig",
    "StoppingCondition", "EnableManagedSpotTraining", "EnableNetworkIsolation", "CheckpointConfig",
    "EnableInterContainerTrafficEncryption", "RetryStrategy", "Environment",
)  # fmt: skip


@dataclass(frozen=True)
class TuningPlan:
    """Attributes:
    job: every training job, but for what is searched.
    name: of the tuning job.
    request: for ``CreateHyperParameterTuningJob``.
    notes: what to know before it is sent.
    bill: of all training jobs if each runs as long as it may; None where no price is known.
    """

    job: TrainingJob
    name: str
    request: dict[str, Any]
    notes: tuple[str, ...]
    bill: billing.Bill | None

    @property
    def usd_at_most(self) -> float | None:
        """Dollars if every training job runs until SageMaker ends it; None: no price is known."""
        return None if self.bill is None else self.bill.usd


def make_tuning_plan(
    job: TrainingJob,
    space: Space,
    *,
    objective: str,
    strategy: Strategy = "Bayesian",
    maximize: bool = True,
    jobs: int = 12,
    parallel: int = 2,
    resource: tuple[int, int] = (1, 9),
    seed: int = 0,
    name: str | None = None,
) -> TuningPlan:
    """Check the tuning job as far as this machine can. Nothing is sent.

    Args:
        job: every training job, but for the settings of ``space``.
        space: what is searched.
        objective: name of one of the job's metrics, printed at every validation.
        strategy: Bayesian, Hyperband or Random.
        maximize: whether a larger objective is better.
        jobs: training jobs in all.
        parallel: at a time.
        resource: Hyperband's least and largest number of printed objectives.
        seed: of the search.
        name: of the tuning job; by default one that is unique.

    Raises:
        UserError: the objective is none of the job's metrics, a setting is fixed and searched, the jobs may
            cost more than the budget, or the service would not take the request.
    """
    if objective not in job.metrics:
        known = ", ".join(job.metrics) or "none"
        raise UserError(
            f"objective = {objective!r}: none of the job's metrics ({known}); add it to [metrics]"
        )
    both = [setting for setting in space if setting in job.hyperparameters]
    if both:
        raise UserError(f"hyperparameters.{both[0]}: is searched as well; leave it out of one of the two")
    if job.layout.launcher != "torchrun":
        raise UserError("distribution.launcher = 'mpi': tuned jobs are started by torchrun; leave it out")
    check_source(job.source.folder, job.source.entry_script)
    if not 1 <= jobs <= _MOST_JOBS:
        raise UserError(f"jobs = {str(jobs)[:20]}: give 1 to {_MOST_JOBS:,}")
    if not 1 <= parallel <= jobs:
        raise UserError(f"parallel = {parallel}: give 1 to jobs = {jobs}")
    if not 1 <= resource[0] < resource[1]:
        raise UserError(f"resource = {resource}: give a least number of 1 or more, and a larger one")
    sent, changes = modern(job)
    name = _short(unique_name(sent)) if name is None else name
    config: dict[str, Any] = {
        "Strategy": strategy,
        "HyperParameterTuningJobObjective": {
            "Type": "Maximize" if maximize else "Minimize",
            "MetricName": objective,
        },
        "ResourceLimits": {"MaxNumberOfTrainingJobs": jobs, "MaxParallelTrainingJobs": parallel},
        "ParameterRanges": _ranges(space),
        # Hyperband stops jobs by itself, and the service then takes no other rule.
        "TrainingJobEarlyStoppingType": "Off" if strategy == "Hyperband" else "Auto",
        "RandomSeed": seed,
    }
    if strategy == "Hyperband":
        limits = {"MinResource": resource[0], "MaxResource": resource[1]}
        config["StrategyConfig"] = {"HyperbandStrategyConfig": limits}
    request = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": config,
        "TrainingJobDefinition": _definition(sent, name),
        "Tags": [{"Key": key, "Value": str(value)} for key, value in {"dtlab": job.name, **job.tags}.items()],
    }
    aws.checked("sagemaker", "CreateHyperParameterTuningJob", request)
    bill = _bill(sent, jobs)
    if bill is not None and job.budget_usd is not None and bill.usd > job.budget_usd:
        fits = int(jobs * job.budget_usd / bill.usd)
        raise UserError(
            f"budget_usd = {job.budget_usd:g}: {jobs} jobs may cost {bill.line()}; take {fits} jobs, lower "
            "compute.max_run_seconds, or raise the budget"
        )
    return TuningPlan(sent, name, request, (*changes, *_notes(sent, name)), bill)


def _definition(job: TrainingJob, name: str) -> dict[str, Any]:
    """The training job's request without what the tuning API lacks, started by the image's toolkit."""
    whole = create_training_job(job, name)
    found = {key: whole[key] for key in _PASSED_ON if key in whole}
    algorithm = dict(found["AlgorithmSpecification"])
    del algorithm["ContainerEntrypoint"], algorithm["ContainerArguments"]
    found["AlgorithmSpecification"] = algorithm
    channels = [each for each in found["InputDataConfig"] if each["ChannelName"] != "code"]
    del found["InputDataConfig"]
    if channels:
        found["InputDataConfig"] = channels
    found["ResourceConfig"] = {
        key: value for key, value in found["ResourceConfig"].items() if key != "KeepAlivePeriodInSeconds"
    }
    found["Environment"] = found["Environment"] | wanted(found["Environment"])
    found["StaticHyperParameters"] = encode(job.hyperparameters) | _toolkit(job, name)
    return found


def _toolkit(job: TrainingJob, name: str) -> dict[str, str]:
    """The image's toolkit reads each of its settings as JSON."""
    values = {
        "sagemaker_program": job.source.entry_script,
        "sagemaker_submit_directory": code_folder(job, name) + ARCHIVE,
        "sagemaker_region": job.region,
        "sagemaker_container_log_level": 20,
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": job.ranks_per_host,
    }
    return {key: json.dumps(value) for key, value in values.items()}


def _ranges(space: Space) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for name, each in space.items():
        if isinstance(each, Choice):
            texts = list(encode({str(number): value for number, value in enumerate(each.values)}).values())
            found.setdefault("CategoricalParameterRanges", []).append({"Name": name, "Values": texts})
            continue
        kind = "IntegerParameterRanges" if each.is_whole else "ContinuousParameterRanges"
        scale = "Logarithmic" if each.log else "Linear"
        limits = {"MinValue": str(each.low), "MaxValue": str(each.high), "ScalingType": scale}
        found.setdefault(kind, []).append({"Name": name, **limits})
    return found


def _bill(job: TrainingJob, jobs: int) -> billing.Bill | None:
    compute = job.compute
    try:
        seconds, count = compute.max_run_seconds * jobs, compute.instance_count
        return billing.cost(compute.instance_type, seconds, count=count, region=job.region)
    except UserError:
        return None


def _notes(job: TrainingJob, name: str) -> list[str]:
    notes = [
        f"the packed source folder goes to {code_folder(job, name)}{ARCHIVE}",
        "the toolkit passes no SIGTERM on to the ranks: only checkpoints by the clock survive a stop",
    ]
    if job.compute.keep_alive_seconds:
        notes.append("compute.keep_alive_seconds: left out; a tuned job cannot keep its hosts warm")
    if job.mlflow.arn:
        notes.append("mlflow.arn: only as MLFLOW_TRACKING_URI; the tuning API has no field for it")
    if job.checkpoint.s3_uri:
        notes.append("checkpoint.s3_uri: SageMaker gives each training job its own folder below it")
    return notes


def _short(unique: str) -> str:
    """A name of at most 32 characters that keeps the time and the letters that make it unique."""
    stem, tail = unique[:-21], unique[-21:].lstrip("-")
    return f"{stem[: _MOST_NAME - 1 - len(tail)].rstrip('-')}-{tail}"
