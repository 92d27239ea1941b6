"""The job that a run's configuration describes, for the planner: model, samples, batch, and its ways.

Nothing is prepared and no data is read, so that a plan answers at once: the size of the built-in data sets is
known, that of your own Parquet is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtlab.cost.builders import recommender, transformer
from dtlab.cost.plan_layout import Layout
from dtlab.cost.presets import Preset
from dtlab.errors import UserError

# Training and validation rows, rows of all embedding tables, fields, dense columns.
FLIGHTS = (231_423, 53_107, 6_490, 53, 77)
CLICKS_FIELDS, CLICKS_ROWS, CLICKS_DENSE = 7, 25_072, 1
CLICKS_TRAINED, CLICKS_VALIDATED = 0.8, 0.1
TEXT_VOCABULARY = 256


@dataclass(frozen=True)
class RunJob:
    """What a configuration says; `samples` is None where it cannot be known without the data."""

    model: Preset
    samples: float | None
    global_batch: int
    max_seconds: float | None
    max_usd: float | None
    space: dict[str, Any]


def job_of_config(path: Path, table_rows: int | None) -> RunJob:
    """Read a run's configuration file.

    `samples` is the most that the run can see: all epochs, and again with the validation rows if it refits.
    The space is what `dtlab train` can do with it in the configuration's precision: the layout of its table
    [parallel], or without one plain data parallelism.

    Args:
        table_rows: rows of all embedding tables, for data whose vocabularies are not known beforehand.

    Raises:
        UserError: the file is wrong, or `table_rows` is needed.
    """
    from dtlab.commands.config_file import read_config_file
    from dtlab.train.config import TrainConfig
    from dtlab.train.layout_check import check_layout

    config = TrainConfig.from_dict(read_config_file(str(path)))
    check_layout(config, config.parallel.least_ranks)
    model, rows = model_of(config, path.name, table_rows)
    optim, run = config.optim, config.run
    samples: float | None = None
    if run.max_steps is not None:
        samples = float(run.max_steps * optim.global_batch)
    elif rows is not None:
        train, validation = rows
        refit = train + validation if run.refit else 0.0
        samples = float(optim.max_epochs * (train + refit))
    precisions = {"auto": ("amp", "fp32"), "fp32": ("fp32",)}.get(config.precision.name, ("amp",))
    full = config.precision.checkpoint_activations and model.layers
    return RunJob(
        model,
        samples,
        optim.global_batch,
        config.stopping.max_seconds,
        config.stopping.max_usd,
        {
            **_ways(config),
            "precisions": precisions,
            "recomputes": ("full",) if full else ("none",),
        },
    )


def _ways(config: Any) -> dict[str, Any]:
    """The layout of the table [parallel]; without one the degrees of plain data parallelism."""
    given, optim = config.parallel, config.optim
    if given == type(given)():
        return {"tp": (1,), "pp": (1,), "zeros": (0,)}
    layout = Layout(
        **given.degrees,
        zero1=given.zero1,
        sequence_parallel=given.sequence_parallel,
        schedule=given.schedule,
        micro_batches=given.micro_batches,
        most=optim.micro_batch,
    )
    return {"layout": layout}


def model_of(config: Any, name: str, table_rows: int | None) -> tuple[Preset, tuple[float, float] | None]:
    """The model of a configuration of that name; its training and validation rows where they are known."""
    data, shape = config.data, config.model
    if data.name == "text":
        dim = 128 if shape.dim is None else shape.dim
        model = transformer(
            shape.num_layers, dim, TEXT_VOCABULARY, shape.sequence, heads=shape.num_heads, gated=False,
            tied=True, name=f"the GPT of {name}",
        )  # fmt: skip
        return model, None
    rows: tuple[float, float] | None
    if data.name == "flights":
        train, validation, table, fields, dense = FLIGHTS
        rows = float(train), float(validation)
    elif data.name == "clicks":
        rows = CLICKS_TRAINED * data.rows, CLICKS_VALIDATED * data.rows
        table, fields, dense = CLICKS_ROWS, CLICKS_FIELDS, CLICKS_DENSE
    else:
        rows = _parquet_rows(config)
        fields, dense = len(data.categorical) + len(data.hashed), len(data.numeric)
        table = data.hash_buckets * len(data.hashed)
        if data.categorical and table_rows is None:
            raise UserError(
                f"table_rows is needed: the vocabularies of data.categorical in {name!r} are fitted on "
                "the data; give the rows of all embedding tables together, --table-rows 1000000"
            )
    model = recommender(
        table_rows or table, fields, 8 if shape.dim is None else shape.dim, num_dense=dense, mlp=shape.hidden,
        name=f"the DeepFM of {name}",
    )  # fmt: skip
    return model, rows


def _parquet_rows(config: Any) -> tuple[float, float] | None:
    """Training and validation rows from the files' footers; None when there is no file here."""
    data = config.data
    place = Path(data.path or "")
    files = [place] if place.is_file() else sorted(place.glob("*.parquet")) if place.is_dir() else []
    if not files or not data.path:
        return None
    import pyarrow.parquet as pq

    try:
        rows = sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, ValueError) as error:
        raise UserError(f"data.path = {data.path!r}: {' '.join(str(error).split())[:200]}") from None
    return rows * (1 - data.validation_fraction - data.test_fraction), rows * data.validation_fraction
