"""Scores for a Parquet file from a trained model: the same numbers that evaluation used."""

from __future__ import annotations

from pathlib import Path

import torch

from dtlab.errors import UserError
from dtlab.files import appears_whole, require_writable
from dtlab.train.metrics import score
from dtlab.train.package import load_package


def predict(
    checkpoint: Path, parquet: Path, output: Path, *, batch: int = 16384, row_numbers: bool = False
) -> int:
    """Write ``id`` and ``score`` (a probability) of each row of ``parquet`` to ``output``; return the rows.

    The rows are read row group by row group and need not fit into memory; ids and scores must (16 bytes a
    row).

    Raises:
        UserError: the checkpoint, the file or a column is wrong, or ``output`` cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dtlab.data.parquet_stream import rows_to_score

    if batch < 1:
        raise UserError(f"batch = {batch}: must be at least 1")
    _require_apart(parquet, output)
    require_writable(output, "output")
    package = load_package(checkpoint)
    if package.features is None:
        raise UserError(f"checkpoint = {str(checkpoint)!r}: holds a model of text; predict scores tables")
    named_by_user = package.config.data.name == "parquet" and not row_numbers
    rows = rows_to_score(parquet, package.features, batch, row_numbers=not named_by_user)
    scores = score(package.model, rows.walk(0, 1))
    assert scores is not None, "predict runs in one process"
    unknown = int(scores["logits"].isnan().sum())
    if unknown:
        raise UserError(
            f"checkpoint = {str(checkpoint)!r}: {unknown:,} of {len(scores):,} scores are not numbers (nan); "
            "train again with a lower optim.lr"
        )
    columns = {"id": scores.ids.numpy(), "score": torch.sigmoid(scores["logits"].double()).numpy()}
    with appears_whole(output, "output") as beside:
        pq.write_table(pa.table(columns), beside)
    return len(scores)


def _require_apart(parquet: Path, output: Path) -> None:
    """Refuse an output that would replace the rows it is made from, or be read as one of their shards."""
    try:
        parquet.stat()
    except FileNotFoundError:
        pass  # said better when it is read
    except OSError as error:
        raise UserError(f"parquet = {str(parquet)!r}: {error.strerror}; name another file") from None
    try:
        source, target = parquet.resolve(), output.resolve()
        same = source == target or (target.exists() and source.exists() and source.samefile(target))
        inside = source.is_dir() and target.is_relative_to(source)
    except OSError as error:
        raise UserError(f"output = {str(output)!r}: {error.strerror}; name another file") from None
    if same:
        raise UserError(f"output = {str(output)!r}: is the file to be scored; name another file")
    if inside:
        raise UserError(
            f"output = {str(output)!r}: lies in the folder to be scored, {str(parquet)!r}; name another"
        )
