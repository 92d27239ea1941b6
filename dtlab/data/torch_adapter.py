"""The sampler in a plain ``torch.utils.data.DataLoader`` (lesson 04).

- ``TorchBatchSampler`` goes in as ``batch_sampler=``, in place of ``DistributedSampler``.
- ``data_loader`` builds the whole thing: exact resume with worker processes (what they made ahead does not
  count), draws that belong to the batch (see ``dtlab.data.draws``), empty batches in the tail, and a dead
  worker that is named with its rank and exit code.
"""

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from dtlab.data.draws import drawing_from
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.script_guard import refuse_unguarded_script, refuse_without_locks
from dtlab.data.stream import BlockStream
from dtlab.data.worker_death import end_workers, in_start_order, naming_dead_workers, wrap_handler
from dtlab.data.worker_signals import EndedByRankOnly, signals_held
from dtlab.errors import DtlabWarning, UserError


class TorchBatchSampler(Sampler[list[int]]):
    """Yield this rank's part of every global batch as a list of indices (``batch_sampler=``).

    Call ``set_epoch(epoch)`` before each epoch, as with ``DistributedSampler``. A second epoch without it
    warns and goes on with the next order by itself. With worker processes the loader asks ahead, and the
    position counts batches that were asked for: to resume exactly with workers, use ``data_loader``.

    Raises:
        UserError: the tail would give a rank an empty batch, which the default ``collate_fn`` cannot make;
            with ``empty_batches=True`` they are yielded.

    >>> sampler = TorchBatchSampler(GlobalBatchSampler(6, 4, rank=1, world_size=2, shuffle=False))
    >>> list(DataLoader(torch.arange(6), batch_sampler=sampler))
    [tensor([1, 3]), tensor([5])]
    """

    def __init__(self, sampler: GlobalBatchSampler, *, empty_batches: bool = False) -> None:
        last = sampler.counts(len(sampler) - 1) if len(sampler) else []
        if 0 in last and not empty_batches:
            raise UserError(
                f"the last global batch has {sum(last)} samples for {len(last)} ranks, and the default "
                "collate_fn cannot make an empty batch; use tail='drop', or build the loader by data_loader()"
            )
        self.sampler = sampler
        self._epoch_was_set = True

    def __iter__(self) -> Iterator[list[int]]:
        if not self._epoch_was_set and self.sampler.shuffle:
            warnings.warn(
                f"set_epoch was not called before this epoch, so the order of epoch {self.sampler.epoch} is "
                "used; torch's DistributedSampler would repeat its order. Call set_epoch before each epoch",
                DtlabWarning,
                stacklevel=2,
            )
            self._epoch_was_set = True  # said once an epoch
        return self._lists(iter(self.sampler))

    def _lists(self, batches: Iterator[Any]) -> Iterator[list[int]]:
        for indices in batches:
            # Only now: a DataLoader with workers makes two iterators of its first epoch and drops one.
            self._epoch_was_set = False
            yield indices.tolist()

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; the same number on every rank."""
        self._epoch_was_set = True
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the sampler's state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._epoch_was_set = True
        self.sampler.load_state_dict(state)


def data_loader(
    dataset: "Dataset[Any] | BlockStream",
    sampler: GlobalBatchSampler | None = None,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    **arguments: Any,
) -> "SampledDataLoader":
    """Build a ``DataLoader`` over a map-style data set (with a sampler) or over a ``BlockStream``.

    Args:
        dataset: ``dataset[i]`` is a sample; random draws in it are repeated exactly after a resume.
        sampler: not for a ``BlockStream``, which has its own.
        collate_fn: list of samples -> batch; torch's default.
        arguments: of the ``DataLoader``: num_workers, prefetch_factor, persistent_workers, pin_memory, ...

    Raises:
        UserError: a data set without ``dataset[i]``, an argument that the sampler decides (batch_size,
            shuffle, sampler, batch_sampler, drop_last), persistent workers over a stream, or a sampler over
            another number of samples. When iterated: workers would run the script again
            (``script_guard.py``).

    >>> loader = data_loader(torch.arange(5), GlobalBatchSampler(5, 2, shuffle=False))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """
    taken = sorted({"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & set(arguments))
    if taken:
        raise UserError(f"{taken[0]}={arguments[taken[0]]!r} is decided by the sampler; leave it out")
    # torch draws a number for the workers at each start; it must not come from the rank's own generator.
    arguments.setdefault("generator", torch.Generator())
    if arguments.get("num_workers"):
        arguments["worker_init_fn"] = EndedByRankOnly(arguments.get("worker_init_fn"))
    if isinstance(dataset, BlockStream):
        if sampler is not None or collate_fn is not None:
            raise UserError(
                "a BlockStream brings its own sampler and batches; leave sampler and collate_fn out"
            )
        if arguments.get("persistent_workers"):
            raise UserError("persistent_workers=True would keep a stream in its first epoch; leave it out")
        return SampledDataLoader(DataLoader(_Share(dataset), batch_size=None, **arguments), dataset.sampler)
    if sampler is None:
        raise UserError("sampler is missing; give a GlobalBatchSampler over the data set")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UserError(
            f"dataset = a {type(dataset).__name__}: it has no dataset[i], so no order and no place to resume "
            "at; give a map-style data set or a BlockStream, or keep your loader and resume it by "
            "fast_forward (dtlab.data.foreign)"
        )
    rows = len(dataset) if hasattr(dataset, "__len__") else sampler.num_samples
    if rows != sampler.num_samples:
        raise UserError(f"the sampler is over {sampler.num_samples} samples, the data set has {rows}")
    seeded = _SeededBatches(dataset, collate_fn or default_collate)
    loader: DataLoader[Any] = DataLoader(
        seeded, batch_sampler=_Plan(sampler), collate_fn=_as_it_is, **arguments
    )
    return SampledDataLoader(loader, sampler)


class SampledDataLoader:
    """What ``data_loader`` returns: iterate it epoch after epoch; its state counts what was consumed."""

    def __init__(self, loader: "DataLoader[Any]", sampler: GlobalBatchSampler) -> None:
        self._loader: DataLoader[Any] | None = loader
        self._workers: list[BaseProcess] = []
        self.sampler = sampler
        self.wait_seconds = 0.0
        """Seconds, over all epochs so far, that the consumer waited for data. Set it to 0 to measure anew."""

    def __len__(self) -> int:
        return len(self.sampler)

    def state_dict(self) -> dict[str, int]:
        """Return seed, epoch and position of what was consumed."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that was consumed when ``state`` was taken."""
        self.sampler.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; not needed between epochs."""
        self.sampler.set_epoch(epoch)

    def close(self) -> None:
        """End persistent workers; other workers end with their epoch."""
        self._loader = None
        self._workers = []

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise UserError("this loader was closed; make a new one")
        context = self._loader.multiprocessing_context or multiprocessing
        refuse_unguarded_script(self._loader.num_workers, context.get_start_method())
        refuse_without_locks(self._loader.num_workers)
        return self._batches(self._loader, self.sampler.begin())

    def _batches(self, loader: "DataLoader[Any]", walk: int) -> Iterator[Any]:
        made: list[Iterator[Any]] = []
        try:
            yield from self._made(loader, walk, made)
        finally:
            if not loader.persistent_workers:
                end_workers(made)

    def _made(self, loader: "DataLoader[Any]", walk: int, made: list[Iterator[Any]]) -> Iterator[Any]:
        sampler = self.sampler
        left = sampler.remaining_samples
        with naming_dead_workers(sampler.rank, sampler.world_size) as named:
            before = set(multiprocessing.active_children())
            method = (loader.multiprocessing_context or multiprocessing).get_start_method()
            with signals_held(method):
                iterator = iter(loader)
            made.append(iterator)
            started = in_start_order(set(multiprocessing.active_children()) - before)
            named.workers = started or self._workers
            if loader.persistent_workers:
                self._workers = (
                    named.workers
                )  # later epochs start none; others must not be kept, nor their files
            if named.workers:
                wrap_handler()
            if named.workers and method == "forkserver":
                named.watch()
            while left:
                asked = time.perf_counter()
                batch = next(iterator)
                self.wait_seconds += time.perf_counter() - asked
                size = min(sampler.global_batch, left)
                left -= size
                sampler.advance(size, walk)
                yield batch


class _Indices(list[int]):
    """Indices of a batch that carry their place (seed, epoch, position, rank) to the worker that makes it."""

    place: tuple[int, ...] = ()


class _Plan(Sampler[list[int]]):
    """The batches from the sampler's position on, without moving it: the consumer does."""

    def __init__(self, sampler: GlobalBatchSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._sampler
        seed, epoch, position = sampler.seed, sampler.epoch, sampler.position
        for global_batch in sampler.global_batches():
            indices = _Indices(sampler.local(global_batch).tolist())
            indices.place = (seed, epoch, position, sampler.rank)
            position += len(global_batch)
            yield indices

    def __len__(self) -> int:
        return len(self._sampler)


class _SeededBatches(Dataset[Any]):
    """Make a whole batch under the generators of its place; an empty one has the shape of a batch of none."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: _Indices) -> Any:
        with drawing_from(*indices.place):
            if not indices:
                one = self._collate([self._dataset[0]])
                return _pytree.tree_map(lambda x: x[:0] if isinstance(x, torch.Tensor) else x, one)
            if hasattr(self._dataset, "__getitems__"):
                return self._collate(self._dataset.__getitems__(list(indices)))
            return self._collate([self._dataset[index] for index in indices])


class _Share(IterableDataset[Any]):
    """This worker's share of a stream, which the consumer counts."""

    def __init__(self, stream: BlockStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        return self._stream.walk(worker.id, worker.num_workers) if worker else self._stream.walk(0, 1)


def _as_it_is(batch: Any) -> Any:
    return batch
