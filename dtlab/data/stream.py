"""Streams: data read block by block (row groups, files), never permuted as a whole (lessons 04 and 11).

- The order is a pure function of (seed, epoch): the blocks are permuted and cut into windows of ``window``
  blocks; the rows are permuted inside a window. All ranks shuffle with one seed and take their stride after.
- Batches run on over the borders of blocks and windows: every batch is full but the last, whatever the sizes
  of the blocks, so ranks with equal rows take equal steps.
- Worker w of W builds the batches w, w + W, ...: the tail is that of the whole set, not one per worker.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dtlab.data.batch import Batch
from dtlab.data.draws import drawing_from
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import UserError


def window_order(
    block_rows: Sequence[int], *, window: int, seed: int, epoch: int, shuffle: bool = True
) -> Iterator[np.ndarray]:
    """Yield the row numbers of one window after the other; row numbers count through the blocks as stored.

    >>> [w.tolist() for w in window_order([2, 1, 2], window=2, seed=0, epoch=0, shuffle=False)]
    [[0, 1, 2], [3, 4]]
    """
    first = np.concatenate([[0], np.cumsum(block_rows, dtype=np.int64)])
    for number, blocks in enumerate(_windows(len(block_rows), window, seed, epoch, shuffle)):
        yield _mixed(blocks, first, number, seed, epoch, shuffle)


def _windows(count: int, window: int, seed: int, epoch: int, shuffle: bool) -> Iterator[np.ndarray]:
    blocks = _generator(seed, epoch).permutation(count) if shuffle else np.arange(count)
    return (blocks[start : start + window] for start in range(0, count, window))


def _mixed(
    blocks: np.ndarray, first: np.ndarray, number: int, seed: int, epoch: int, shuffle: bool
) -> np.ndarray:
    """The rows of window ``number``. It draws from a generator of its own, so windows can be skipped."""
    rows = np.concatenate([np.arange(first[block], first[block + 1]) for block in blocks])
    return _generator(seed, epoch, number).permutation(rows) if shuffle else rows


def _generator(seed: int, epoch: int, *window: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch], spawn_key=window)))


class StreamSampler(GlobalBatchSampler):
    """A ``GlobalBatchSampler`` whose order stays inside windows of blocks; same tails and checks.

    Args:
        block_rows: rows of each block, in stored order.
        window: blocks that are open at once; more mixes better and needs more memory.
        arguments: those of ``GlobalBatchSampler``, without weights.

    >>> sampler = StreamSampler([30, 10], 8, rank=0, world_size=1)
    >>> [len(batch) for batch in sampler]
    [8, 8, 8, 8, 8]
    """

    def __init__(
        self, block_rows: Sequence[int], global_batch: int, *, window: int = 4, **arguments: Any
    ) -> None:
        if window < 1:
            raise UserError(f"window is {window}; give 1 block or more")
        if arguments.get("weights") is not None:
            raise UserError(
                "weights need random access to all rows, which a stream has not; use GlobalBatchSampler"
            )
        self.block_rows = [int(rows) for rows in block_rows]
        self.window = window
        self._first = np.concatenate([[0], np.cumsum(self.block_rows, dtype=np.int64)])
        self._checksum = zlib.crc32(self._first.tobytes())
        self.layout = zlib.crc32(f"{self._checksum} {window}".encode())
        super().__init__(int(self._first[-1]), global_batch, **arguments)

    def windows(self) -> Iterator[np.ndarray]:
        """Yield the row numbers from ``position`` to the end of the epoch, one window after the other.

        Windows before ``position`` cost nothing: no row of them is permuted or read.
        """
        skip, left = self.position, self._end(self.position) - self.position
        place = (self.seed, self.epoch, self.shuffle)
        for number, blocks in enumerate(_windows(len(self.block_rows), self.window, *place)):
            held = int((self._first[blocks + 1] - self._first[blocks]).sum())
            if skip >= held:
                skip -= held
                continue
            rows = _mixed(blocks, self._first, number, *place)[skip : skip + left]
            skip = 0
            left -= len(rows)
            if len(rows):
                yield rows

    def global_batches(self) -> Iterator[np.ndarray]:
        """Yield the global batches from ``position`` on, computing one window at a time."""
        carry = np.empty(0, dtype=np.int64)
        for rows in self.windows():
            carry = np.concatenate([carry, rows])
            whole = len(carry) - len(carry) % self.global_batch
            for start in range(0, whole, self.global_batch):
                yield carry[start : start + self.global_batch]
            carry = carry[whole:]
        if len(carry):
            yield carry

    def remaining(self) -> np.ndarray:
        """Return the rest of the epoch's order as one array."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self.global_batches()])

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the block of each row number and its place inside the block."""
        blocks = np.searchsorted(self._first, rows, side="right") - 1
        return blocks, rows - self._first[blocks]

    def state_dict(self) -> dict[str, int]:
        """Return the whole state. ``layout`` stands for blocks and window: another one is another order."""
        return {**super().state_dict(), "layout": self.layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, on any world size.

        Raises:
            UserError: a key is missing or unknown; or the state is from the middle of an epoch of other
                blocks or of another window, so that samples would be lost and doubled.
        """
        rest = dict(state)
        if "layout" not in rest:
            raise UserError(f"stream state has the keys {sorted(state)}; it needs 'layout' too")
        layout = rest.pop("layout")
        if layout != self.layout and rest.get("position") != 0:
            raise UserError(
                f"the state is from a stream with other row groups or another window than this one (window "
                f"{self.window}, {len(self.block_rows)} blocks), in mid-epoch; resume with the files and the "
                "window of that run, or from the end of an epoch"
            )
        super().load_state_dict(rest)

    def _shared(self) -> dict[str, int]:
        return {**super()._shared(), "window": self.window, "checksum of the blocks": self._checksum}


class BlockStream(IterableDataset):
    """Batches of this rank, read block by block; give it to ``data_loader`` to read with worker processes.

    Args:
        sampler: whose blocks ``read`` reads.
        read: number of a block -> its rows, as a ``Batch`` or anything that a numpy index array cuts by row.
            As many blocks as a window has are kept.

    >>> blocks = [np.array([10, 11, 12]), np.array([13, 14])]
    >>> sampler = StreamSampler([3, 2], 2, shuffle=False, rank=0, world_size=1)
    >>> [batch.tolist() for batch in BlockStream(sampler, blocks.__getitem__)]
    [[10, 11], [12, 13], [14]]
    """

    def __init__(self, sampler: StreamSampler, read: Callable[[int], Any]) -> None:
        self.sampler = sampler
        self.read = read
        self._open: dict[int, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None:
            return self.walk(worker.id, worker.num_workers)
        return self._counted(self.sampler.begin())

    def _counted(self, ticket: int) -> Iterator[Any]:
        for global_batch, batch in zip(self.sampler.global_batches(), self.walk(0, 1), strict=True):
            self.sampler.advance(len(global_batch), ticket)
            yield batch

    def walk(self, worker: int, num_workers: int) -> Iterator[Any]:
        """Yield one worker's share of this rank's batches, without moving the sampler."""
        sampler = self.sampler
        place = (sampler.seed, sampler.epoch)
        position = sampler.position
        for step, global_batch in enumerate(sampler.global_batches()):
            if step % num_workers == worker:
                with drawing_from(*place, position, sampler.rank):
                    batch = self._rows(sampler.local(global_batch))
                yield batch
            position += len(global_batch)

    def _rows(self, rows: np.ndarray) -> Any:
        blocks, inside = self.sampler.locate(rows)
        needed = list(dict.fromkeys(blocks.tolist()))
        for block in needed:
            # Taken out and put back: the order of the dict is that of their last use.
            self._open[block] = self._open.pop(block) if block in self._open else self.read(block)
        for block in list(self._open)[: -max(self.sampler.window, len(needed))]:
            del self._open[block]
        if not needed:
            some = next(iter(self._open)) if self._open else 0
            source = self._open[some] if self._open else self.read(some)
            return source.take(rows) if isinstance(source, Batch) else source[rows]
        parts: list[Any] = []
        for block in needed:
            source = self._open[block]
            index = inside[blocks == block]
            parts.append(source.take(index) if isinstance(source, Batch) else source[index])
        # Back from block by block to the order of the batch, which is that of every world size.
        back = np.argsort(np.concatenate([np.flatnonzero(blocks == block) for block in needed]))
        if isinstance(parts[0], Batch):
            return Batch.concat(parts).take(back)
        return np.concatenate(parts)[back]
