"""What a pipeline schedule is made of: actions, in a list for each rank (lesson 08).

A schedule is data. The same object goes to the legality check, the simulator, the figure and the runner.

- Actions are written as torch writes them: ``1F3`` is the forward of micro-batch 3 on stage 1, ``B`` its
  whole backward. Zero-bubble schedules cut the backward in two: ``I`` gives the gradient of the input, for
  which the stage before waits, ``W`` the gradients of the weights, for which nobody waits.
- A stage is a run of layers. Rank r of p holds the stages r, r + p, r + 2p ...; in a "v" schedule the second
  row runs backwards, so that the first and the last stage share a rank.

No torch in this file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from dtlab.errors import UserError

__all__ = ["Action", "Kind", "Placement", "Schedule", "rank_of_stage"]

Placement = Literal["loop", "v"]


class Kind(StrEnum):
    """What is computed."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


class Action(NamedTuple):
    """One computation of one stage for one micro-batch.

    >>> str(Action(1, Kind.FORWARD, 3)), Action.parse("1F3") == Action(1, Kind.FORWARD, 3)
    ('1F3', True)
    """

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action written as ``text``. UserError if it is none."""
        match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text.strip())
        if match is None:
            raise UserError(f"action {text!r}: write stage, F, B, I or W, micro-batch, for example 1F3")
        return cls(int(match[1]), Kind(match[2]), int(match[3]))


def rank_of_stage(stage: int, num_ranks: int, placement: Placement = "loop") -> int:
    """The rank that holds a stage.

    >>> [rank_of_stage(stage, 2) for stage in range(4)], [rank_of_stage(stage, 2, "v") for stage in range(4)]
    ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    row, column = divmod(stage, num_ranks)
    return num_ranks - 1 - column if placement == "v" and row % 2 else column


@dataclass(frozen=True)
class Schedule:
    """The actions of every rank, in the order in which the rank runs them.

    Attributes:
        name: "1f1b", or whatever its author calls it.
        num_micro_batches: m.
        ranks: a tuple of actions for each rank.
        stages_per_rank: v.
        placement: which rank holds which stage.

    >>> schedule = Schedule.of("by hand", 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> print(schedule)
    by hand: 2 ranks, 2 stages, 1 micro-batch
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0
    """

    name: str
    num_micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]
    stages_per_rank: int = 1
    placement: Placement = "loop"

    @classmethod
    def of(
        cls,
        name: str,
        num_micro_batches: int,
        ranks: Sequence[Sequence[str | Action]],
        *,
        stages_per_rank: int = 1,
        placement: Placement = "loop",
    ) -> "Schedule":
        """From lists of actions or of their text. It may be illegal: see ``check_schedule``."""
        parsed = tuple(
            tuple(Action.parse(action) if isinstance(action, str) else action for action in actions)
            for actions in ranks
        )
        return cls(name, num_micro_batches, parsed, stages_per_rank, placement)

    @property
    def num_ranks(self) -> int:
        """p."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        """p * v."""
        return self.num_ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """The rank that holds ``stage``."""
        return rank_of_stage(stage, self.num_ranks, self.placement)

    def stages_of(self, rank: int) -> list[int]:
        """The stages on ``rank``, first to last."""
        return [stage for stage in range(self.num_stages) if self.rank_of(stage) == rank]

    def __str__(self) -> str:
        counts = (
            (self.num_ranks, "rank", "s"),
            (self.num_stages, "stage", "s"),
            (self.num_micro_batches, "micro-batch", "es"),
        )
        head = ", ".join(f"{n} {word}{plural if n != 1 else ''}" for n, word, plural in counts)
        rows = (f"rank {rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks))
        return "\n".join([f"{self.name}: {head}", *rows])
