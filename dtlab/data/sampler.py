"""The sampler over a global batch: every rank takes its slice of one global order (taught in lesson 04).

- The configuration names the *global* batch; the order of an epoch is the same for every world size.
- The whole state is (seed, epoch, position). Position is how many samples of this epoch's global order were
  handed over. So a run resumes exactly in mid-epoch, also on another world size.
- Uneven tails. ``tail="keep"``: every sample exactly once; the last global batch is smaller, some ranks get
  one sample fewer or an empty batch, and all ranks take the same number of steps. ``tail="drop"``: the last
  ``num_samples % global_batch`` samples of the *whole* order are left out, see ``dropped``.
- When a process group exists, the ranks compare their state at the start of every epoch, in one small
  collective: ranks that disagree would see some samples twice and others never.
"""

import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch.distributed as dist

from dtlab.data.agreed import check_same, joined_as, whole_number
from dtlab.data.order import checked_weights, global_order, rank_counts
from dtlab.errors import DtlabWarning, UserError

STATE_KEYS = ("seed", "epoch", "position")


class GlobalBatchSampler:
    """Hand each rank its part of every global batch, as [B] int64 indices.

    Iterating goes from ``position`` to the end of the epoch. A batch counts as used once it was handed over:
    with the last one of an epoch, ``epoch`` grows by one and ``position`` is 0 again, so the next loop is the
    next epoch without ``set_epoch``.

    Args:
        num_samples: samples in the data set; 0 gives no steps.
        global_batch: samples per step, over all ranks.
        rank, world_size: whose part; both or neither. By default those of the process group (of ``group`` if
            given), or a world of one.
        seed: of the order; the same on every rank, not negative.
        shuffle: False gives the order 0, 1, 2, ... in every epoch.
        tail: "keep" or "drop", see the module.
        weights: [num_samples]; the epoch is then ``num_samples`` multinomial draws *with replacement*.
        group: the process group whose ranks share the samples, when it is not the default group.

    Raises:
        UserError: an argument is out of range, or (when iterated) the ranks disagree.

    >>> [batch.tolist() for batch in GlobalBatchSampler(5, 4, rank=1, world_size=2, shuffle=False)]
    [[1, 3], []]
    """

    def __init__(
        self,
        num_samples: int,
        global_batch: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        tail: Literal["keep", "drop"] = "keep",
        weights: object | None = None,
        group: "dist.ProcessGroup | None" = None,
    ) -> None:
        self.num_samples = whole_number("num_samples", num_samples, at_least=0)
        self.global_batch = whole_number("global_batch", global_batch, at_least=1)
        self.seed = whole_number("seed", seed, at_least=0)
        if (rank is None) != (world_size is None):
            raise UserError(
                f"rank is {rank} and world_size is {world_size}; give both, or neither for the group's"
            )
        self._group = group
        self._rank_was_given = rank is not None
        joined = joined_as(group)
        if rank is None or world_size is None:
            rank, world_size = joined if joined else (0, 1)
        self.world_size = whole_number("world_size", world_size, at_least=1)
        self.rank = whole_number("rank", rank, at_least=0)
        if self.rank >= self.world_size:
            raise UserError(f"rank {rank} is not below world_size {world_size}; ranks count from 0")
        if tail not in ("keep", "drop"):
            raise UserError(f"tail is {tail!r}; choose 'keep' or 'drop'")
        if tail == "drop" and 0 < self.num_samples < self.global_batch:
            raise UserError(
                f"tail='drop' leaves nothing of {num_samples} samples with global_batch {global_batch}; "
                "lower global_batch or use tail='keep'"
            )
        if weights is not None and not shuffle:
            raise UserError("weights need random draws, but shuffle is False; leave one of the two out")
        if self.global_batch < self.world_size and self.num_samples > self.global_batch:
            warnings.warn(
                f"global_batch {global_batch} is below the world size {self.world_size}: "
                f"{self.world_size - self.global_batch} ranks get nothing in every step",
                DtlabWarning,
                stacklevel=2,
            )
        self.tail = tail
        self.shuffle = shuffle
        self.weights = None if weights is None else checked_weights(weights, self.num_samples)
        self.epoch = 0
        self.position = 0
        self._last_size = 0
        self._walk = 0  # which iterator is the live one

    # -- what an epoch holds -------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Samples of every epoch that tail="drop" leaves out, counted on the whole set."""
        return self.num_samples % self.global_batch if self.tail == "drop" else 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch; the same on every rank."""
        return self._steps(0)

    @property
    def steps_left(self) -> int:
        """Steps from ``position`` to the end of the epoch; the same on every rank."""
        return self._steps(self.position)

    @property
    def remaining_samples(self) -> int:
        """Samples, over all ranks, from ``position`` to the end of the epoch, without what the tail drops."""
        return self._end(self.position) - self.position

    def __len__(self) -> int:
        return self.steps_per_epoch

    def counts(self, step: int) -> list[int]:
        """Return the samples of each rank in a step of an epoch that is walked from its start.

        Raises:
            UserError: the epoch has no such step.
        """
        if not 0 <= step < self.steps_per_epoch:
            raise UserError(
                f"step {step} is outside the epoch's {self.steps_per_epoch} steps (0 is the first)"
            )
        size = min(self.global_batch, self.num_samples - self.dropped - step * self.global_batch)
        return rank_counts(size, self.world_size)

    @property
    def last_size(self) -> int:
        """Samples, over all ranks, of the global batch handed over last: the denominator of its mean loss."""
        return self._last_size

    @property
    def last_counts(self) -> list[int]:
        """The samples of each rank in the global batch handed over last."""
        return rank_counts(self._last_size, self.world_size)

    def global_batches(self) -> Iterator[np.ndarray]:
        """Yield the whole global batches from ``position`` on, without moving it."""
        rest = self.remaining()
        for start in range(0, len(rest), self.global_batch):
            yield rest[start : start + self.global_batch]

    def local(self, global_batch: np.ndarray) -> np.ndarray:
        """Return this rank's part of a global batch: every world_size-th sample, from its rank on."""
        return global_batch[self.rank :: self.world_size]

    def remaining(self) -> np.ndarray:
        """Return the global order of this epoch from ``position`` on, without what the tail rule drops."""
        order = global_order(
            self.num_samples, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle, weights=self.weights
        )
        return order[self.position : self._end(self.position)]

    # -- walking through it --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[np.ndarray]:
        walk = self.begin()  # now, not at the first batch: the comparison is a collective
        return self._batches(walk, self.global_batches())

    def _batches(self, walk: int, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            self.advance(len(batch), walk)
            yield self.local(batch)

    def begin(self) -> int:
        """Start walking: compare the state over ranks, and return a ticket for ``advance``.

        An older walk ends here: its next step raises, so that two loops cannot move one position.
        """
        self.check_agreement()
        self._walk += 1
        if self.num_samples == 0:
            self.epoch += 1
        return self._walk

    def advance(self, samples: int, walk: int) -> None:
        """Count a global batch of ``samples`` as handed over; the last one moves to the next epoch."""
        if walk != self._walk:
            raise UserError(
                "the sampler was moved (set_epoch, load_state_dict or a second loop) while this loop was "
                "still running; start a new loop, or give each loop a sampler of its own"
            )
        self._last_size = samples
        self.position += samples
        if self.position == self._end(self.position):
            self.epoch += 1
            self.position = 0

    # -- state ---------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; the current one keeps its position (a loop that resumes calls it)."""
        epoch = whole_number("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self._move(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the whole state; the same on every rank, whatever the world size."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken: the next batch is the one after the last handed over.

        Raises:
            UserError: a key is missing or unknown, or the position lies past the end of this data set.
        """
        if set(state) != set(STATE_KEYS):
            raise UserError(
                f"sampler state has the keys {sorted(state)}; it needs exactly {sorted(STATE_KEYS)}"
            )
        seed, epoch, position = (whole_number(key, state[key], at_least=0) for key in STATE_KEYS)
        if position > self.num_samples:
            raise UserError(
                f"position {position} is past the end of {self.num_samples} samples; "
                "the state is from another data set"
            )
        self.seed = seed
        if 0 < position == self._end(position):
            epoch, position = epoch + 1, 0
        self._move(epoch, position)

    def check_agreement(self) -> None:
        """Compare seed, epoch, position and sizes over the ranks that share the samples (collective).

        Nothing happens without a group, or when the sampler was made for another world size than the group's.

        Raises:
            UserError: on every rank, with the value of each rank, as in ``{0: 1, 1: 2}``.
        """
        joined = joined_as(self._group)
        if joined is None:
            return
        if joined[1] != self.world_size:
            if not self._rank_was_given:
                raise UserError(
                    f"the sampler was built for a world of {self.world_size}, but the group has {joined[1]} "
                    "ranks; build it after joining the group"
                )
            return
        check_same("sampler", self.rank, self._shared(), self._group)

    def _shared(self) -> dict[str, int]:
        """What must be the same on every rank, for ``check_agreement``."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
            "shuffle": int(self.shuffle),
            "tail (0: keep, 1: drop)": int(self.tail == "drop"),
            "checksum of the weights": 0 if self.weights is None else zlib.crc32(self.weights.tobytes()),
        }

    # -- arithmetic ----------------------------------------------------------------------------------------

    def _move(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position
        self._walk += 1

    def _end(self, start: int) -> int:
        """Where the epoch ends for a walk that starts at ``start``."""
        left = self.num_samples - start
        return self.num_samples - (left % self.global_batch if self.tail == "drop" else 0)

    def _steps(self, start: int) -> int:
        return -(-(self._end(start) - start) // self.global_batch)
