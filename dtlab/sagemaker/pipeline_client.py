"""Create or change a planned pipeline, start it, look at an execution (lesson 16)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from dtlab.cost import aws
from dtlab.errors import UserError
from dtlab.sagemaker.client import Clients, put_code
from dtlab.sagemaker.pipeline import PipelinePlan

__all__ = ["put_pipeline", "require_parameters", "start_pipeline"]


def put_pipeline(plan: PipelinePlan, *, session: Any = None) -> tuple[str, bool]:
    """Upload the code and create the pipeline, or change the one of that name.

    Returns:
        Its ARN, and whether it is new.

    Raises:
        UserError: no credentials, or AWS refuses; nothing runs in any case.
    """
    made = Clients(session, plan.job.region)
    put_code(made, plan.job.source.folder, plan.code)
    sagemaker = made("sagemaker")
    if not _exists(sagemaker, plan.name):
        return str(aws.call(sagemaker, "create_pipeline", **plan.request)["PipelineArn"]), True
    changed = {key: plan.request[key] for key in ("PipelineName", "PipelineDefinition", "RoleArn")}
    return str(aws.call(sagemaker, "update_pipeline", **changed)["PipelineArn"]), False


def require_parameters(plan: PipelinePlan, values: Mapping[str, str]) -> None:
    """Refuse what is no parameter of the pipeline; nothing is sent.

    Raises:
        UserError: there is no such parameter.
    """
    known = [each["Name"] for each in plan.definition["Parameters"]]
    for name in values:
        if name not in known:
            raise UserError(f"parameter = {name!r}: the pipeline has {', '.join(known)}")


def start_pipeline(plan: PipelinePlan, values: Mapping[str, str], *, session: Any = None) -> str:
    """Start an execution; its ARN. From here on it costs.

    Args:
        plan: of the pipeline that was put.
        values: parameter -> value, for those that are not the default.

    Raises:
        UserError: there is no such parameter, or AWS refuses.
    """
    require_parameters(plan, values)
    request = {
        "PipelineName": plan.name,
        "PipelineParameters": [{"Name": name, "Value": value} for name, value in values.items()],
        "ClientRequestToken": secrets.token_hex(16),
    }
    aws.checked("sagemaker", "StartPipelineExecution", request)
    sagemaker = Clients(session, plan.job.region)("sagemaker")
    return str(aws.call(sagemaker, "start_pipeline_execution", **request)["PipelineExecutionArn"])


def _exists(sagemaker: Any, name: str) -> bool:
    """Whether the account has a pipeline of that name."""
    page = aws.call(
        sagemaker, "list_pipelines", PipelineNamePrefix=name, SortBy="Name", SortOrder="Ascending"
    )
    return any(each["PipelineName"] == name for each in page["PipelineSummaries"])
