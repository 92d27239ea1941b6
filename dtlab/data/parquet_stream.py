"""A Parquet table too large for memory as a stream of batches, in an order that no number of ranks changes
(lesson 11).

- The order is a pure function of (seed, epoch), see ``dtlab.data.stream``: row groups permuted, cut into
  windows of K groups, rows permuted inside a window. A rank takes its stride of every global batch, a worker
  its share of the rank's batches. So every epoch has ceil(rows / batch) steps on every rank, each row comes
  once, and a run resumes in mid-epoch on another world size.
- In memory are one decoded row group and this rank's rows of one window (two with a prefetch thread).
- The price: each rank and each worker decodes the groups of the whole window, and turns only its own rows
  into features. Decoding once is what a ``Cache`` is for: the columns are then mapped from disk.
- Features are fitted beforehand. They are applied to the rows of a window at once, which costs least; a
  worker applies them batch by batch, since its consumer would wait for the whole window.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from dtlab.data import cache_entries, parquet
from dtlab.data.batch import Batch
from dtlab.data.cache import Cache
from dtlab.data.features import REVISION, Features
from dtlab.data.row_group_reader import ReadCounts, RowGroupReader, Stamps
from dtlab.data.selection import Selection
from dtlab.data.stream import BlockStream, StreamSampler
from dtlab.errors import UserError


class ParquetStream(BlockStream):
    """This rank's batches of a Parquet table; give it to ``StreamLoader``, or iterate over it.

    Args:
        path: a file, a folder of shards, or files in a given order (then also the shards of one split).
        features: fitted on training rows; their columns, label and id are what is read. Without an id column
            the id is the row's number through the files.
        global_batch: rows per step, over all ranks.
        window: row groups whose rows are mixed; more mixes better and takes more memory.
        labels: False reads no label column.
        rows: which rows of the files; None for all.
        written: ``stamps`` of the files that must still hold when they are read; None for those of now.
        field: what the user calls the files.
        cache: where the features of all rows are kept; all ranks may make their stream at once.
        arguments: of ``StreamSampler``: rank, world_size, seed, shuffle, tail, group.

    Raises:
        UserError: a file, column or type that does not fit, or an argument that the sampler refuses.

    >>> stream = ParquetStream("logs/", features, 4096)                   # doctest: +SKIP
    >>> for batch, rows in global_steps(StreamLoader(stream)):            # doctest: +SKIP
    ...     trainer.step(batch, rows)
    """

    sampler: StreamSampler

    def __init__(
        self,
        path: str | Path | Sequence[Path],
        features: Features,
        global_batch: int,
        *,
        window: int = 4,
        labels: bool = True,
        rows: Selection | None = None,
        written: Stamps | None = None,
        field: str = "data.path",
        cache: Cache | None = None,
        **arguments: Any,
    ) -> None:
        self.paths = parquet.files(path) if isinstance(path, str | Path) else list(path)
        if not self.paths:
            raise UserError("path holds no file: name a Parquet file, a folder, or a list of files")
        self.features = features
        spec = features.spec
        self._label = spec.label if labels else None
        # Row numbers are a column that dtlab itself adds to tables in memory; here they need none.
        self._id = None if spec.id == parquet.ROW else spec.id
        named = (name for name in (self._label, self._id) if name is not None)
        used = list(dict.fromkeys([*spec.inputs(), *named]))
        self.reader = RowGroupReader(self.paths, used, rows=rows, written=written, field=field)
        parquet.require_rows(self.reader.num_rows, self.paths, field)
        self.transform_seconds = 0.0
        blocks = [group.rows for group in self.reader.groups]
        super().__init__(StreamSampler(blocks, global_batch, window=window, **arguments), self._block)
        self.table: Batch | None = None
        """The columns of all rows, mapped or in memory, when there is a cache."""
        if cache is not None and cache.kind != "none":
            key = self._key(cache)
            self.table = cache.columns(key, len(self), self._all)
            self._place = cache.place(key)

    def __len__(self) -> int:
        """Rows of the table, or those of ``rows``."""
        return self.reader.num_rows

    @property
    def counts(self) -> ReadCounts:
        """What this process has read so far."""
        return self.reader.counts

    def walk(self, worker: int, num_workers: int) -> Iterator[Batch]:
        """Yield one worker's share of this rank's batches, without moving the sampler."""
        for batches in self.chunks(worker, num_workers, at_once=get_worker_info() is None):
            yield from batches

    def chunks(
        self,
        worker: int = 0,
        num_workers: int = 1,
        finish: Callable[[Batch], Batch] | None = None,
        *,
        at_once: bool = True,
    ) -> Iterator[list[Batch]]:
        """As ``walk``, the batches that a window completes at a time; one by one if not ``at_once``.

        ``finish`` is applied to the rows of a window before they are cut (page-locking, device).
        """
        sampler = self.sampler
        size, end = sampler.global_batch, sampler.remaining_samples
        start, carry = 0, []
        for rows in sampler.windows():
            stop = start + len(rows)
            steps, inside = np.divmod(np.arange(start, stop), size)
            mine = (steps % num_workers == worker) & (inside % sampler.world_size == sampler.rank)
            first, last = start // size, (stop - 1) // size
            numbers = [n for n in range(first, last + 1) if n % num_workers == worker]
            start = stop
            if not numbers:
                continue
            counts = np.bincount(steps[mine] - first, minlength=last - first + 1)
            sizes = [int(counts[n - first]) for n in numbers]
            if at_once:
                taken = self._rows(rows[mine])
                parts: Iterable[Batch] = (taken if finish is None else finish(taken)).split(sizes)
            else:
                parts = self._one_by_one(rows[mine], sizes)
            complete = []
            for number, part in zip(numbers, parts, strict=True):
                carry.append(part)
                if min((number + 1) * size, end) <= stop:
                    complete.append(carry[0] if len(carry) == 1 else Batch.concat(carry))
                    carry = []
                    if not at_once:
                        yield [complete.pop()]
            # A batch that goes on in the next window must not keep this whole window in memory.
            carry = [part.take(np.arange(len(part))) for part in carry]
            if complete:
                yield complete

    def take(self, rows: np.ndarray) -> Batch:
        """The rows with these numbers, [K] int64, in this order."""
        return self._rows(rows)

    def _rows(self, rows: np.ndarray) -> Batch:
        if self.table is not None:
            batch = self.table.take(rows)
            if not cache_entries.is_within(batch, self.features):  # what is mapped was not looked at before
                raise UserError(f"the kept columns in {self._place} are damaged: delete that folder")
            return batch
        ascending, back = ascending_order(rows)
        return self._transformed(self.reader.read(ascending), ascending).take(back)

    def _one_by_one(self, rows: np.ndarray, sizes: list[int]) -> Iterator[Batch]:
        """``rows`` read at once, and made into batches of these sizes one after the other."""
        ascending, back = ascending_order(rows)
        table = self.reader.read(ascending)
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            places, inside = ascending_order(back[end - size : end])
            yield self._transformed(table.take(places), ascending[places]).take(inside)

    def _transformed(self, table: Any, rows: np.ndarray) -> Batch:
        started = time.perf_counter()
        batch = self.features.transform(table, labels=self._label is not None)
        if self._id is None:
            batch = dataclasses.replace(batch, ids=torch.from_numpy(self.reader.row_numbers(rows)))
        self.transform_seconds += time.perf_counter() - started
        return batch

    def _block(self, number: int) -> Batch:
        group = self.reader.groups[number]
        return self._rows(np.arange(group.first_row, group.first_row + group.rows))

    def _all(self) -> Iterator[Batch]:
        for group, table in self.reader.batches():
            yield self._transformed(table, np.arange(group.first_row, group.first_row + group.rows))

    def _key(self, cache: Cache) -> str:
        selection = self.reader.selection
        content = cache.digest(self.paths) if selection is None else selection.key
        text = repr((REVISION, "stream", content, self.features.to_json(), self._label))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker process that is not forked: no process group, no table."""
        if self.table is not None:
            raise UserError("a stream with a cache has its columns mapped already; use num_workers=0")
        sampler = copy.copy(self.sampler)
        sampler._group = None  # workers take no part in collectives
        return {**self.__dict__, "sampler": sampler}


def ascending_order(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows in ascending order, and where each of them then stands: ``ascending[back]`` is ``rows``.

    >>> [part.tolist() for part in ascending_order(np.array([7, 2, 5]))]
    [[2, 5, 7], [2, 0, 1]]
    """
    order = np.argsort(rows)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return rows[order], back


def rows_to_score(
    path: str | Path, features: Features, batch: int, field: str = "parquet", *, row_numbers: bool = True
) -> ParquetStream:
    """All rows at ``path`` in file order, as the model that ``features`` belongs to expects them, unlabelled.

    ``batch`` rows at a time, for one process; ids are the id column when the files hold it, else row numbers.

    Raises:
        UserError: a path, file or column that does not fit; or, without ``row_numbers``, the id is not there.
    """
    paths = parquet.files(path, field)
    spec = features.spec
    if spec.id not in (None, parquet.ROW, *parquet.footer(paths[0], field).names):
        if not row_numbers:
            raise UserError(
                f"{field}: {paths[0]} has no column {spec.id!r}, the model's id, so scores would carry row "
                "numbers; add the column, or ask for them with --row-numbers"
            )
        features = dataclasses.replace(features, spec=dataclasses.replace(spec, id=parquet.ROW))
    alone: dict[str, Any] = {"shuffle": False, "rank": 0, "world_size": 1}
    rows = ParquetStream(paths, features, batch, window=1, labels=False, field=field, **alone)
    try:
        features.transform(rows.reader.schema.empty_table(), labels=False)
    except UserError as error:
        raise UserError(f"{field}: {paths[0]}: {error}") from None
    return rows
