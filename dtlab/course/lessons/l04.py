"""Checks of lesson 04: a distributed sampler, an evaluation of the true length; l04_uneven has the third."""

from __future__ import annotations

from itertools import chain
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l04_uneven  # noqa: F401  (registers its exercise)
from dtlab.course.lessons.on_ranks import on_ranks, require_function

RANKS = 4
SAMPLES, GLOBAL_BATCH = 50, 12  # the last global batch has 2 samples: two ranks get none
SEED, EPOCHS = 3, 2

Parts = list[list[int]]  # step -> samples of one rank


@exercise(
    "04-sampler",
    todo="permute all samples from (seed, epoch), cut into global batches, give each rank its slice of each",
    hints=(
        "Make the order without looking at rank or size: all ranks must get the same one. Which comes "
        "first, cutting into global batches or slicing by rank? Only one gives every rank the same steps.",
        "order = np.random.default_rng([seed, epoch]).permutation(samples). For start in range(position, "
        "samples, global_batch): whole = order[start : start + global_batch]; this rank's part is "
        "whole[rank::size], also when it is empty.",
    ),
    references=(
        "dtlab.GlobalBatchSampler",
        "dtlab.data.order.global_order",
        "dtlab.data.order.local_rows",
        "dtlab.data.torch_adapter.TorchBatchSampler",
        "torch.utils.data.DistributedSampler",
    ),
)
def sampler(checks: Checks, answer: Any) -> None:
    """Steps and coverage on four real ranks; then orders; then other world sizes and a resumed epoch."""
    require_function(answer)
    checks.integer(
        "samples of an epoch on a single rank",
        sum(map(len, _alone(answer, seed=SEED, epoch=0))),
        SAMPLES,
        look="rank 0 of a world of 1 gets all of them, also those of a last, smaller batch",
    )
    ranks = on_ranks(RANKS, _walk, answer)
    epochs = [[_parts(epochs[e], rank) for rank, epochs in enumerate(ranks)] for e in range(EPOCHS)]
    for epoch, by_rank in enumerate(epochs):
        _coverage(checks, epoch, by_rank)
    checks.integer(
        "ranks with an empty part in the last step", sum(not one[-1] for one in epochs[0]), 2, look=_SLICE
    )
    orders = {
        (seed, epoch): _alone(answer, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))
    }
    _orders(checks, answer, orders)
    whole = _alone(answer, seed=SEED, epoch=1)
    checks.equal(
        "global batches of 4 ranks, put together, against those of 1",
        _together(epochs[1]),
        whole,
        look=_SLICE,
    )
    three = [_given(answer, rank=rank, size=3, seed=SEED, epoch=1) for rank in range(3)]
    checks.equal("global batches of 3 ranks against those of 1", _together(three), whole, look=_SLICE)
    position = 2 * GLOBAL_BATCH
    rest = [_given(answer, rank=rank, size=2, seed=SEED, epoch=1, position=position) for rank in range(2)]
    checks.equal(
        f"the rest of the epoch from position {position} on, on 2 ranks",
        _together(rest),
        whole[2:],
        look="position counts samples of the global order, over all ranks: cut from there on",
    )


_SLICE = "rank r takes the samples r, r + size, r + 2 size, ... of every global batch"


def _walk(answer: Any) -> list[Any]:
    """The epochs of this rank, whose generators differ from those of the others."""
    from dtlab import world

    with world() as w:
        return [
            answer(SAMPLES, GLOBAL_BATCH, w.rank, w.size, seed=SEED, epoch=epoch) for epoch in range(EPOCHS)
        ]


def _coverage(checks: Checks, epoch: int, by_rank: list[Parts]) -> None:
    from dtlab.data.coverage import seen
    from dtlab.errors import UserError

    expected = -(-SAMPLES // GLOBAL_BATCH)
    steps = [len(mine) for mine in by_rank]
    wrong = next((rank for rank, count in enumerate(steps) if count != expected), None)
    if wrong is not None:
        checks.integer(
            f"steps of rank {wrong} in epoch {epoch}",
            steps[wrong],
            expected,
            look="one entry for each global batch, also for the last one and for an empty part",
        )
    checks.integer(f"epoch {epoch}, steps of every rank", steps[0], expected)
    for step in range(expected):
        size, right = (
            sum(len(mine[step]) for mine in by_rank),
            min(GLOBAL_BATCH, SAMPLES - step * GLOBAL_BATCH),
        )
        if size != right:
            checks.integer(
                f"samples of step {step} in epoch {epoch}, over all ranks",
                size,
                right,
                look="global_batch counts the samples of all ranks together, and each rank takes its slice",
            )
    try:
        found = seen([list(chain(*mine)) for mine in by_rank], range(SAMPLES))
    except UserError as error:
        raise CheckFailed(f"epoch {epoch}: {error}.") from error
    look = "every rank must have the same order: which generator made it, and is it in the same state?"
    checks.integer(f"epoch {epoch}, samples that no rank saw", len(found.never), 0, look=look)
    checks.integer(f"epoch {epoch}, samples seen more than once", len(found.twice), 0, look=look)


def _orders(checks: Checks, answer: Any, orders: dict[tuple[int, int], Parts]) -> None:
    flat = {key: list(chain(*parts)) for key, parts in orders.items()}
    checks.equal(
        "the order of (seed 0, epoch 1), asked for again",
        _alone(answer, seed=0, epoch=1),
        orders[0, 1],
        look="the order may depend on seed and epoch alone: take a generator of its own",
    )
    checks.true("the order is shuffled", flat[0, 0] != sorted(flat[0, 0]), look="permutation(samples)")
    for what, one, other, look in (
        ("epochs 0 and 1", (0, 0), (0, 1), "the epoch must go into the generator"),
        ("seeds 0 and 1", (0, 0), (1, 0), "the seed must go into the generator"),
        (
            "(seed 0, epoch 1) and (seed 1, epoch 0)",
            (0, 1),
            (1, 0),
            "seed + epoch gives a run with seed 1 the orders of seed 0, one epoch later; mix the two",
        ),
    ):
        checks.true(f"the orders of {what} differ", flat[one] != flat[other], look=look)


def _alone(answer: Any, *, seed: int, epoch: int) -> Parts:
    return _given(answer, rank=0, size=1, seed=seed, epoch=epoch)


def _given(answer: Any, *, rank: int, size: int, seed: int, epoch: int, position: int = 0) -> Parts:
    named = {"position": position} if position else {}
    return _parts(answer(SAMPLES, GLOBAL_BATCH, rank, size, seed=seed, epoch=epoch, **named), rank)


def _parts(given: Any, rank: int) -> Parts:
    """The answer's steps as lists of ints; arrays and tensors are welcome too."""
    if given is None or given is ...:
        raise ToDo("my_batches gave None; is a return missing?" if given is None else "...")
    try:
        return [[int(sample) for sample in part] for part in given]
    except (TypeError, ValueError):
        raise CheckFailed(
            f"my_batches gave {describe(given)} on rank {rank}: give a list with one list of samples for "
            "each step."
        ) from None


def _together(by_rank: list[Parts]) -> Parts:
    """The global batches: position p of one is the rank p % size's."""
    batches = []
    for step in range(max(len(mine) for mine in by_rank)):
        parts = [mine[step] if step < len(mine) else [] for mine in by_rank]
        batch: list[int] = []
        for place in range(max(map(len, parts))):
            batch += [part[place] for part in parts if place < len(part)]
        batches.append(batch)
    return batches


@exercise(
    "04-evaluate",
    todo="gather ids and results to rank 0, keep each id once, sort by id, return the ids and the accuracy",
    hints=(
        "dtlab.gather is a collective: every rank calls it, and only then you ask whether you are rank 0. A "
        "dict from id to result keeps each id once.",
        "all_ids, all_right = dtlab.gather(ids), dtlab.gather(right); return None if all_ids is None. "
        "torch.cat joins the parts; dict(zip(ids, results)) has each id once; sorted(...) of it is the list "
        "of ids, and the accuracy is the sum of their results over their number.",
    ),
    references=("dtlab.data.evaluate.gather_by_id",),
)
def evaluate(checks: Checks, answer: Any) -> None:
    """Counts first, in three cases on four ranks; then ids in order and the accuracy of one process."""
    require_function(answer)
    ranks = on_ranks(RANKS, _evaluate_cases, answer)
    gave = {case: [one[case] for one in ranks] for case in ranks[0]}
    pairs = {case: _pair(results[0]) for case, results in gave.items()}
    for case, (ids, _) in pairs.items():
        checks.integer(
            f"{case}: entries", len(ids), _CASES[case], look="each sample once, none cut off or missing"
        )
    others = sum(result is not None for results in gave.values() for result in results[1:])
    checks.integer("results on other ranks than 0", others, 0, look="return None there")
    for case, (ids, accuracy) in pairs.items():
        rows = _CASES[case]
        checks.equal(
            f"{case}: ids", [int(one) for one in ids], list(range(rows)), look="sorted by id, not by rank"
        )
        true = sum(_right(sample) for sample in range(rows)) / rows
        checks.equal(
            f"{case}: accuracy of one process",
            float(accuracy),
            true,
            tolerance=1e-6,
            look="right samples over samples, after duplicates are gone; a mean of the ranks' means weighs "
            "small parts too much",
        )


_CASES = {"10 samples, padded to 12": 10, "21 samples in any order": 21, "3 samples on 4 ranks": 3}


def _right(sample: int) -> int:
    return int(sample not in (0, 1, 4, 13, 14))


def _evaluate_cases(answer: Any) -> dict[str, Any]:
    import torch
    from torch.utils.data import DistributedSampler, TensorDataset

    from dtlab import GlobalBatchSampler, world

    with world():
        padded, mixed, few = _CASES
        few_rows = TensorDataset(torch.arange(10))
        cases = {
            padded: list(DistributedSampler(few_rows, shuffle=False)),
            mixed: [int(i) for batch in GlobalBatchSampler(21, 8, seed=1) for i in batch],
            few: [int(i) for batch in GlobalBatchSampler(3, 4, seed=5) for i in batch],
        }
        return {
            case: answer(torch.tensor(ids, dtype=torch.int64), torch.tensor([float(_right(i)) for i in ids]))
            for case, ids in cases.items()
        }


def _pair(given: Any) -> tuple[Any, Any]:
    if given is None or given is ...:
        raise ToDo("evaluate gave None on rank 0; is a return missing?" if given is None else "...")
    if not isinstance(given, tuple) or len(given) != 2 or not hasattr(given[0], "__len__"):
        raise CheckFailed(f"evaluate gave {describe(given)} on rank 0: give a list of ids and the accuracy.")
    return given
