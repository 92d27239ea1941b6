"""What an account must have for a job: quotas, a role, an alarm for cards that idle (lesson 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtlab.sagemaker.job import TrainingJob

__all__ = [
    "Quota", "idle_alarms", "pipeline_role_policy", "pipeline_submitter_policy", "quotas", "role_policy",
    "submitter_policy", "trust_policy",
]  # fmt: skip

NAMESPACE = "/aws/sagemaker/TrainingJobs"


@dataclass(frozen=True)
class Quota:
    """A line of Service Quotas that the job needs, and how much of it."""

    name: str
    needed: int
    allowed: int | None
    """What the job file says that the account has; None: look it up."""


def quotas(job: TrainingJob) -> list[Quota]:
    """The quotas that decide whether the job can start; new accounts have 0 of most types.

    >>> quotas(TrainingJob())[0].name
    'ml.g5.12xlarge for training job usage'
    """
    compute = job.compute
    kind, allowed = compute.instance_type, job.quotas.get(compute.instance_type)
    usage = "spot training job usage" if compute.spot else "training job usage"
    found = [Quota(f"{kind} for {usage}", compute.instance_count, allowed)]
    if compute.keep_alive_seconds:
        found.append(Quota(f"{kind} for training warm pool usage", compute.instance_count, None))
    return found


def idle_alarms(job: TrainingJob, name: str) -> list[dict[str, Any]]:
    """A ``PutMetricAlarm`` request for each host; [] without cards.

    CloudWatch's GPUUtilization adds up the cards of a host: four busy cards give 400, and one busy card
    among four looks like 100 %. So the threshold is that of a card times the cards.
    """
    cards, alarm = job.cards, job.alarm
    return [
        {
            "AlarmName": f"{name}-algo-{host}-gpus-idle",
            "AlarmDescription": f"cards under {alarm.percent_per_card:g} % for {alarm.minutes} minutes",
            "Namespace": NAMESPACE,
            "MetricName": "GPUUtilization",
            "Dimensions": [{"Name": "Host", "Value": f"{name}/algo-{host}"}],
            "Statistic": "Average",
            "Period": 300,
            "EvaluationPeriods": max(1, alarm.minutes // 5),
            "Threshold": alarm.percent_per_card * cards,
            "ComparisonOperator": "LessThanThreshold",
            "TreatMissingData": "notBreaching",
            **({"AlarmActions": [alarm.topic]} if alarm.topic else {}),
        }
        for host in range(1, job.compute.instance_count + 1)
        if cards
    ]


def trust_policy() -> dict[str, Any]:
    """Who may take the role: SageMaker."""
    principal = {"Service": "sagemaker.amazonaws.com"}
    return _policy({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})


def role_policy(job: TrainingJob) -> dict[str, Any]:
    """The least that the job's role must be allowed."""
    reads = [*job.channels.values(), *([job.output.s3_uri] if job.output.s3_uri else [])]
    writes = [uri for uri in (job.output.s3_uri, job.checkpoint.s3_uri) if uri]
    buckets = sorted({_arn(uri).partition("/")[0] for uri in (*reads, *writes)})
    statements = [
        _allow(["s3:GetObject"], sorted({_arn(uri) for uri in (*reads, *writes)})),
        _allow(["s3:PutObject", "s3:DeleteObject"], sorted({_arn(uri) for uri in writes})),
        _allow(["s3:ListBucket"], buckets),
        _allow(
            ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
            [f"arn:aws:logs:{job.region}:*:log-group:{NAMESPACE}*"],
        ),
        _allow(["cloudwatch:PutMetricData"], ["*"]),
        _allow(
            [
                "ecr:GetAuthorizationToken",
                "ecr:BatchGetImage",
                "ecr:GetDownloadUrlForLayer",
                "ecr:BatchCheckLayerAvailability",
            ],
            ["*"],
        ),
    ]
    if job.network.subnets:
        interfaces = [
            "CreateNetworkInterface",
            "CreateNetworkInterfacePermission",
            "DeleteNetworkInterface",
            "DeleteNetworkInterfacePermission",
            "DescribeNetworkInterfaces",
            "DescribeVpcs",
            "DescribeDhcpOptions",
            "DescribeSubnets",
            "DescribeSecurityGroups",
        ]
        statements.append(_allow([f"ec2:{action}" for action in interfaces], ["*"]))
    keys = sorted({key for key in (job.output.kms_key, job.compute.volume_kms_key) if key})
    if keys:
        statements.append(
            _allow(["kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"], keys)
        )
    if job.mlflow.arn:
        statements.append(_allow(["sagemaker-mlflow:*"], [job.mlflow.arn]))
    return _policy(*(statement for statement in statements if statement["Resource"]))


def submitter_policy(job: TrainingJob) -> dict[str, Any]:
    """The least that the person who submits, watches and stops the job must be allowed."""
    jobs = f"arn:aws:sagemaker:{job.region}:*:training-job/{job.name}-*"
    statements = [
        _allow(
            [
                "sagemaker:CreateTrainingJob",
                "sagemaker:DescribeTrainingJob",
                "sagemaker:StopTrainingJob",
                "sagemaker:AddTags",
            ],
            [jobs],
        ),
        _allow(
            ["logs:DescribeLogStreams", "logs:GetLogEvents"],
            [f"arn:aws:logs:{job.region}:*:log-group:{NAMESPACE}*"],
        ),
        _allow(["cloudwatch:PutMetricAlarm"], [f"arn:aws:cloudwatch:{job.region}:*:alarm:{job.name}-*"]),
        _allow(["s3:PutObject"], [_arn(job.output.s3_uri)] if job.output.s3_uri else []),
        _pass_role(job),
    ]
    return _policy(*(statement for statement in statements if statement["Resource"]))


def pipeline_role_policy(job: TrainingJob, folder: str) -> dict[str, Any]:
    """The least that the role of the job's pipeline must be allowed: what its jobs do, and starting them.

    Args:
        job: the training job.
        folder: S3 folder of the pipeline's code and outputs.
    """
    named = [
        f"arn:aws:sagemaker:{job.region}:*:{kind}/pipelines-*" for kind in ("processing-job", "training-job")
    ]
    group = job.pipeline.group or job.name
    models = [
        f"arn:aws:sagemaker:{job.region}:*:{kind}/{group}*"
        for kind in ("model-package-group", "model-package")
    ]
    jobs = [
        f"sagemaker:{verb}{kind}"
        for kind in ("ProcessingJob", "TrainingJob")
        for verb in ("Create", "Describe", "Stop")
    ]
    statements = [
        *role_policy(job)["Statement"],
        _allow(["s3:GetObject", "s3:PutObject"], [_arn(folder)]),
        _allow([*jobs, "sagemaker:AddTags"], named),
        _allow(
            [
                "sagemaker:CreateModelPackageGroup",
                "sagemaker:DescribeModelPackageGroup",
                "sagemaker:CreateModelPackage",
            ],
            models,
        ),
        _pass_role(job),
    ]
    return _policy(*(statement for statement in statements if statement["Resource"]))


def pipeline_submitter_policy(job: TrainingJob, folder: str) -> dict[str, Any]:
    """The least that the person who creates, starts and watches the pipeline must be allowed."""
    verbs = ("CreatePipeline", "UpdatePipeline", "DescribePipeline", "StartPipelineExecution", "AddTags",
             "DescribePipelineExecution", "ListPipelineExecutionSteps", "StopPipelineExecution")  # fmt: skip
    own = f"arn:aws:sagemaker:{job.region}:*:pipeline/{job.name}"
    statements = [
        _allow([f"sagemaker:{verb}" for verb in verbs], [own, f"{own}/*"]),
        _allow(["sagemaker:ListPipelines"], ["*"]),
        _allow(["s3:PutObject"], [_arn(folder)]),
        _pass_role(job),
    ]
    return _policy(*(statement for statement in statements if statement["Resource"]))


def _pass_role(job: TrainingJob) -> dict[str, Any]:
    return {
        **_allow(["iam:PassRole"], [job.role] if job.role else []),
        "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
    }


def _arn(uri: str) -> str:
    return f"arn:aws:s3:::{uri.removeprefix('s3://').rstrip('/')}/*"


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
