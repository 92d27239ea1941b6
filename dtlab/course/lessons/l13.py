"""Checks of lesson 13: the whole state of a run, on the same and on another number of ranks.

Files that are whole: ``l13_save``; the agreed stop: ``l13_stop``; the interval: ``l13_interval``.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.lessons import l13_interval, l13_save, l13_stop  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import on_ranks, require_function

TOTAL = 32  # one epoch of 20 steps and most of a second
STOPS = (7, 25)  # in the warm-up; in the second epoch
OTHER_RANKS = 3
_NOT_STORED = (
    "the state holds an object that may not be read back from a file: reading it would run code.\n"
    "Where to look: put in what state_dict() gives, tensors and numbers, not the objects themselves."
)
LEFT_OUT = {
    "steps": "run.steps is part of the state; the loop ends by it",
    "model": "the model's parameters, each of them",
    "optimizer": "Adam's moments and step counts are in optimizer.state_dict()",
    "schedule": "how many steps the rate has been through is in schedule.state_dict()",
    "sampler": "seed, epoch and position are in sampler.state_dict()",
}


@exercise(
    "13-state",
    todo="take the state of all four parts, the steps and every rank's generator; put all of it back",
    hints=(
        "What does the next step read? Weights, the moments of Adam, the rate's place, the place in the "
        "epoch, and what dropout draws next, which differs by rank. And does what you return change when "
        "training goes on?",
        "take: {name: getattr(run, name).state_dict() for the four}, run.steps, and w.gather("
        "torch.get_rng_state(), dst=None): a copy.deepcopy of all that. restore: load_state_dict of the "
        "four, run.steps, torch.set_rng_state(generators[w.rank]) if there are w.size of them, else "
        "torch.manual_seed(1000 * run.steps + w.rank).",
    ),
    references=("dtlab.train.checkpoint_parts.take",),
)
def state(checks: Checks, answer: Any, restore: Any) -> None:
    """Each place of the state after `restore` first; then the continued run, bit for bit; then 3 ranks."""
    from dtlab.course.interrupted import rows

    require_function(answer)
    require_function(restore)
    results = on_ranks(2, _interrupted, answer, restore, rows(), timeout=30)
    if "refused" in results[0]:
        raise CheckFailed(results[0]["refused"])
    for stop in STOPS:
        found = [one[stop] for one in results]
        for place, look in LEFT_OUT.items():
            checks.integer(
                f"after {stop} steps, ranks where {place} is put back",
                sum(one["put back"][place] for one in found),
                2,
                look=_moved(found, place) or look,
            )
        checks.integer(
            f"after {stop} steps, ranks whose dropout draws what it would have drawn",
            sum(one["put back"]["generator"] for one in found),
            2,
            look="torch.get_rng_state() of every rank, and each rank takes back its own",
        )
        checks.integer(
            f"after {stop} steps, ranks where `take` gave what it gave on rank 0",
            sum(one["whole"] for one in found),
            2,
            look="w.gather(x) gives rank 0 the list and the others None; with dst=None every rank has it",
        )
    others = on_ranks(OTHER_RANKS, _on_other_ranks, restore, results[0]["stored"], rows(), timeout=30)
    checks.integer(
        f"steps counted by {OTHER_RANKS} ranks that go on with a state of 2",
        others[0]["steps"],
        TOTAL,
        look="run.steps counts the steps of the run, on any number of ranks",
    )
    checks.integer(
        f"different draws on {OTHER_RANKS} ranks",
        len({one["draw"] for one in others}),
        OTHER_RANKS,
        look="dropout must differ from rank to rank: 1000 * run.steps + w.rank as seed",
    )
    checks.integer(
        f"ranks of {OTHER_RANKS} whose dropout starts from 1000 * run.steps + w.rank",
        sum(one["seeded"] for one in others),
        OTHER_RANKS,
        look="a state of another number of ranks holds nobody's own generator, not for ranks 0 and 1 either: "
        "compare its number of generators with w.size",
    )
    for stop in STOPS:
        same = all(one[stop]["equal"] for one in results)
        checks.true(
            f"after {stop} steps and a restart: final weights bit for bit those of the uninterrupted run",
            same,
            look="something that the steps read is not what it was; print it before and after",
        )
    checks.equal(
        f"samples of each step of {OTHER_RANKS} ranks, put together",
        _together([one["seen"] for one in others]),
        _together([one["seen"] for one in results]),
        look="the sampler's state counts over all ranks: load it as it is",
    )


def _together(seen: list[list[list[int]]]) -> list[list[int]]:
    """The samples of each step over all ranks, from what each rank saw in each step."""
    return [sorted(chain(*step)) for step in zip(*seen, strict=True)]


def _moved(found: list[dict[str, Any]], place: str) -> str | None:
    """What to say when the right thing was put back, but as it was three steps later."""
    if any(one["moved on"][place] for one in found):
        return (
            "what `take` returned went on changing: a state_dict() holds the live tensors, and training "
            "goes on while a state is written; copy it"
        )
    return None


def _interrupted(answer: Any, restore: Any, data: Any) -> dict[Any, Any]:
    """On a rank: runs that are taken, stored three steps later, put back into a new run and continued.

    When something was not put back on a rank, its stop is the last one: the check says so, and what follows
    would tell nothing more.
    """
    from dtlab import world
    from dtlab.course.interrupted import Run

    with world() as w:
        results: dict[Any, Any] = {}
        ended: dict[int, Any] = {}
        for stop in STOPS:
            first = Run(w, data)
            for _ in range(stop):
                first.step()
            before = _places(first)
            taken = answer(w, first)
            if taken is None or taken is ...:
                raise NotImplementedError
            draws = _draws()
            for _ in range(3):
                first.step()
            later = _places(first)
            own = _bytes(taken)
            stored = _from_bytes(w.broadcast(own))  # rank 0's, as every rank reads it back from a file
            if stored is None:
                return {"refused": _NOT_STORED}
            second = Run(w, data, seed=1)
            restore(w, second, stored)
            after = _places(second)
            back = {name: _same(before[name], after[name]) for name in before}
            moved = {name: _same(later[name], after[name]) and not back[name] for name in before}
            results[stop] = {"put back": back, "moved on": moved}
            results[stop]["whole"] = _same(_from_bytes(own), stored)
            back["generator"] = _draws() == draws
            if not w.all_agree(results[stop]["whole"] and all(back.values())):
                return results
            while second.steps < TOTAL and len(second.seen) < TOTAL:
                second.step()
            ended[stop] = second.weights()
        whole = Run(w, data)
        for _ in range(TOTAL):
            whole.step()
        for stop, weights in ended.items():
            results[stop]["equal"] = bool(weights.equal(whole.weights()))
        results["stored"], results["seen"] = _bytes(stored), whole.seen[stop:]
        return results


def _on_other_ranks(restore: Any, stored: bytes, data: Any) -> dict[str, Any]:
    import torch

    from dtlab import world
    from dtlab.course.interrupted import Run

    with world() as w:
        run = Run(w, data, seed=1)
        restore(w, run, _from_bytes(stored))
        draws = _draws()
        torch.manual_seed(1000 * run.steps + w.rank)
        is_seeded = _draws() == draws
        while run.steps < TOTAL and len(run.seen) < TOTAL:
            run.step()
        return {"steps": run.steps, "draw": draws[0], "seeded": is_seeded, "seen": run.seen}


def _places(run: Any) -> dict[str, Any]:
    """The places of a run's state, as copies that can be compared."""
    import copy

    parts = {name: getattr(run, name).state_dict() for name in ("optimizer", "schedule", "sampler")}
    return copy.deepcopy({"steps": run.steps, "model": run.weights(), **parts})


def _same(one: Any, other: Any) -> bool:
    """Whether two states hold the same, tensors bit for bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and bool(torch.equal(one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_same(mine, its) for mine, its in pairs)
    return bool(one == other)


def _draws() -> list[float]:
    """What the generator would draw next; it stays where it is."""
    import torch

    kept = torch.get_rng_state()
    drawn = torch.rand(3).tolist()
    torch.set_rng_state(kept)
    return [float(value) for value in drawn]


def _bytes(taken: Any) -> bytes:
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(taken, buffer)
    return buffer.getvalue()


def _from_bytes(stored: bytes) -> Any:
    """The state as a rank reads it back from a file; None if it may not be read."""
    import io
    import pickle

    import torch

    try:
        return torch.load(io.BytesIO(stored), weights_only=True)
    except pickle.UnpicklingError:
        return None
