"""The columnar loader: batches of a table in memory, gathered ahead by a thread (lessons 04 and 11).

- Rows are gathered for several steps at once, one ``index_select`` per column, and then cut into batches as
  views. A batch costs a few microseconds, not a Python loop over its rows.
- A batch is a copy of the table's rows: changing it in place does not change the data set.
- The state is the sampler's and counts what was *consumed*: batches that were gathered ahead and never handed
  over come again after resuming.
- Stopping early ends the thread; an error in the thread is raised in the loop that waits for it.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from dtlab.data.ahead import Ahead
from dtlab.data.batch import Batch
from dtlab.data.order import local_rows
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import UserError

CHUNK_ROWS = (
    16_384  # rows gathered at once; larger gains nothing, smaller pays the call per column more often
)


class Loader:
    """Iterate over this rank's batches from the sampler's position to the end of the epoch.

    Args:
        table: the split, all rows in memory.
        sampler: over ``len(table)`` samples.
        prefetch: batches that a thread keeps ready at least. 0 gathers in the loop itself: the cheapest way
            for a table in memory that is trained on a CPU.
        device: where the batches shall be; None leaves them where the table is.
        pin_memory: copy through page-locked memory; None does so for a CUDA device.
        chunk_rows: rows gathered at once (at least one batch).

    Raises:
        UserError: the sampler is over another number of samples, or ``prefetch`` is negative.

    >>> import torch
    >>> no_columns = torch.zeros(5, 0, dtype=torch.int64)
    >>> table = Batch(ids=torch.arange(5) + 10, categorical=no_columns, dense=torch.zeros(5, 1))
    >>> loader = Loader(table, GlobalBatchSampler(5, 2, shuffle=False), prefetch=0)
    >>> [batch.ids.tolist() for batch in loader]
    [[10, 11], [12, 13], [14]]
    """

    def __init__(
        self,
        table: Batch,
        sampler: GlobalBatchSampler,
        *,
        prefetch: int = 2,
        device: torch.device | str | None = None,
        pin_memory: bool | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        if sampler.num_samples != len(table):
            raise UserError(
                f"the sampler is over {sampler.num_samples} samples, the table has {len(table)} rows"
            )
        if prefetch < 0:
            raise UserError(f"prefetch is {prefetch}; give 0 (no thread) or the batches to keep ready")
        self.table = table
        self.sampler = sampler
        self.prefetch = prefetch
        self.device = None if device is None else torch.device(device)
        on_cuda = self.device is not None and self.device.type == "cuda"
        self.pin_memory = (on_cuda and table.ids.device.type == "cpu") if pin_memory is None else pin_memory
        self.chunk_steps = max(1, chunk_rows * sampler.world_size // sampler.global_batch)
        self.wait_seconds = 0.0
        """Seconds, over all epochs so far, that the consumer waited for data. Set it to 0 to measure anew."""

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.sampler.steps_per_epoch

    def state_dict(self) -> dict[str, int]:
        """Return the sampler's state: seed, epoch, position of what was consumed."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that was consumed when ``state`` was taken."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        walk = self.sampler.begin()  # compares the ranks: here and not in the thread, as it is a collective
        started = time.perf_counter()
        order = self.sampler.remaining()
        self.wait_seconds += time.perf_counter() - started
        return self._batches(walk, order)

    def _batches(self, walk: int, order: np.ndarray) -> Iterator[Batch]:
        sampler = self.sampler
        gather = _Gather(
            self.table,
            order,
            global_batch=sampler.global_batch,
            rank=sampler.rank,
            world_size=sampler.world_size,
            steps=self.chunk_steps,
            device=self.device,
            pin_memory=self.pin_memory,
        )
        chunks = gather.chunks()
        ahead = Ahead(chunks, max(1, -(-self.prefetch // self.chunk_steps))) if self.prefetch else None
        source = ahead or chunks
        try:
            while True:
                started = time.perf_counter()
                chunk = next(source, None)
                self.wait_seconds += time.perf_counter() - started
                if chunk is None:
                    break
                for batch, size in zip(chunk.batches, chunk.global_sizes, strict=True):
                    sampler.advance(size, walk)
                    yield batch
        finally:
            if ahead is not None:
                ahead.close()


class _Chunk(NamedTuple):
    batches: list[Batch]
    global_sizes: list[int]


class _Gather(NamedTuple):
    """How to cut the rest of an epoch into chunks, without a reference to the loader: a thread may own it."""

    table: Batch
    order: np.ndarray
    global_batch: int
    rank: int
    world_size: int
    steps: int
    device: torch.device | None
    pin_memory: bool

    def chunks(self) -> Iterator[_Chunk]:
        stride = self.steps * self.global_batch
        for start in range(0, len(self.order), stride):
            part = self.order[start : start + stride]
            rows, sizes = local_rows(part, self.global_batch, self.rank, self.world_size)
            taken = self.table.take(rows)
            if self.pin_memory:
                taken = taken.pin_memory()
            if self.device is not None:
                taken = taken.to(self.device, non_blocking=self.pin_memory)
            global_sizes = [self.global_batch] * len(sizes)
            global_sizes[-1] = len(part) - self.global_batch * (len(sizes) - 1)
            yield _Chunk(taken.split(sizes), global_sizes)
