"""When do loader workers pay, and when do they deadlock? An answer with its reason (lesson 11).

The rule "num_workers must be 0" is wrong, and so is "take 4". What decides:

- *Do they pay?* A worker costs a copy through shared memory and a queue with every batch. A thread costs
  next to nothing, but is one reader, and Python code in it stops the training step (one lock for all Python
  code of a process, the GIL; Arrow and NumPy release it). Workers share the work of making features; each of
  them decodes every row group of the window again, so decoding is the floor of a step.
- *Do they deadlock?* A forked worker inherits the locks that the parent's other threads hold, and nobody ever
  frees them: those of a prefetch thread, of gloo and NCCL, of CUDA. Then start by forkserver or spawn.
- *Do they die?* Batches travel in /dev/shm, 64 MB in a container by default; a full one kills the worker.
- Workers do not make ranks unequal: a stream here has the same number of steps on every rank by
  construction. Where each rank reads its own files, or drops the tail of every worker, it has not.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import sys
import threading
from dataclasses import dataclass
from functools import partial

import torch

from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.worker_death import DataLoaderWorkerError
from dtlab.errors import UserError
from dtlab.ranks import agreement

QUEUE_SECONDS = 2e-3
"""Seconds that the consumer spends on a batch from a worker: queue, mapping, copy (``benchmarks.stream``)."""
WORTH = 1.1
"""Workers must make a step this much faster: they cost memory, a start with every epoch, and hard faults."""
WORKER_PRELOAD = ["torch", "dtlab.data.stream_loader"]
SHM = "/dev/shm"


@dataclass(frozen=True)
class WorkerAdvice:
    """How to load, why, and how long a step is then expected to take."""

    num_workers: int
    prefetch: int
    """Windows that a thread reads ahead; used when there are no workers."""
    start_method: str
    step_seconds: float
    reason: str


def expected_step_seconds(
    *,
    decode_seconds: float,
    transform_seconds: float,
    step_seconds: float,
    python_seconds: float = 0.0,
    prefetch: int = 0,
    num_workers: int = 0,
) -> float:
    """Seconds of a step in the long run, waiting included; arguments as of ``recommend_workers``.

    - without a thread the sum;
    - with a thread the larger of ``decode + transform`` and ``step + python``;
    - with W workers the larger of ``step + QUEUE_SECONDS`` and ``decode + transform / W``: each decodes the
      whole window and makes every W-th batch.

    A thread and each worker are taken to have a core of their own. ``benchmarks.stream`` measures beside it.

    >>> times = {"decode_seconds": 0.002, "transform_seconds": 0.04, "step_seconds": 0.01}
    >>> [round(expected_step_seconds(**times, num_workers=workers), 3) for workers in (0, 1, 2, 4, 8)]
    [0.052, 0.042, 0.022, 0.012, 0.012]
    """
    if num_workers:
        return max(step_seconds + QUEUE_SECONDS, decode_seconds + transform_seconds / num_workers)
    if prefetch:
        return max(decode_seconds + transform_seconds, step_seconds + python_seconds)
    return decode_seconds + transform_seconds + step_seconds


def recommend_workers(
    *,
    decode_seconds: float,
    transform_seconds: float,
    step_seconds: float,
    python_seconds: float = 0.0,
    batch_bytes: int = 0,
    cores: int | None = None,
    ranks_per_host: int = 1,
    prefetch_factor: int = 2,
    shm_bytes: int | None = None,
) -> WorkerAdvice:
    """Say how many workers a rank's loader should have.

    Args:
        decode_seconds: to decode what one step needs, in one reader (``ReadCounts.decode_seconds`` / steps).
        transform_seconds: to make this rank's batch of it (``ParquetStream.transform_seconds`` / steps).
        step_seconds: of training on a batch, without waiting for data.
        python_seconds: what of ``transform_seconds`` is Python code, a loop over rows for example. That of
            ``Features`` is close to none.
        batch_bytes: of one batch of this rank.
        cores: of this host; by default those that this process may use. Give fewer where others keep them
            busy: a reader without a free core gains nothing.
        ranks_per_host: ranks that share the cores and /dev/shm.
        prefetch_factor: batches that each worker makes ahead.
        shm_bytes: free in /dev/shm; by default as it is now.

    The way with the least ``expected_step_seconds`` wins, workers by ``WORTH`` at least.

    Raises:
        UserError: a negative time, or no core.

    >>> fast = recommend_workers(decode_seconds=0, transform_seconds=1e-5, step_seconds=0.01, cores=8)
    >>> fast.num_workers
    0
    >>> slow = recommend_workers(decode_seconds=1e-3, transform_seconds=0.03, step_seconds=0.01, cores=8)
    >>> slow.num_workers
    3
    """
    for name, seconds in (
        ("decode_seconds", decode_seconds),
        ("transform_seconds", transform_seconds),
        ("step_seconds", step_seconds),
        ("python_seconds", python_seconds),
    ):
        if not 0 <= seconds < math.inf:
            raise UserError(f"{name} is {seconds}; give the seconds of one step, 0 or more")
    cores = usable_cores() if cores is None else cores
    if cores < 1 or ranks_per_host < 1 or prefetch_factor < 1:
        raise UserError(
            f"cores is {cores}, ranks_per_host {ranks_per_host}, prefetch_factor {prefetch_factor}; "
            "give 1 or more of each"
        )
    method = start_method()
    make = decode_seconds + transform_seconds
    spare = cores // ranks_per_host - 1
    ms = f"{make * 1e3:.3g} ms to make a batch, {step_seconds * 1e3:.3g} ms to train on it"
    if make <= 0.02 * step_seconds:
        return WorkerAdvice(
            0, 0, method, make + step_seconds,
            f"{ms}: nothing to gain. A slice of columns in memory costs less than its way through a queue",
        )  # fmt: skip
    if spare < 1:
        return WorkerAdvice(
            0, 0, method, make + step_seconds,
            f"{cores} cores for {ranks_per_host} ranks leave none to a reader: a thread or worker would take "
            "its time from the training step",
        )  # fmt: skip
    expected = partial(
        expected_step_seconds,
        decode_seconds=decode_seconds,
        transform_seconds=transform_seconds,
        step_seconds=step_seconds,
        python_seconds=python_seconds,
    )
    threaded = expected(prefetch=1)
    if threaded <= step_seconds + QUEUE_SECONDS:
        return WorkerAdvice(
            0, 1, method, threaded, f"{ms}: one thread reads ahead as fast as the step consumes"
        )
    room = shm_free() if shm_bytes is None else shm_bytes
    # Of each worker: what it makes ahead, and one on its way. Half of the room is left to others.
    per_worker = 2 * ranks_per_host * (prefetch_factor + 1) * batch_bytes
    fits = room // per_worker if per_worker else spare if room else 0

    most = min(spare, fits)
    if most < 1:
        return WorkerAdvice(
            0, 1, method, threaded,
            f"{ms}, but {SHM} has {room / 1e6:.3g} MB free and a worker on each rank ({ranks_per_host} here) "
            f"needs {per_worker / 1e6:.3g} MB with a margin: one that fills it is killed (bus error). "
            "Give the container more (--shm-size), or use the thread",
        )  # fmt: skip
    best = min(expected(num_workers=n) for n in range(1, most + 1))
    number = next(n for n in range(1, most + 1) if expected(num_workers=n) <= 1.02 * best)
    gain = threaded / expected(num_workers=number)
    if gain < WORTH and most == 1 and decode_seconds <= transform_seconds:
        return WorkerAdvice(
            0, 1, method, threaded,
            f"{ms}: there is a core, or room in {SHM}, for one worker only: no faster than a thread",
        )  # fmt: skip
    if gain < WORTH:
        return WorkerAdvice(
            0, 1, method, threaded,
            f"{ms}: {number} workers would gain {100 * (gain - 1):.0f} %, as each decodes the whole window "
            f"again ({decode_seconds * 1e3:.3g} ms a step). A disk cache decodes once",
        )  # fmt: skip
    limit = (
        "" if number < most else f"; more are kept out by {SHM}" if fits < spare else "; more have no core"
    )
    return WorkerAdvice(
        number, 0, method, expected(num_workers=number),
        f"{ms}: {number} worker{'s' * (number > 1)}, {gain:.1f}x faster than a thread{limit}",
    )  # fmt: skip


def start_method(wanted: str | None = None) -> str:
    """How to start workers: as wanted, else fork where that is safe, else forkserver, else spawn.

    Raises:
        UserError: this system has no such method.

    >>> start_method("spawn")
    'spawn'
    """
    there = multiprocessing.get_all_start_methods()
    if wanted is not None and wanted not in there:
        raise UserError(f"worker_start_method is {wanted!r}; this system has {', '.join(there)}")
    method = wanted
    if method is None:
        safe = "fork" in there and sys.platform != "darwin" and why_not_fork() is None
        method = "fork" if safe else "forkserver" if "forkserver" in there else "spawn"
    if method == "forkserver":
        # Imported once, in the server: without it every worker of every epoch imports torch for seconds.
        multiprocessing.set_forkserver_preload(WORKER_PRELOAD)
    return method


def why_not_fork() -> str | None:
    """What makes forking this process unsafe, or None. OpenMP's threads do not: a worker uses one thread."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "CUDA is in use, and a forked process cannot use it"
    if agreement.has_group():
        return (
            "a process group exists, and its threads (gloo, NCCL) hold locks that a forked process never gets"
        )
    others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    if others:
        return f"the threads {', '.join(others)} may hold locks that a forked process never gets"
    return None


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shm_free() -> int:
    """Free bytes for batches on their way from workers, none where it cannot be written.

    No limit is known where there is no /dev/shm.
    """
    try:
        free = shutil.disk_usage(SHM).free
        return free if os.access(SHM, os.W_OK) else 0
    except OSError:
        return sys.maxsize


def silent_worker(sampler: GlobalBatchSampler, seconds: float, method: str) -> DataLoaderWorkerError:
    """The error for workers that live and give nothing."""
    why = (
        "they were forked, and may wait for a lock that another thread held at that moment; use "
        "worker_start_method='forkserver'"
        if method == "fork"
        else "the source may be slow or stuck; raise worker_timeout, or see where it is with num_workers=0"
    )
    return DataLoaderWorkerError(
        f"the data loader workers on rank {sampler.rank} of {sampler.world_size} gave no batch for "
        f"{seconds:g} s: {why}"
    )
