"""A packaged model as a request meets it: JSON rows in, JSON scores out.

``model_fn``, ``input_fn``, ``predict_fn`` and ``output_fn`` are the four functions that SageMaker's PyTorch
inference toolkit looks for in ``code/inference.py``. The latency of a pipeline is measured through the same
functions, so that reading the request and making the features are part of it.

A request is ``{"rows": [{"column": value, ...}, ...]}`` or the list alone; a missing column is a null. The
answer is ``{"scores": [...]}``, a probability for each row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from dtlab.data.batch import Batch
from dtlab.data.features import Features
from dtlab.errors import UserError, one_line
from dtlab.train.package import Package, load_package

__all__ = ["INPUTS", "Served", "input_fn", "model_fn", "output_fn", "predict_fn", "serve"]

INPUTS = "inputs.json"  # column -> type, beside the model folder
JSON = "application/json"
_TYPES: dict[str, pa.DataType] = {"string": pa.string(), "large_string": pa.string()} | {
    str(kind): kind
    for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
                 pa.uint32(), pa.uint64(), pa.float32(), pa.float64())
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A model with the columns that its requests have.

    Attributes:
        package: model and features, as ``load_package`` gives them.
        types: column -> Arrow type of its values.
    """

    package: Package
    types: dict[str, pa.DataType]

    @property
    def features(self) -> Features:
        assert self.package.features is not None
        return self.package.features


def columns_of(names: Iterable[str], schema: pa.Schema) -> dict[str, str]:
    """The columns of a request and the names of their types, for ``inputs.json``.

    Args:
        names: the columns that the features read.
        schema: of the raw rows.

    Raises:
        UserError: a column of a type that JSON has no values for.
    """
    found = {}
    for name in names:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if str(kind) not in _TYPES:
            raise UserError(
                f"column {name!r} is {kind}: a request in JSON has no such values; make it text or a number, "
                "or train with dtlab train and score files with dtlab predict"
            )
        found[name] = str(kind)
    return found


def serve(package: Package, columns: dict[str, str]) -> Served:
    """Ready to answer requests.

    Raises:
        UserError: a model of text, or columns that are not those of its features.
    """
    if package.features is None:
        raise UserError("checkpoint: holds a model of text; requests have the rows of a table")
    wanted = package.features.spec.inputs()
    if set(columns) != set(wanted) or not all(kind in _TYPES for kind in columns.values()):
        raise UserError(f"{INPUTS}: does not name the model's columns with their types: {', '.join(wanted)}")
    return Served(package, {name: _TYPES[columns[name]] for name in wanted})


def model_fn(model_dir: str, context: Any = None) -> Served:
    """Load what ``dtlab.workflow.archive`` packed: the folder ``model`` and ``inputs.json``.

    Raises:
        UserError: something of it is missing or damaged.
    """
    place = Path(model_dir)
    try:
        columns = json.loads((place / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{INPUTS} of {str(place)!r}: cannot be read ({error}); package again") from None
    if not isinstance(columns, dict):
        raise UserError(f"{INPUTS} of {str(place)!r}: holds no object; package again")
    return serve(load_package(place / "model"), columns)


def input_fn(body: str | bytes, content_type: str = JSON, context: Any = None) -> list[dict[str, Any]]:
    """The rows of a request.

    Raises:
        UserError: another content type, no JSON, or no list of objects.
    """
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise UserError(f"content type = {content_type!r}: send {JSON}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"request: not JSON ({one_line(str(error), 100)})") from None
    rows = found.get("rows") if isinstance(found, dict) else found
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError('request: send {"rows": [{"column": value, ...}, ...]} with one row or more')
    return rows


@torch.inference_mode()
def predict_fn(rows: list[dict[str, Any]], served: Served, context: Any = None) -> list[float]:
    """A probability for each row.

    Raises:
        UserError: a value that its column cannot hold.
    """
    return score(batch_of(rows, served), served)


def batch_of(rows: list[dict[str, Any]], served: Served) -> Batch:
    """The features of the rows, as the model takes them.

    Raises:
        UserError: a value that its column cannot hold.
    """
    batch = served.features.transform(_table(rows, served.types), labels=False)
    weight = next(served.package.model.parameters())
    return batch.to(weight.device, dtype=weight.dtype)


@torch.inference_mode()
def score(batch: Batch, served: Served) -> list[float]:
    """A probability for each row of a batch: the model alone."""
    return torch.sigmoid(served.package.model(batch.categorical, batch.dense).double()).tolist()


def output_fn(scores: list[float], accept: str = JSON, context: Any = None) -> str:
    """The answer; a score that is no number is null."""
    return json.dumps({"scores": [score if math.isfinite(score) else None for score in scores]})


def _table(rows: list[dict[str, Any]], types: dict[str, pa.DataType]) -> pa.Table:
    arrays = {}
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        try:
            if pa.types.is_integer(kind) and (odd := [v for v in values if isinstance(v, float) and v % 1]):
                raise ValueError(f"got {odd[0]}")  # Arrow would cut it off
            arrays[name] = pa.array(values, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise UserError(
                f"request: column {name!r} is {kind}: {one_line(str(error), 150)}; send such values, or null"
            ) from None
    return pa.table(arrays)
