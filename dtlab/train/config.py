"""What a training run is made of: one frozen dataclass per concern.

The command line (``dtlab train --optim.lr 2e-3``) and the configuration file (a TOML table for each class:
``[data]``, ``[optim]`` ...) are both derived from these classes, so nothing is declared twice.
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
from dtlab.settings_types import settle_types
from dtlab.train.config_core import CheckpointConfig, PrecisionConfig, StoppingConfig
from dtlab.train.config_parallel import ParallelConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.config_text import text_defaults


def _require(fine: bool, name: str, value: Any, fix: str) -> None:
    if not fine:
        raise UserError(f"{name} = {value!r}: {fix}")


_MOST_RATE = 1e30  # float32 ends at 3e38, and an optimizer multiplies
_MOST_WIDTH, _MOST_LAYERS = 2**31 - 1, 10_000


def _finite(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= _MOST_RATE


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model's shape: a DeepFM for tables (lesson 03), a small GPT for data.name = "text" (lesson 05)."""

    dim: int | None = None
    """Width of one embedding vector: 8 for the DeepFM, 128 for the GPT unless given."""
    hidden: tuple[int, ...] = (64, 32)
    """Widths of the hidden layers of the deep part (DeepFM)."""
    dropout: float = 0.0
    """Dropout, 0 up to but not 1. Promises of equality over world sizes hold at 0."""
    embedding_dropout: float = 0.0
    """Dropout on the embedding vectors (DeepFM)."""
    num_layers: int = 4
    """Blocks (GPT)."""
    num_heads: int = 4
    """Attention heads; they divide dim (GPT)."""
    sequence: int = 128
    """Tokens of a sample (GPT)."""

    def __post_init__(self) -> None:
        settle_types(self, "model")
        for name in ("dim", "num_layers", "num_heads", "sequence"):
            value = getattr(self, name)
            most = _MOST_LAYERS if name == "num_layers" else _MOST_WIDTH
            fits = value is None or 1 <= value <= most
            _require(fits, f"model.{name}", value, f"must be at least 1, and at most {most:,}")
        fits = len(self.hidden) > 0 and all(1 <= width <= _MOST_WIDTH for width in self.hidden)
        _require(
            fits, "model.hidden", self.hidden, "give one width or more, from 1 on, for example 64 and 32"
        )
        for name in ("dropout", "embedding_dropout"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"model.{name}", value, "must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How the weights move."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Optimizer."""
    lr: float = 2e-3
    """Learning rate; it never depends on the number of ranks. The table [schedule] says how it moves."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW) or L2 (SGD)."""
    global_batch: int = 4096
    """Samples of one optimizer step over all ranks together; of text 32 unless given."""
    micro_batch: int | None = None
    """Most samples of one forward on one rank: larger shares of a global batch are cut and accumulated.
    Of text 8, unless a global batch is given."""
    clip: float | None = None
    """Largest norm of all gradients together."""
    max_epochs: int = 6
    """Most passes over the training rows."""
    patience: int = 1
    """Epochs without a better validation AUC before training stops."""

    def __post_init__(self) -> None:
        settle_types(self, "optim")
        _require(
            _finite(self.lr) and self.lr > 0,
            "optim.lr",
            self.lr,
            "must be above 0 and at most 1e30, for example 1e-3",
        )
        _require(
            _finite(self.weight_decay) and self.weight_decay >= 0,
            "optim.weight_decay",
            self.weight_decay,
            "must be 0 or more and at most 1e30",
        )
        if self.micro_batch is not None:
            _require(self.micro_batch >= 1, "optim.micro_batch", self.micro_batch, "must be at least 1")
        if self.clip is not None:
            fine = _finite(self.clip) and self.clip > 0
            _require(fine, "optim.clip", self.clip, "must be above 0 and at most 1e30, for example 1.0")
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
    """Steps between two lines of throughput, memory and communication share; of text 5 unless given."""
    eval_batch: int = 16384
    """Samples (of text: tokens) of one evaluation batch over all ranks."""
    prefetch: int = 0
    """Batches gathered ahead by a thread; 0 is best for tables in memory. Of a stream: windows."""
    output: Path | None = Path("runs")
    """Folder of the run records; each run makes its own folder there."""
    folder: Path | None = None
    """Folder of this very run; if a run was interrupted there, it goes on."""
    resume: bool = False
    """Go on with the newest run in output that was interrupted."""
    check_replicas_every: int = 500
    """Steps between two comparisons of the replicas, bit by bit; 0 never compares."""
    instance: str = "ml.g4dn.12xlarge"
    """Instance type whose price turns seconds into dollars in the report."""
    max_steps: int | None = None
    """Stop after this many optimizer steps, however many epochs that is."""
    mlflow: str | None = None
    """MLflow store that gets the record as the run goes: sqlite:///mlflow.db, a server's address, an ARN of
    SageMaker, or env for MLFLOW_TRACKING_URI."""

    def __post_init__(self) -> None:
        settle_types(self, "run")
        _require(0 <= self.seed < 2**31, "run.seed", self.seed, "must be a whole number from 0 to 2**31 - 1")
        for name in ("log_every", "eval_batch"):
            _require(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "must be at least 1")
        for name in ("prefetch", "check_replicas_every"):
            _require(getattr(self, name) >= 0, f"run.{name}", getattr(self, name), "must be 0 or more")
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
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        for entry in fields(self):
            table, kind = getattr(self, entry.name), entry.default_factory
            fix = f"give a {getattr(kind, '__name__', kind)}, or use TrainConfig.from_dict"
            _require(isinstance(table, kind), entry.name, table, fix)  # type: ignore[arg-type]
        half, steps = self.precision.name in ("bf16", "fp16"), self.run.max_steps
        _require(
            not (half and self.run.dtype == "float64"),
            "precision.name",
            self.precision.name,
            "run.dtype = 'float64' computes in float64; leave one of the two out",
        )
        _require(
            not (self.schedule.kind == "plateau" and steps is not None),
            "schedule.kind",
            self.schedule.kind,
            f"run.max_steps = {steps} makes a run that validates nothing, so the rate would never be cut; "
            "take optim.max_epochs, or another kind",
        )
        warmup, unit = self.schedule.warmup, self.schedule.unit
        _require(
            unit != "step" or steps is None or warmup <= steps,
            "schedule.warmup",
            int(warmup),
            f"longer than the run of run.max_steps = {steps}, so the full rate would never be reached; "
            f"take for example --schedule.warmup {max(1, (steps or 0) // 10)}",
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values: paths become text."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read back what :meth:`to_dict` wrote (lists become tuples, folders become paths).

        What ``values`` leave out is the default: of a table's run, or of text's.

        >>> TrainConfig.from_dict({"data": {"name": "text"}}).optim.global_batch
        32
        """
        kinds = {entry.name: entry.default_factory for entry in fields(cls)}
        for table in values:
            _require(table in kinds, table, values[table], f"no such table; there are {', '.join(kinds)}")
        return cls(**{table: _built(kind, table, _of_text(values)) for table, kind in kinds.items()})


def _of_text(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the defaults of text, if that is what is trained on."""

    def table(name: str) -> dict[str, Any]:
        found = values.get(name, {})
        return found if isinstance(found, dict) else {}

    if table("data").get("name") != "text":
        return values
    whole = dict(values)
    for dotted, value in text_defaults(lambda f: f.split(".")[1] in table(f.split(".")[0])).items():
        name, key = dotted.split(".")
        if isinstance(whole.get(name, {}), dict):
            whole[name] = {**whole.get(name, {}), key: value}
    return whole


def _built(kind: Any, table: str, values: dict[str, Any]) -> Any:
    raw = values.get(table, {})
    _require(isinstance(raw, dict), table, raw, "give a table of settings")
    known = {entry.name for entry in fields(kind)}
    for name in raw:
        if name not in known:
            raise UserError(f"{table}.{name}: no such field; there are {', '.join(sorted(known))}")
    return kind(**raw)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
