"""The file of a pipeline: the tables of ``dtlab train``, and ``[pipeline]``. Reading it needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.settings_file import near_name
from dtlab.settings_types import settle_types
from dtlab.train.config import TrainConfig

__all__ = ["Pipeline", "PipelineConfig"]


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How the pipeline is run, and what its model must reach."""

    folder: Path = Path("runs/pipeline")
    """Where every step leaves its output."""
    nproc: int = 2
    """Ranks of the train step."""
    timeout: float | None = None
    """Seconds that the train step may take."""
    requests: int = 200
    """Requests of one row, and of batch rows, whose time is measured."""
    warmup: int = 20
    """Requests before those, whose time is not counted."""
    batch: int = 256
    """Rows of a large request."""
    threads: int = 1
    """Threads of the serving process while requests are measured."""
    least_auc: float | None = None
    """Test AUC below which nothing is packaged."""
    most_request_ms: float | None = None
    """95th percentile of a request of one row, in milliseconds, above which nothing is packaged."""

    def __post_init__(self) -> None:
        settle_types(self, "pipeline")
        for name, least, most in (
            ("nproc", 1, 4096),
            ("requests", 20, 1_000_000),
            ("warmup", 0, 1_000_000),
            ("batch", 1, 1_000_000),
            ("threads", 1, 4096),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(f"pipeline.{name} = {value}: give {least:,} to {most:,}")
        for name in ("timeout", "most_request_ms"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"pipeline.{name} = {value}: must be above 0, or leave it out")
        if self.least_auc is not None and not 0 <= self.least_auc <= 1:
            raise UserError(f"pipeline.least_auc = {self.least_auc}: an AUC lies between 0 and 1")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline as its file describes it.

    Attributes:
        train: the run of the train step; its folder and output are the pipeline's.
        options: of the table ``[pipeline]``.

    >>> Pipeline.from_dict({"data": {"name": "clicks"}, "pipeline": {"nproc": 1}}).options.nproc
    1
    """

    train: TrainConfig
    options: PipelineConfig

    def __post_init__(self) -> None:
        if self.train.data.name == "text":
            raise UserError(
                "data.name = 'text': a pipeline scores the rows of a table; train text with dtlab train"
            )
        if self.train.data.cache_max_age_hours is not None:
            raise UserError(
                f"data.cache_max_age_hours = {self.train.data.cache_max_age_hours}: a pipeline looks at what "
                "has changed and not at its age; leave it out"
            )
        for name in ("folder", "resume"):
            value = getattr(self.train.run, name)
            if value:
                raise UserError(
                    f"run.{name} = {value if name == 'resume' else str(value)!r}: the train step has its own "
                    "folder and goes on by itself; leave it out"
                )

    @classmethod
    def from_dict(cls, tables: dict[str, Any]) -> Pipeline:
        """Build both parts from the tables of a file.

        Raises:
            UserError: a key that does not exist, a value that does not fit.
        """
        options = tables.get("pipeline", {})
        if not isinstance(options, dict):
            raise UserError(f"pipeline = {options!r}: write [pipeline] on a line of its own")
        known = [entry.name for entry in fields(PipelineConfig)]
        named = {key.replace("-", "_"): value for key, value in options.items()}
        for name in named:
            if name not in known:
                near = near_name(name, known)
                hint = f"did you mean pipeline.{near}?" if near else f"there are {', '.join(known)}"
                raise UserError(f"unknown key {name!r} in [pipeline]; {hint}")
        run = {
            table: {key.replace("-", "_"): value for key, value in keys.items()}
            for table, keys in tables.items()
            if table != "pipeline"
        }
        train = TrainConfig.from_dict(run)
        # Features are written once, by their step; the ranks map what it wrote.
        data = train.data if train.data.stream else replace(train.data, cache="disk")
        return cls(replace(train, data=data), PipelineConfig(**named))
