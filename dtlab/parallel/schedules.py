"""The pipeline schedules, one generator each (lesson 08). p ranks, m micro-batches, v stages a rank.

============  =====================================================================================
gpipe         all forwards, then all backwards: m micro-batches stay alive
1f1b          warm up, then one forward, one backward: as much bubble, p micro-batches alive at most
interleaved   1F1B with v stages a rank: the bubble is v times shorter, messages v times more
zero_bubble   1F1B that fills the bubble with the gradients of weights (ZB-H1; interleaved for v > 1)
zbv           two stages a rank, placed as a V: no bubble where F, I and W take equally long
============  =====================================================================================

The orders are those that ``torch.distributed.pipelining`` executes; tests compare them, action by action.
GPipe: Huang et al., arXiv 1811.06965. 1F1B and interleaving: Narayanan et al., arXiv 2104.04473, figures 3
and 4. Zero bubble: Qi et al., arXiv 2401.10241, sections 2 and 6. No torch in this file.
"""

from collections.abc import Callable
from itertools import count

from dtlab.cost.pipeline import at_least_one, micro_batches_per_round
from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule

__all__ = ["SCHEDULES", "build_schedule", "gpipe", "interleaved", "one_f_one_b", "zbv", "zero_bubble"]

F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741


def build_schedule(
    name: str, num_ranks: int, num_micro_batches: int, stages_per_rank: int | None = None
) -> Schedule:
    """A schedule by name.

    Args:
        name: "gpipe", "1f1b", "interleaved", "zero_bubble" or "zbv".
        num_ranks: p.
        num_micro_batches: m of one step.
        stages_per_rank: v; default 2 for "interleaved" and "zbv", else 1.

    Raises:
        UserError: an unknown name, or numbers that the schedule cannot be built for.

    >>> print(build_schedule("1f1b", 2, 3))
    1f1b: 2 ranks, 2 stages, 3 micro-batches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    if name not in SCHEDULES:
        raise UserError(f"schedule = {name!r}: choose from {', '.join(SCHEDULES)}")
    fixed = {"gpipe": 1, "1f1b": 1, "zbv": 2}.get(name)
    if fixed is not None:
        if stages_per_rank not in (None, fixed):
            raise UserError(
                f"stages_per_rank = {stages_per_rank}: {name} has {fixed} on a rank; 'interleaved' and "
                "'zero_bubble' take more"
            )
        return SCHEDULES[name](num_ranks, num_micro_batches)
    default = 2 if name == "interleaved" else 1
    return SCHEDULES[name](num_ranks, num_micro_batches, stages_per_rank or default)


def gpipe(num_ranks: int, num_micro_batches: int) -> Schedule:
    """All forwards, then all backwards, in order.

    >>> print(gpipe(2, 2))
    gpipe: 2 ranks, 2 stages, 2 micro-batches
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
    _check(num_ranks, num_micro_batches)
    return Schedule(
        "gpipe",
        num_micro_batches,
        tuple(
            tuple(Action(rank, kind, i) for kind in (F, B) for i in range(num_micro_batches))
            for rank in range(num_ranks)
        ),
    )


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> Schedule:
    """Forwards until the first backward can start, then by turns, then the remaining backwards.

    Rank r warms up with p - 1 - r forwards: the last rank's first backward needs so many steps to reach it.
    """
    _check(num_ranks, num_micro_batches)
    ranks = []
    for rank in range(num_ranks):
        warm_up = min(num_micro_batches, num_ranks - 1 - rank)
        actions = [Action(rank, F, i) for i in range(warm_up)]
        for i in range(num_micro_batches - warm_up):
            actions += [Action(rank, F, warm_up + i), Action(rank, B, i)]
        actions += [Action(rank, B, i) for i in range(num_micro_batches - warm_up, num_micro_batches)]
        ranks.append(tuple(actions))
    return Schedule("1f1b", num_micro_batches, tuple(ranks))


def interleaved(num_ranks: int, num_micro_batches: int, stages_per_rank: int = 2) -> Schedule:
    """1F1B over v stages a rank; a round of micro-batches passes one stage, then the rank's next one.

    Raises:
        UserError: m that its ``max(1, m // p)`` rounds do not divide.

    >>> print(interleaved(2, 2))
    interleaved: 2 ranks, 4 stages, 2 micro-batches
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    forwards, backwards = _rounds(num_ranks, num_micro_batches, stages_per_rank)
    ahead = (stages_per_rank - 1) * micro_batches_per_round(num_ranks, num_micro_batches)
    total = num_micro_batches * stages_per_rank
    ranks = []
    for rank in range(num_ranks):
        warm_up = min(total, ahead + 2 * (num_ranks - 1 - rank))
        actions = [forwards(rank, k) for k in range(warm_up)]
        for k in range(total - warm_up):
            actions += [forwards(rank, warm_up + k), backwards(rank, k, B)]
        actions += [backwards(rank, k, B) for k in range(total - warm_up, total)]
        ranks.append(tuple(actions))
    return Schedule("interleaved", num_micro_batches, tuple(ranks), stages_per_rank)


def zero_bubble(num_ranks: int, num_micro_batches: int, stages_per_rank: int = 1) -> Schedule:
    """1F1B whose backward is cut into I and W; rank r is r weight gradients behind, and ends with them.

    Raises:
        UserError: m that its ``max(1, m // p)`` rounds do not divide.

    >>> print(zero_bubble(2, 2))
    zero_bubble: 2 ranks, 2 stages, 2 micro-batches
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1F1 1I1 1W0 1W1
    """
    forwards, backwards = _rounds(num_ranks, num_micro_batches, stages_per_rank)
    ahead = (stages_per_rank - 1) * micro_batches_per_round(num_ranks, num_micro_batches)
    total = num_micro_batches * stages_per_rank
    ranks = []
    for rank in range(num_ranks):
        warm_up = min(total, ahead + num_ranks - 1 - rank)
        actions = [forwards(rank, k) for k in range(warm_up)]
        for k in range(total):
            if warm_up + k < total:
                actions.append(forwards(rank, warm_up + k))
            actions.append(backwards(rank, k, I))
            if k >= rank:
                actions.append(backwards(rank, k - rank, W))
        actions += [backwards(rank, k, W) for k in range(max(0, total - rank), total)]
        ranks.append(tuple(actions))
    return Schedule("zero_bubble", num_micro_batches, tuple(ranks), stages_per_rank)


def zbv(num_ranks: int, num_micro_batches: int) -> Schedule:
    """Two stages a rank, placed as a V: the last stage stands on rank 0, so its backward starts at once.

    With fewer than 2p - 1 micro-batches it is the order for 2p - 1 without those that do not exist.

    >>> print(zbv(1, 1))
    zbv: 1 rank, 2 stages, 1 micro-batch
    rank 0: 0F0 1F0 1I0 1W0 0I0 0W0
    """
    _check(num_ranks, num_micro_batches)
    whole = max(num_micro_batches, 2 * num_ranks - 1)
    ranks = (_zbv_rank(num_ranks, whole, rank) for rank in range(num_ranks))
    kept = (tuple(a for a in actions if a.micro_batch < num_micro_batches) for actions in ranks)
    return Schedule("zbv", num_micro_batches, tuple(kept), 2, "v")


def _zbv_rank(p: int, m: int, rank: int) -> list[Action]:
    down, up = rank, 2 * p - 1 - rank
    next_one = {(stage, kind): count() for stage in (down, up) for kind in (F, I, W)}
    actions: list[Action] = []

    def add(times: int, *steps: tuple[int, Kind]) -> None:
        for _ in range(times):
            actions.extend(Action(*step, next(next_one[step])) for step in steps)

    warm_up = 2 * p - 1 - rank  # forwards of the stage on the way down before its first backward
    add(warm_up - rank, (down, F))
    add(rank, (up, F), (down, F))
    add(p - rank, (up, F), (up, I), (up, W))
    add(m - warm_up, (down, F), (down, I), (down, W), (up, F), (up, I), (up, W))
    add(warm_up - p, (down, I), (down, W), (up, F), (up, I), (up, W))
    add(rank, (down, I), (up, I))
    add(p - rank, (down, I), (down, W))
    add(rank, (up, W))
    add(rank, (down, W))
    return actions


def _rounds(
    num_ranks: int, num_micro_batches: int, stages_per_rank: int
) -> tuple[Callable[[int, int], Action], Callable[[int, int, Kind], Action]]:
    """The k-th forward, and the k-th backward, of a rank that takes its stages round by round."""
    _check(num_ranks, num_micro_batches, stages_per_rank)
    per_round = micro_batches_per_round(num_ranks, num_micro_batches)

    def place(k: int) -> tuple[int, int]:
        turn, within = divmod(k, per_round)
        round_number, chunk = divmod(turn, stages_per_rank)
        return chunk, round_number * per_round + within

    def forwards(rank: int, k: int) -> Action:
        chunk, micro_batch = place(k)
        return Action(chunk * num_ranks + rank, F, micro_batch)

    def backwards(rank: int, k: int, kind: Kind) -> Action:
        chunk, micro_batch = place(k)
        return Action((stages_per_rank - 1 - chunk) * num_ranks + rank, kind, micro_batch)

    return forwards, backwards


def _check(num_ranks: int, num_micro_batches: int, stages_per_rank: int = 1) -> None:
    at_least_one(num_ranks=num_ranks, num_micro_batches=num_micro_batches, stages_per_rank=stages_per_rank)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
    "zbv": zbv,
}
