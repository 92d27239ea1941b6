"""How the ranks of a run are shared out: the table [parallel] of a configuration (lesson 09)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from dtlab.errors import UserError
from dtlab.settings_types import settle_types

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
TensorEngine = Literal["dtensor", "by_hand"]
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the ranks are shared out among the kinds of parallelism; the degrees' product is their number.

    >>> ParallelConfig(tp=2, pp=2).least_ranks
    4
    """

    dp_replicate: int | None = None
    """Copies of the model that see other samples. Unless given, the rest of the ranks."""
    dp_shard: int = 1
    """Ranks among which parameters, gradients and optimizer state are cut (FSDP; GPT); -1: the rest."""
    tp: int = 1
    """Ranks among which every matrix is cut (GPT); -1: the rest."""
    pp: int = 1
    """Ranks among which the layers are cut, a pipeline (GPT); -1: the rest."""
    sequence_parallel: bool = False
    """With tp: between the cut layers a rank holds its part of the positions."""
    engine: TensorEngine = "dtensor"
    """With tp: torch's DTensor plans, or the by-hand layers of lesson 07."""
    schedule: Schedule = "1f1b"
    """With pp: the order of forwards and backwards (lesson 08)."""
    micro_batches: int | None = None
    """With pp: micro-batches of a step; unless given, as many as optim.micro_batch asks for, at least pp."""
    zero1: bool = False
    """Deal out the optimizer state over the copies of the model (ZeRO-1)."""

    def __post_init__(self) -> None:
        settle_types(self, "parallel")
        for name in DEGREES:
            value = getattr(self, name)
            if value is not None and (value == 0 or value < -1):
                raise UserError(
                    f"parallel.{name} = {value!r}: give a number of ranks, 1 or more, or -1 for the rest"
                )
        rest = [name for name in DEGREES if getattr(self, name) == -1]
        if len(rest) > 1:
            fields = " and ".join(f"parallel.{name}" for name in rest)
            raise UserError(f"{fields} are -1: only one of them can be the rest of the ranks")
        for name, kinds in (("engine", TensorEngine), ("schedule", Schedule)):
            if getattr(self, name) not in get_args(kinds):
                _refuse(name, getattr(self, name), f"choose {', '.join(get_args(kinds))}")
        if self.micro_batches is not None and self.micro_batches < 1:
            _refuse("micro_batches", self.micro_batches, "must be at least 1")

    @property
    def degrees(self) -> dict[str, int]:
        """The four degrees, -1 for the rest."""
        given = {name: getattr(self, name) for name in DEGREES}
        if given["dp_replicate"] is None:
            given["dp_replicate"] = 1 if -1 in given.values() else -1
        return given

    @property
    def least_ranks(self) -> int:
        """The product of the degrees that are given."""
        product = 1
        for degree in self.degrees.values():
            product *= max(1, degree)
        return product


def _refuse(name: str, value: Any, fix: str) -> None:
    raise UserError(f"parallel.{name} = {value!r}: {fix}")
