"""The work of the five steps. Each writes files into its own folder, by rename, and says what they hold.

They know nothing of when they run (``engine``) or on which machine.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dtlab.data.config import DataConfig
from dtlab.data.source import SPLITS
from dtlab.errors import UserError
from dtlab.files import appears_whole
from dtlab.train.config import TrainConfig
from dtlab.train.record import git_state, write_json
from dtlab.workflow.archive import ARCHIVE, CARD, write_archive
from dtlab.workflow.config import PipelineConfig

if TYPE_CHECKING:
    from dtlab.data.datasets import Dataset
    from dtlab.data.stream_dataset import StreamDataset

__all__ = ["Outcome", "evaluate", "features", "package", "prepare"]

DATA, REQUESTS, FEATURES, COLUMNS, METRICS = (
    "data.json", "requests.parquet", "features.json", "columns.json", "metrics.json",
)  # fmt: skip
_FIELD = "pipeline.folder"
_MOST_REQUEST_ROWS = 4096
_MOST_APART = 1e-3  # of two AUCs of one model on the same rows, in other batches


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    outputs: names of the files that the step wrote into its folder.
    facts: what they hold, in short.
    elsewhere: folders outside that belong to the outputs.
    """

    outputs: tuple[str, ...]
    facts: dict[str, Any]
    elsewhere: tuple[Path, ...] = ()


def prepare(data: DataConfig, folder: Path) -> Outcome:
    """Make or read the raw rows, check and split them; keep some test rows as they are, for requests.

    Raises:
        UserError: a file, a column or a label is wrong, a part is empty, or a column fits into no request.
    """
    from dtlab.workflow.serving import columns_of

    facts: dict[str, Any]
    if data.stream:
        dataset = _dataset(data)
        spec, version = dataset.features.spec, dataset.version
        counts = {split: len(getattr(dataset, split)) for split in SPLITS}
        facts = {"name": data.name, "version": version, "rows": counts}
        first = pq.ParquetFile(_paths(data)[0]).iter_batches(_MOST_REQUEST_ROWS, columns=spec.inputs())
        some = pa.Table.from_batches([next(first)])
    else:
        from dtlab.data.datasets import find_source

        source = find_source(data, data.folder)
        spec, tables = source.spec, {split: source.read(split) for split in SPLITS}
        facts = {
            "name": data.name,
            "version": source.version,
            "rows": {split: table.num_rows for split, table in tables.items()},
            "positive": {split: _share(table, spec.label) for split, table in tables.items()},
        }
        some = tables["test"].slice(0, _MOST_REQUEST_ROWS).select(spec.inputs())
    columns_of(spec.inputs(), some.schema)  # what no request can hold is refused before hours of training
    with appears_whole(folder / REQUESTS, _FIELD) as beside:
        pq.write_table(some, beside)
    write_json(folder / DATA, facts, _FIELD)
    return Outcome((DATA, REQUESTS), facts)


def features(data: DataConfig, folder: Path, *, refit: bool, prepared: Path) -> Outcome:
    """Fit the features on training rows, with ``refit`` on validation rows too, and keep the columns.

    Args:
        data: which rows; the columns are kept in its root, where training maps them.
        folder: of this step.
        refit: whether training ends with both parts.
        prepared: folder of the step before.

    Raises:
        UserError: the raw rows are no longer those that were prepared, or a column does not fit.
    """
    wanted = json.loads((prepared / DATA).read_text(encoding="utf-8"))["version"]
    first = _dataset(data)
    if first.version != wanted:
        raise UserError(f"data: version {first.version} now, prepared was {wanted}; run the pipeline again")
    last = first.refit() if refit else first
    facts = {
        "fitted_on": "training and validation rows" if refit else "training rows",
        "categorical": list(last.features.spec.category_names),
        "cardinalities": list(last.cardinalities),
        "numeric": list(last.features.spec.numeric),
        "dense": last.num_dense,
    }
    with appears_whole(folder / FEATURES, _FIELD) as beside:
        beside.write_text(last.features.to_json(), encoding="utf-8")
    write_json(folder / COLUMNS, facts, _FIELD)
    kept = {getattr(each, "kept_in", None) or getattr(each, "folder", None) for each in (first, last)}
    return Outcome((FEATURES, COLUMNS), facts, tuple(sorted(place for place in kept if place is not None)))


def refits(config: TrainConfig) -> bool:
    """Whether the run ends with training on training and validation rows; one of max_steps does not."""
    return config.run.refit and config.run.max_steps is None


def evaluate(
    config: TrainConfig, options: PipelineConfig, folder: Path, *, model: Path, prepared: Path
) -> Outcome:
    """Score the test rows with the model as it was written, and time its answers to requests.

    Args:
        config: of the run that trained it.
        options: how many requests, and of how many rows.
        folder: of this step.
        model: folder that the run left.
        prepared: folder of the step prepare, with rows for requests.

    Raises:
        UserError: the model cannot be read, or its AUC is not the one that the run reported.
    """
    from dtlab.train.metrics import Metrics
    from dtlab.train.package import load_package
    from dtlab.train.tasks import load_task
    from dtlab.workflow.latency import measure, of_threads
    from dtlab.workflow.serving import batch_of, columns_of, input_fn, output_fn, predict_fn, score, serve

    loaded = load_package(model)
    assert loaded.features is not None
    task = load_task(config)
    if task.features != loaded.features:  # it was trained again on training and validation rows
        task = task.refit()
    if task.features != loaded.features:
        raise UserError(f"model = {str(model)!r}: was trained with other features; run the pipeline again")
    found = task.evaluate(loaded.model, "test", config.run.eval_batch)
    assert isinstance(found, Metrics)
    told = loaded.about.get("auc")
    if told is not None and not math.isnan(found.auc) and abs(found.auc - told) > _MOST_APART:
        raise UserError(
            f"model = {str(model)!r}: its test AUC is {found.auc:.6f}, the run reported {told:.6f}; train "
            "again"
        )
    rows = pq.read_table(prepared / REQUESTS)
    served = serve(loaded, columns_of(rows.column_names, rows.schema))

    def answer(body: str) -> str:
        return output_fn(predict_fn(input_fn(body), served))

    count = options.requests + options.warmup
    with of_threads(options.threads):
        times = {
            name: measure(answer, _bodies(rows, size, count), rows=size, warmup=options.warmup)
            for name, size in (("request", 1), ("batch", options.batch))
        }
        # Beside them the model alone: the rest of a request is reading it and making its features.
        ready = [batch_of(input_fn(body), served) for body in _bodies(rows, 1, count)]
        times["model"] = measure(lambda each: score(each, served), ready, rows=1, warmup=options.warmup)
    facts = {
        "auc": found.auc,
        "log_loss": found.log_loss,
        "rows_test": found.rows,
        "auc_validation": loaded.about.get("auc_validation"),
        "auc_best_reachable": loaded.about.get("auc_best_reachable"),
        "latency": {name: asdict(each) for name, each in times.items()},
        "serving_threads": options.threads,
    }
    write_json(folder / METRICS, facts, _FIELD)
    return Outcome((METRICS,), facts)


def package(folder: Path, *, model: Path, prepared: Path, evaluated: Path) -> Outcome:
    """Put the model, what is known about it and the code that serves it into one archive.

    Raises:
        UserError: a file of the steps before cannot be read, or the archive cannot be written.
    """
    from dtlab.train.package import load_package
    from dtlab.workflow.serving import columns_of

    loaded = load_package(model)
    schema = pq.read_schema(prepared / REQUESTS)
    inputs = columns_of(schema.names, schema)
    about = loaded.about
    card = {
        "data": json.loads((prepared / DATA).read_text(encoding="utf-8")),
        "metrics": json.loads((evaluated / METRICS).read_text(encoding="utf-8")),
        "training": {
            name: about.get(name)
            for name in ("world_size", "epochs", "samples", "seconds", "usd_estimate", "bill", "run")
        },
        "config": loaded.config.to_dict(),
        **git_state(),
    }
    names = write_archive(folder / ARCHIVE, model, inputs, card)
    write_json(folder / CARD, card, _FIELD)
    size = (folder / ARCHIVE).stat().st_size
    return Outcome((ARCHIVE, CARD), {"archive": ARCHIVE, "bytes": size, "files": len(names)})


def missed(facts: Mapping[str, Any], options: PipelineConfig) -> list[str]:
    """What an evaluated model does not reach; [] when it may be packaged."""
    found = []
    auc, taken = facts["auc"], facts["latency"]["request"]["p95_ms"]
    least, most = options.least_auc, options.most_request_ms
    if least is not None and not (auc is not None and auc >= least):
        shown = "not a number" if auc is None else f"{auc:.4f}"
        found.append(f"test AUC {shown} is below pipeline.least_auc = {least:g}")
    if most is not None and taken > most:
        found.append(f"p95 of a request is {taken:.2f} ms, above pipeline.most_request_ms = {most:g}")
    return found


def _dataset(data: DataConfig) -> Dataset | StreamDataset:
    if data.stream:
        from dtlab.data.stream_dataset import load_stream

        return load_stream(data)
    from dtlab.data.datasets import load_dataset

    return load_dataset(replace(data, cache="disk"))


def _paths(data: DataConfig) -> list[Path]:
    from dtlab.data.parquet import named

    return named(data).paths


def _share(table: pa.Table, label: str | None) -> float | None:
    if label is None:
        return None
    mean = pc.mean(pc.cast(table.column(label), pa.float64())).as_py()
    return None if mean is None else round(mean, 6)


def _bodies(rows: pa.Table, size: int, count: int) -> list[str]:
    """``count`` requests of ``size`` rows each, drawn from the table with a fixed seed."""
    as_rows = [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]
    draw = random.Random(0)
    return [json.dumps({"rows": draw.choices(as_rows, k=size)}) for _ in range(count)]
