"""The table ``[pipeline]`` of a job file: the steps around training, as a SageMaker pipeline (lesson 16)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dtlab.errors import UserError
from dtlab.sagemaker.pipeline_check import is_age
from dtlab.workflow.config import PipelineConfig

__all__ = ["Steps"]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the steps beside training run; the keys from ``requests`` on are those of ``dtlab pipeline``."""

    instance_type: str = "ml.m5.xlarge"
    """A SageMaker processing type, of which each step takes one."""
    volume_gb: int = 30
    max_run_seconds: int = 3600
    """SageMaker ends a step other than training after this time."""
    cache: str = "30d"
    """How old the output of a step may be to be used again, such as 30d or T12h; "" never uses it again."""
    inference_image: str | None = None
    """Image that serves the packaged model; default: AWS's PyTorch inference image of us-east-1."""
    group: str | None = None
    """Model package group where the model is registered; default: the job's name."""
    serving_type: str = "ml.m5.large"
    """Instance type that the registered model is meant for."""
    requests: int = 200
    warmup: int = 20
    batch: int = 256
    threads: int = 1
    least_auc: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("volume_gb", 1), ("max_run_seconds", 60)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"pipeline.{name} = {value!r}: give a whole number of {least} or more")
        for name in ("instance_type", "serving_type"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.startswith("ml.")):
                raise UserError(f"pipeline.{name} = {value!r}: SageMaker's types begin with ml.")
        if self.cache and not is_age(self.cache):
            raise UserError(f"pipeline.cache = {self.cache!r}: give an age such as 30d, 5y or T12h, or ''")
        PipelineConfig(**self.evaluation)

    @property
    def evaluation(self) -> dict[str, Any]:
        """What the evaluate step is told, by the names of ``PipelineConfig``."""
        shared = {entry.name for entry in fields(PipelineConfig)}
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name in shared}
