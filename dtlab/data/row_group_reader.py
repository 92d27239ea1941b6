"""Read chosen rows of Parquet files group by group: one file open at a time, one group in memory (lesson 11).

- Only the row groups that hold wanted rows are read, and of them only the columns that are used.
- With a ``Selection`` the rows are those of a split, numbered by themselves; other groups are never read.
- A file that is changed while a run reads it is an error, also where its new content would fit.
- Every file is closed before the next is opened, so ten thousand shards need one file descriptor per reader.
- ``counts`` tells what it cost: files opened, groups and rows decoded, rows taken, seconds.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtlab.data import parquet
from dtlab.data.columns import first_line
from dtlab.data.selection import Selection
from dtlab.data.shards import UNREADABLE, RowGroup, groups_of
from dtlab.errors import UserError

Stamps = Mapping[Path, tuple[int, int]]


def stamps(paths: Sequence[Path]) -> Stamps:
    """Size and time of files: another one means that somebody wrote there. UserError for a file that is gone.

    >>> stamps([])
    {}
    """
    return {path: _stamp(path) for path in paths}


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
        rows: which rows of the files; None for all.
        written: the ``stamps`` that the files must keep; None takes those of now.
        field: what the user calls the files.

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

    def __init__(
        self,
        paths: Sequence[Path],
        columns: Sequence[str],
        *,
        rows: Selection | None = None,
        written: Stamps | None = None,
        field: str = "data.path",
    ) -> None:
        self.schema = parquet.schema(paths, columns, field)
        self._written = stamps(paths) if written is None else written
        self.selection = rows
        self.counts = ReadCounts()
        stored = [group for group in groups_of(paths) if group.rows]
        if rows is not None and (held := sum(group.rows for group in stored)) != rows.num_stored:
            raise UserError(
                f"{paths[0]} (of {len(paths)} files) and the others had {rows.num_stored} rows at the start "
                f"and have {held} now: start the run again"
            )
        self.groups: list[RowGroup] = []
        """The groups that hold rows; their ``rows`` and ``first_row`` count the rows that are meant."""
        self._stored: list[RowGroup] = []
        first = 0
        for group in stored:
            held = group.rows if rows is None else len(rows.places(group.first_row, group.rows))
            if held:
                self.groups.append(replace(group, rows=held, first_row=first))
                self._stored.append(group)
                first += held
        self._first = np.array([group.first_row for group in self.groups], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of all files, or those of the selection."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    def row_numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numbers through the files, [N] int64, of rows of the selection given in ascending order."""
        if self.selection is None:
            return rows
        parts = [np.empty(0, dtype=np.int64)]
        for number, wanted in self._by_group(rows):
            stored = self._stored[number]
            parts.append(self.selection.places(stored.first_row, stored.rows)[wanted] + stored.first_row)
        return np.concatenate(parts)

    def _by_group(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The groups that hold the rows, and which of a group's own they are."""
        bounds = np.append(np.searchsorted(rows, self._first), len(rows))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            yield number, rows[bounds[number] : bounds[number + 1]] - self._first[number]

    def read(self, rows: np.ndarray) -> pa.Table:
        """The rows whose numbers are given in ascending order, [N] int64."""
        parts = [self.schema.empty_table()]
        by_file = itertools.groupby(self._by_group(rows), lambda item: self.groups[item[0]].path)
        for path, items in by_file:
            started = time.perf_counter()
            with _opened(path) as file:
                self.counts.files_opened += 1
                parts += [self._group(file, number, wanted) for number, wanted in items]
            self._require_unchanged(path)
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

    def _group(self, file: pq.ParquetFile, number: int, wanted: np.ndarray) -> pa.Table:
        group = self._stored[number]
        try:
            # One thread: the ranks and workers beside this reader share the cores.
            table = file.read_row_group(group.index, columns=self.schema.names, use_threads=False)
            table = table.select(self.schema.names).cast(self.schema)
        except UNREADABLE as error:
            self._require_unchanged(group.path)
            reason = first_line(error)
            raise UserError(
                f"cannot read row group {group.index} of {group.path}, which seems damaged: {reason}"
            ) from None
        if table.num_rows != group.rows:
            raise _changed(group.path)
        self.counts.groups_read += 1
        self.counts.rows_decoded += group.rows
        self.counts.rows_taken += len(wanted)
        if self.selection is not None:
            wanted = self.selection.places(group.first_row, group.rows)[wanted]
        if len(wanted) < group.rows:
            table = table.take(wanted)
        return table

    def _require_unchanged(self, path: Path) -> None:
        # Looked at after reading: a file that is replaced later gave the rows of before.
        if _stamp(path) != self._written[path]:
            raise _changed(path)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise _gone(path, error) from None
    return found.st_size, found.st_mtime_ns


def _changed(path: Path) -> UserError:
    return UserError(
        f"{path} was changed while the run read it: rows of two versions would be mixed; leave the files "
        "alone during a run, and start it again"
    )


def _gone(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot read {path}: {first_line(error)}; it was there when the run began")


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise UserError(
                f"too many open files: {path} cannot be opened, although a stream opens one file at a time; "
                "close what else this process holds open, or raise the limit (ulimit -n 65535)"
            ) from None
        raise _gone(path, error) from None
