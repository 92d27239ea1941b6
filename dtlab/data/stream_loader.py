"""The loader over a ``ParquetStream``, with the interface of ``Loader``: a thread or worker processes read
ahead (lesson 11).

- ``prefetch`` windows are made ready by a thread: enough as long as one reader is faster than the training
  step. ``num_workers`` processes read when it is not; ``dtlab.data.workers`` says when that pays.
- The batches are the same in all three ways, and the state counts what was *consumed*.
- Workers are not forked where that may deadlock (other threads, a process group, CUDA), and one that stays
  silent for ``worker_timeout`` seconds is an error and not a hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from dtlab.data.ahead import Ahead
from dtlab.data.batch import Batch
from dtlab.data.config import most_workers
from dtlab.data.loader import Loader
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream import StreamSampler
from dtlab.data.torch_adapter import data_loader
from dtlab.data.workers import silent_worker, start_method
from dtlab.errors import UserError


class StreamLoader:
    """Iterate over this rank's batches from the sampler's position to the end of the epoch.

    Args:
        stream: what to read.
        prefetch: windows that a thread keeps ready; 0 reads in the loop itself. Not used with workers.
        num_workers: processes that make batches; 0 for none. New ones start with every epoch.
        prefetch_factor: batches that each worker makes ahead.
        worker_start_method: "fork", "forkserver" or "spawn"; None takes fork where it is safe.
        worker_timeout: seconds that a batch of a worker may take.
        device: where the batches shall be; None leaves them on the CPU.
        dtype: of the columns of real numbers; None leaves them float32.
        pin_memory: copy through page-locked memory; None does so for a CUDA device.

    Raises:
        UserError: a number below 0, more than ``most_workers``, or workers for a stream that has a cache.

    >>> loader = StreamLoader(ParquetStream("logs/", features, 4096), prefetch=1)    # doctest: +SKIP
    >>> trainer.train_epoch(loader)                                                  # doctest: +SKIP
    """

    def __init__(
        self,
        stream: ParquetStream,
        *,
        prefetch: int = 1,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        worker_start_method: str | None = None,
        worker_timeout: float = 300.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        pin_memory: bool | None = None,
    ) -> None:
        for name, value, least in (
            ("prefetch", prefetch, 0),
            ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
        ):
            if value < least:
                raise UserError(f"{name} is {value}; give {least} or more")
        if num_workers > most_workers():
            raise UserError(f"num_workers is {num_workers}; give {most_workers()} or less on this machine")
        if num_workers and stream.table is not None:
            raise UserError(
                f"num_workers is {num_workers}, but the stream has a cache: its columns are mapped and "
                "nothing is left to decode; use num_workers=0"
            )
        self.stream = stream
        self.sampler: StreamSampler = stream.sampler
        self.prefetch = prefetch
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.worker_start_method = worker_start_method
        self.worker_timeout = worker_timeout
        self.device = None if device is None else torch.device(device)
        self.dtype = dtype
        on_cuda = self.device is not None and self.device.type == "cuda"
        self.pin_memory = on_cuda if pin_memory is None else pin_memory
        self.wait_seconds = 0.0
        """Seconds, over all epochs so far, that the consumer waited for data. Set it to 0 to measure anew."""

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.sampler.steps_per_epoch

    def state_dict(self) -> dict[str, int]:
        """Return the sampler's state: seed, epoch, position of what was consumed, layout."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that was consumed when ``state`` was taken."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        # Here and not at the first batch or in the thread: comparing the ranks is a collective.
        return self._with_workers() if self.num_workers else self._in_process(self.sampler.begin())

    def _in_process(self, walk: int) -> Iterator[Batch]:
        sampler, left = self.sampler, self.sampler.remaining_samples
        chunks = self.stream.chunks(finish=self._finish)
        ahead = Ahead(chunks, self.prefetch) if self.prefetch else None
        source: Iterator[list[Batch]] = ahead if ahead is not None else chunks
        try:
            while left:
                started = time.perf_counter()
                batches = next(source)
                self.wait_seconds += time.perf_counter() - started
                for batch in batches:
                    size = min(sampler.global_batch, left)
                    left -= size
                    sampler.advance(size, walk)
                    yield batch
        finally:
            if ahead is not None:
                ahead.close()

    def _with_workers(self) -> Iterator[Batch]:
        method = start_method(self.worker_start_method)
        loader = data_loader(
            self.stream,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            multiprocessing_context=method,
            timeout=self.worker_timeout,
        )
        return self._received(iter(loader), method)

    def _received(self, batches: Iterator[Batch], method: str) -> Iterator[Batch]:
        while True:
            started = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                with suppress(AttributeError):
                    batches.close()  # type: ignore[attr-defined]
                if "timed out" in str(error):
                    raise silent_worker(self.sampler, self.worker_timeout, method) from error
                raise
            # A copy of our own: a tensor in shared memory holds a file descriptor as long as it lives.
            batch = self._finish(Batch(**{name: c.clone() for name, c in batch.columns().items()}))
            self.wait_seconds += time.perf_counter() - started
            yield batch

    def _finish(self, batch: Batch) -> Batch:
        if self.pin_memory:
            batch = batch.pin_memory()
        if self.device is None and self.dtype is None:
            return batch
        device = batch.ids.device if self.device is None else self.device
        return batch.to(device, dtype=self.dtype, non_blocking=self.pin_memory)


AnyLoader = Loader | StreamLoader
"""What a trainer walks through: batches of a table in memory, or of a stream."""
