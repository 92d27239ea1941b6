"""A small click log as Parquet shards: what a rehearsal puts into a channel (lesson 15)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_clicks"]

_SHARDS = 4


def write_clicks(folder: Path, rows: int) -> None:
    """Write ``rows`` rows of ``dtlab.data.clicks`` to ``folder`` as four shards.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_clicks(Path(place), 100)
    ...     len(list(Path(place).glob("*.parquet")))
    4
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dtlab.data.clicks import generate

    folder.mkdir(parents=True, exist_ok=True)
    table = pa.concat_tables(chunk.table for chunk in generate(rows))
    each = -(-rows // _SHARDS)
    for number in range(_SHARDS):
        part = table.slice(number * each, each)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=5_000)
