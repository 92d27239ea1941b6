"""A layout that a run already has, as the planner sees it: its degrees are kept, not searched (lesson 14).

`Layout` says what the table [parallel] of a configuration says; `layout_strategies` are the ways to train so
on a number of ranks: precision, recomputation and, unless given, the micro-batch are still open.
`parallel_words` writes a strategy as such a table, for a plan that advises another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from dtlab.cost.pipeline import ScheduleName
from dtlab.cost.strategy import Strategy, Zero

_NAMES = ("dp_replicate", "dp_shard", "tp", "pp")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of a run; -1 is the rest of the ranks, at most once.

    - `micro_batches`: of a step in a pipeline; `most`: samples of one forward; None: the planner's to choose.
    - `zero1`: the optimizer's state is dealt out over the copies.
    """

    dp_replicate: int = -1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    zero1: bool = False
    sequence_parallel: bool = False
    schedule: ScheduleName = "1f1b"
    micro_batches: int | None = None
    most: int | None = None

    def degrees(self, world: int) -> dict[str, int] | None:
        """The four degrees on `world` ranks; None where they do not give that number.

        >>> Layout(tp=2, pp=2).degrees(8)
        {'dp_replicate': 2, 'dp_shard': 1, 'tp': 2, 'pp': 2}
        >>> Layout(dp_replicate=1, tp=2).degrees(8) is None
        True
        """
        found = {name: getattr(self, name) for name in _NAMES}
        given = prod(size for size in found.values() if size != -1)
        if -1 not in found.values():
            return found if given == world else None
        if world % given:
            return None
        return {name: world // given if size == -1 else size for name, size in found.items()}

    def line(self) -> str:
        """The degrees above 1 in a few words.

        >>> Layout(tp=2, dp_shard=4).line()
        'dp_shard 4, tp 2'
        """
        said = [
            f"{name} {'the rest' if size == -1 else size}"
            for name in _NAMES
            if (size := getattr(self, name)) > 1 or (size == -1 and name != "dp_replicate")
        ]
        if self.pp != 1:
            said.append(self.schedule)
        return ", ".join([*said, *(["zero1"] if self.zero1 else [])]) or "data parallelism"


def layout_strategies(layout: Layout, global_batch: int, world: int, cards: int) -> Iterator[dict[str, Any]]:
    """Fields of `Strategy` for that layout on `world` ranks, `cards` of them a machine; none if it cannot be.

    >>> [found["num_micro_batches"] for found in layout_strategies(Layout(pp=2, most=8), 64, 4, 4)]
    [4]
    """
    degrees = layout.degrees(world)
    if degrees is None or degrees["tp"] > cards:
        return
    dp, pp = degrees["dp_replicate"] * degrees["dp_shard"], degrees["pp"]
    share, rest = divmod(global_batch, dp)
    if rest:
        return
    zero: Zero = 3 if degrees["dp_shard"] > 1 else 1 if layout.zero1 else 0
    for count in _counts(layout, share, pp):
        if share % count == 0:
            yield {
                **degrees, "zero": zero, "micro_batch": share // count, "num_micro_batches": count,
                "sequence_parallel": layout.sequence_parallel and degrees["tp"] > 1,
                "schedule": layout.schedule,
                "stages_per_rank": 2 if layout.schedule == "interleaved" and pp > 1 else 1,
            }  # fmt: skip


def _counts(layout: Layout, share: int, pp: int) -> Iterable[int]:
    """Into how many micro-batches a rank's share is cut, as `dtlab train` does it."""
    if pp > 1 and layout.micro_batches is not None:
        return [layout.micro_batches]
    if layout.most is None:
        least = 2 * pp if pp > 1 else 1
        return [least << k for k in range(share.bit_length()) if least << k <= share]
    wanted = max(1, -(-share // layout.most))
    if pp > 1:
        return [-(-wanted // pp) * pp]
    return [next(count for count in range(wanted, share + 1) if share % count == 0)]


def parallel_words(strategy: Strategy) -> str:
    """What the table [parallel] says of a strategy, for somebody who writes it.

    >>> parallel_words(Strategy(dp_shard=4, zero=3, tp=2))
    '[parallel] dp_shard = 4, tp = 2'
    >>> parallel_words(Strategy(dp_replicate=8))
    'no table [parallel]'
    """
    said = [
        f"{name} = {getattr(strategy, name)}"
        for name in ("dp_shard", "tp", "pp")
        if getattr(strategy, name) > 1
    ]
    if strategy.zero == 1 and strategy.dp_replicate > 1:
        said.append("zero1 = true")
    return "[parallel] " + ", ".join(said) if said else "no table [parallel]"
