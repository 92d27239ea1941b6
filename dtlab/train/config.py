"""What a training run is made of: one frozen dataclass per concern.

The command line (``dtlab train --optim.lr 2e-3``) and the configuration file (TOML tables ``[data]``,
``[model]``, ``[optim]``, ``[run]``) are both derived from these classes, so nothing is declared twice.
Each class checks itself where it is built. An error names the field, its value and the way out.
This module imports no torch, so that ``dtlab --help`` answers at once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from dtlab.data.config import DataConfig
from dtlab.errors import UserError


def _require(fine: bool, name: str, value: Any, fix: str) -> None:
    if not fine:
        raise UserError(f"{name} = {value!r}: {fix}")


def _finite(value: float) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The DeepFM's shape (lesson 03)."""

    dim: int = 8
    """Width of one embedding vector."""
    hidden: tuple[int, ...] = (64, 32)
    """Widths of the hidden layers of the deep part."""
    dropout: float = 0.0
    """Dropout in the deep part, 0 up to but not 1. Promises of equality over world sizes hold at 0."""
    embedding_dropout: float = 0.0
    """Dropout on the embedding vectors."""

    def __post_init__(self) -> None:
        _require(self.dim >= 1, "model.dim", self.dim, "must be at least 1")
        _require(all(width >= 1 for width in self.hidden), "model.hidden", self.hidden, "widths start at 1")
        for name in ("dropout", "embedding_dropout"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"model.{name}", value, "must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How the weights move."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Optimizer."""
    lr: float = 2e-3
    """Learning rate, used as given: it does not depend on the number of ranks."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW) or L2 (SGD)."""
    global_batch: int = 4096
    """Samples of one optimizer step over all ranks together."""
    max_epochs: int = 6
    """Most passes over the training rows."""
    patience: int = 1
    """Epochs without a better validation AUC before training stops."""

    def __post_init__(self) -> None:
        _require(_finite(self.lr) and self.lr > 0, "optim.lr", self.lr, "must be positive, for example 1e-3")
        _require(
            _finite(self.weight_decay) and self.weight_decay >= 0,
            "optim.weight_decay",
            self.weight_decay,
            "must be 0 or more",
        )
        for name in ("global_batch", "max_epochs", "patience"):
            _require(getattr(self, name) >= 1, f"optim.{name}", getattr(self, name), "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How the run is driven, and what it leaves behind."""

    seed: int = 0
    """Seed of the weights, the order of the samples and dropout."""
    refit: bool = True
    """Train again on training and validation rows for the number of epochs that validation chose."""
    engine: Literal["torch", "by_hand"] = "torch"
    """Data parallelism by torch's DDP, or by the by-hand twin of lesson 03."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the weights and of the arithmetic."""
    log_every: int = 100
    """Steps between two lines of throughput, memory and communication share."""
    eval_batch: int = 16384
    """Samples of one evaluation batch over all ranks."""
    prefetch: int = 0
    """Batches gathered ahead by a thread; 0 is best for tables in memory."""
    output: Path | None = Path("runs")
    """Folder of the run records; each run makes its own folder there."""
    instance: str = "ml.g4dn.12xlarge"
    """Instance type whose price turns seconds into dollars in the report."""
    max_steps: int | None = None
    """Stop after this many optimizer steps, however many epochs that is."""

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**31, "run.seed", self.seed, "must be a whole number from 0 to 2**31 - 1")
        for name in ("log_every", "eval_batch"):
            _require(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "must be at least 1")
        _require(self.prefetch >= 0, "run.prefetch", self.prefetch, "must be 0 or more")
        if self.max_steps is not None:
            _require(self.max_steps >= 1, "run.max_steps", self.max_steps, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run.

    >>> TrainConfig(optim=OptimConfig(lr=1e-3)).optim.global_batch
    4096
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values: paths become text."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read back what :meth:`to_dict` wrote (lists become tuples, output becomes a path)."""
        return cls(
            data=_built(DataConfig, "data", values),
            model=_built(ModelConfig, "model", values),
            optim=_built(OptimConfig, "optim", values),
            run=_built(RunConfig, "run", values),
        )


def _built(kind: Any, table: str, values: dict[str, Any]) -> Any:
    raw = values.get(table, {})
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    known = {entry.name for entry in fields(kind)}
    for name in given:
        if name not in known:
            raise UserError(f"{table}.{name}: no such field; there are {', '.join(sorted(known))}")
    if given.get("output") is not None:
        given["output"] = Path(given["output"])
    return kind(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
