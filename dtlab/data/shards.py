"""Parquet shards with chosen row groups: write them, list them, read them back.

A split is a few files, ``train-00000.parquet`` and so on, each cut into row groups of equal size (the last
of a file may be smaller). A row group is the smallest piece that can be read alone: large ones compress
better, small ones let ranks and workers share the rows evenly. Rows keep their order over all shards of a
split. Every page has a checksum, so a damaged shard of the right size is found too. Taught in lesson 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from dtlab.errors import UserError

ROWS_PER_GROUP = 16_384
ROWS_PER_SHARD = 131_072


@dataclass(frozen=True)
class RowGroup:
    """One readable piece: ``rows`` rows of ``path``, the first being row ``first_row`` of the split."""

    path: Path
    index: int
    rows: int
    first_row: int


class ShardWriter:
    """Write tables of any size as shards of one split, holding at most one row group in memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with ShardWriter(place, "train", rows_per_group=2, rows_per_shard=4) as writer:
    ...         writer.write(pa.table({"x": range(7)}))
    ...     [group.rows for group in row_groups(place, "train")]
    [2, 2, 2, 1]
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        rows_per_group: int = ROWS_PER_GROUP,
        rows_per_shard: int = ROWS_PER_SHARD,
    ) -> None:
        if rows_per_group < 1 or rows_per_shard < rows_per_group:
            raise ValueError(
                f"rows_per_group = {rows_per_group}, rows_per_shard = {rows_per_shard}: "
                "need 1 <= rows_per_group <= rows_per_shard"
            )
        self.folder, self.split = Path(folder), split
        self.rows_per_group = rows_per_group
        self.groups_per_shard = rows_per_shard // rows_per_group
        self.rows = 0
        self.shards = 0
        self._groups = 0
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows. Every table must have the schema of the first."""
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._flush(final=False)

    def _flush(self, *, final: bool) -> None:
        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        start = 0
        while table.num_rows - start >= self.rows_per_group or (final and start < table.num_rows):
            self._write_group(table.slice(start, self.rows_per_group))
            start += self.rows_per_group
        if final and self.shards == 0:
            self._write_group(table)  # a split without rows is still a readable file
        self._pending = [table.slice(start)]
        self._pending_rows = self._pending[0].num_rows

    def _write_group(self, group: pa.Table) -> None:
        if self._writer is None:
            path = self.folder / f"{self.split}-{self.shards:05d}.parquet"
            self._writer = pq.ParquetWriter(
                path, group.schema, compression="zstd", compression_level=1, write_page_checksum=True
            )
            self.shards += 1
            self._groups = 0
        self._writer.write_table(group, row_group_size=self.rows_per_group)
        self.rows += group.num_rows
        self._groups += 1
        if self._groups == self.groups_per_shard:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        """Write what is pending and end the last file."""
        self._flush(final=True)
        self._close_file()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close_file()


def shard_paths(folder: str | Path, split: str) -> list[Path]:
    """The shards of a split, in row order."""
    return sorted(Path(folder).glob(f"{split}-*.parquet"))


def row_groups(folder: str | Path, split: str) -> list[RowGroup]:
    """Every row group of a split in row order; reads footers only."""
    return groups_of(shard_paths(folder, split), is_made=True)


def groups_of(paths: Sequence[Path], *, is_made: bool = False) -> list[RowGroup]:
    """Every row group of some files in row order; reads footers only, one file after the other.

    ``is_made`` says that dtlab makes these files anew when they are deleted; a user's own are never to go.
    """
    groups: list[RowGroup] = []
    first = 0
    for path in paths:
        with _damage_named(path, is_made=is_made):
            footer = pq.read_metadata(path)
            held = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        for index, rows in enumerate(held):
            groups.append(RowGroup(path, index, rows, first))
            first += rows
    return groups


def read_groups(groups: Sequence[RowGroup], columns: list[str] | None = None) -> pa.Table:
    """The rows of some row groups, in the order given; each file is opened once."""
    tables, files = [], {}
    try:
        for group in groups:
            with _damage_named(group.path):
                if group.path not in files:
                    files[group.path] = pq.ParquetFile(group.path, page_checksum_verification=True)
                tables.append(files[group.path].read_row_group(group.index, columns=columns))
    finally:
        for file in files.values():
            file.close()
    return pa.concat_tables(tables)


def read_split(folder: str | Path, split: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of a split. Raises UserError for a shard that is damaged."""
    tables = []
    for path in shard_paths(folder, split):
        with _damage_named(path):
            tables.append(
                pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
            )
    return pa.concat_tables(tables)


UNREADABLE = (pa.ArrowException, OSError, ValueError, IndexError, KeyError)
"""What Arrow raises for a damaged file; the ValueError is for names that are not UTF-8."""


@contextmanager
def _damage_named(path: Path, *, is_made: bool = True) -> Iterator[None]:
    """A shard that cannot be read is said in one line, with the folder to remove if it is made by dtlab."""
    try:
        yield
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        way = f"delete the folder {path.parent}, and it is made again" if is_made else "write it again"
        raise UserError(f"{path} is damaged or cannot be read ({reason}): {way}") from None
