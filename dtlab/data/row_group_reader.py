"""Read chosen rows of Parquet files group by group: one file open at a time, one group in memory (lesson 11).

- Only the row groups that hold wanted rows are read, and of them only the columns that are used.
- Every file is closed before the next is opened, so ten thousand shards need one file descriptor per reader.
- ``counts`` tells what it cost: files opened, groups and rows decoded, rows taken, seconds.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtlab.data import parquet
from dtlab.data.shards import RowGroup, groups_of
from dtlab.errors import UserError


@dataclass
class ReadCounts:
    """What a reader did since it was made, in this process (worker processes count for themselves)."""

    files_opened: int = 0
    groups_read: int = 0
    rows_decoded: int = 0
    """Rows of the groups that were read."""
    rows_taken: int = 0
    """Rows of them that were wanted."""
    decode_seconds: float = 0.0


class RowGroupReader:
    """The rows of some Parquet files, numbered through the files in the order given.

    Args:
        paths: the files.
        columns: those to read, in this order.

    Raises:
        UserError: a file cannot be read, a column is not there, or the files disagree about its type.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "x.parquet"
    ...     pq.write_table(pa.table({"x": [10, 11, 12, 13, 14]}), path, row_group_size=2)
    ...     reader = RowGroupReader([path], ["x"])
    ...     reader.read(np.array([1, 4]))["x"].to_pylist(), reader.counts.groups_read
    ([11, 14], 2)
    """

    def __init__(self, paths: Sequence[Path], columns: Sequence[str]) -> None:
        self.schema = parquet.schema(paths, columns)
        self.groups = [group for group in groups_of(paths) if group.rows]
        self.counts = ReadCounts()
        self._first = np.array([group.first_row for group in self.groups], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    def read(self, rows: np.ndarray) -> pa.Table:
        """The rows whose numbers are given in ascending order, [N] int64."""
        parts = [self.schema.empty_table()]
        bounds = np.searchsorted(rows, self._first)
        bounds = np.append(bounds, len(rows))
        needed = np.flatnonzero(np.diff(bounds))
        for path, numbers in itertools.groupby(needed.tolist(), lambda number: self.groups[number].path):
            started = time.perf_counter()
            with _opened(path) as file:
                self.counts.files_opened += 1
                for number in numbers:
                    wanted = rows[bounds[number] : bounds[number + 1]] - self._first[number]
                    parts.append(self._group(file, self.groups[number], wanted))
            self.counts.decode_seconds += time.perf_counter() - started
        return pa.concat_tables(parts)

    def batches(self) -> Iterator[tuple[RowGroup, pa.Table]]:
        """Every row group with its rows, in stored order."""
        for group in self.groups:
            yield group, self.read(np.arange(group.first_row, group.first_row + group.rows))

    def sample(self, rows: int, seed: int = 0) -> pa.Table:
        """At least ``rows`` rows, if there are so many: whole row groups, chosen by the seed.

        For fitting features on a table that is too large to be read. The groups must be alike: where files
        are sorted by time or user, take enough of them.
        """
        order = np.random.default_rng(seed).permutation(len(self.groups))
        held = np.cumsum([self.groups[number].rows for number in order])
        chosen = np.sort(order[: int(np.searchsorted(held, rows)) + 1])
        ranges = [np.arange(self._first[n], self._first[n] + self.groups[n].rows) for n in chosen]
        return self.read(np.concatenate([np.empty(0, dtype=np.int64), *ranges]))

    def _group(self, file: pq.ParquetFile, group: RowGroup, wanted: np.ndarray) -> pa.Table:
        try:
            # One thread: the ranks and workers beside this reader share the cores.
            table = file.read_row_group(group.index, columns=self.schema.names, use_threads=False)
        except (pa.ArrowInvalid, OSError, IndexError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"cannot read row group {group.index} of {group.path}, which seems damaged: {reason}"
            ) from None
        if table.num_rows != group.rows:
            raise UserError(
                f"row group {group.index} of {group.path} had {group.rows} rows at the start and has "
                f"{table.num_rows} now: the file was replaced; start the run again"
            )
        self.counts.groups_read += 1
        self.counts.rows_decoded += group.rows
        self.counts.rows_taken += len(wanted)
        if len(wanted) < group.rows:
            table = table.take(wanted)
        return table.select(self.schema.names).cast(self.schema)


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise UserError(
                f"too many open files: {path} cannot be opened, although a stream opens one file at a time; "
                "close what else this process holds open, or raise the limit (ulimit -n 65535)"
            ) from None
        raise UserError(
            f"cannot read {path}: {str(error).splitlines()[0]}; it was there when the run began"
        ) from None
