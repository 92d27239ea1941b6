"""Scores for a Parquet file from a trained model: the same numbers that evaluation used."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dtlab.errors import UserError
from dtlab.train.metrics import score
from dtlab.train.package import load_package
from dtlab.train.record import require_writable


def predict(checkpoint: Path, parquet: Path, output: Path, *, batch: int = 16384) -> int:
    """Write ``id`` and ``score`` (a probability) for each row of ``parquet`` to ``output``; returns the row count.

    Raises:
        UserError: the checkpoint, the file or a column is wrong, or ``output`` cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dtlab.data.parquet import read_table

    require_writable(output, "output")
    package = load_package(checkpoint)
    table = package.features.transform(read_table(parquet))
    table = table.to("cpu", dtype=getattr(torch, package.config.run.dtype))
    scores = score(package.model, table, batch=batch)
    assert scores is not None, "predict runs in one process"
    columns = {"id": scores.ids.numpy(), "score": torch.sigmoid(scores.logits.double()).numpy()}
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), beside)
        os.replace(beside, output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"output = {str(output)!r}: {error.strerror}; name a file that can be written") from None
    return len(scores.ids)
