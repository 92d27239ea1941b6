"""Can this schedule run at all? (lesson 08)

``check_schedule`` refuses, by the name of rank and action: a computation that is missing, comes twice, stands
on the wrong rank or before what it needs, and ranks that wait for each other for ever. No torch in this file.
"""

from collections import Counter
from collections.abc import Iterable

from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule

__all__ = ["check_schedule", "execution_order", "needs"]


def check_schedule(schedule: Schedule) -> Schedule:
    """``schedule`` itself, if every rank can run it to the end and nothing is left out.

    Raises:
        UserError: the first fault found, with rank and action.

    >>> _ = check_schedule(Schedule.of("good", 1, [["0F0", "0B0"], ["1F0", "1B0"]]))
    >>> check_schedule(Schedule.of("bad", 1, [["0B0", "0F0"], ["1F0", "1B0"]]))
    Traceback (most recent call last):
    dtlab.errors.UserError: bad: rank 0 runs 0B0 before 0F0, which it needs
    """
    for rank, actions in enumerate(schedule.ranks):
        _check_rank(schedule, rank, actions)
    execution_order(schedule)
    return schedule


def needs(action: Action, num_stages: int) -> tuple[tuple[Action, ...], ...]:
    """What must be over before ``action``: of each group one action.

    >>> [[str(one) for one in group] for group in needs(Action(0, Kind.BACKWARD, 3), num_stages=2)]
    [['0F3'], ['1B3', '1I3']]
    """
    stage, kind, i = action
    if kind is Kind.FORWARD:
        return ((Action(stage - 1, kind, i),),) if stage > 0 else ()
    if kind is Kind.BACKWARD_WEIGHT:
        return ((Action(stage, Kind.BACKWARD_INPUT, i),),)
    own = (Action(stage, Kind.FORWARD, i),)
    if stage == num_stages - 1:
        return (own,)
    return own, (Action(stage + 1, Kind.BACKWARD, i), Action(stage + 1, Kind.BACKWARD_INPUT, i))


def execution_order(schedule: Schedule) -> list[tuple[int, Action]]:
    """One order of all (rank, action) in which each comes after what it needs.

    Raises:
        UserError: ranks wait for each other for ever; each is named with what it waits for.
    """
    done: set[Action] = set()
    position = [0] * schedule.num_ranks
    order: list[tuple[int, Action]] = []
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while position[rank] < len(actions):
                action = actions[position[rank]]
                if not all(done.intersection(group) for group in needs(action, schedule.num_stages)):
                    break
                done.add(action)
                order.append((rank, action))
                position[rank] += 1
                moved = True
    stuck = []
    for rank, actions in enumerate(schedule.ranks):
        if position[rank] < len(actions):
            action = actions[position[rank]]
            missing = next(g for g in needs(action, schedule.num_stages) if not done.intersection(g))
            stuck.append(f"rank {rank} at {action} for {_either(missing)}")
    if stuck:
        raise UserError(f"{schedule.name}: the ranks wait for ever: {'; '.join(stuck)}")
    return order


def _check_rank(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    own = set(schedule.stages_of(rank))
    for action in actions:
        if not 0 <= action.stage < schedule.num_stages:
            raise _fault(schedule, rank, f"runs {action}, but there are {schedule.num_stages} stages")
        if action.stage not in own:
            owner = schedule.rank_of(action.stage)
            raise _fault(schedule, rank, f"runs {action}, but stage {action.stage} is on rank {owner}")
        if not 0 <= action.micro_batch < schedule.num_micro_batches:
            raise _fault(
                schedule, rank, f"runs {action}, but there are {schedule.num_micro_batches} micro-batches"
            )
    twice = next((action for action, times in Counter(actions).items() if times > 1), None)
    if twice is not None:
        raise _fault(schedule, rank, f"runs {twice} twice")
    place = {action: index for index, action in enumerate(actions)}
    for stage in sorted(own):
        for i in range(schedule.num_micro_batches):
            _check_micro_batch(schedule, rank, place, stage, i)


def _check_micro_batch(
    schedule: Schedule, rank: int, place: dict[Action, int], stage: int, micro_batch: int
) -> None:
    forward, backward, by_input, by_weight = (Action(stage, kind, micro_batch) for kind in Kind)
    if forward not in place:
        raise _fault(schedule, rank, f"never runs {forward}")
    if backward in place:
        both = next((part for part in (by_input, by_weight) if part in place), None)
        if both is not None:
            raise _fault(schedule, rank, f"runs {backward} and {both}: the whole backward holds both parts")
        first = backward
    elif by_input in place or by_weight in place:
        for part, other in ((by_input, by_weight), (by_weight, by_input)):
            if part not in place:
                raise _fault(schedule, rank, f"runs {other} but never {part}, the other part")
        if place[by_weight] < place[by_input]:
            raise _fault(schedule, rank, f"runs {by_weight} before {by_input}, which it needs")
        first = by_input
    else:
        raise _fault(schedule, rank, f"never runs a backward of {forward}: neither {backward} nor {by_input}")
    if place[first] < place[forward]:
        raise _fault(schedule, rank, f"runs {first} before {forward}, which it needs")


def _fault(schedule: Schedule, rank: int, what: str) -> UserError:
    return UserError(f"{schedule.name}: rank {rank} {what}")


def _either(actions: Iterable[Action]) -> str:
    return " or ".join(map(str, actions))
