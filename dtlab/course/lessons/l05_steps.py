"""Check of lesson 05's loop: the same steps at the same rates on 1, 2 and 4 ranks, and no NaN."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function

WORLDS = (1, 2, 4)
ROWS, GLOBAL_BATCH, MICRO = 44, 8, 2  # five whole global batches and one of 4 rows
BROKEN_ROW = 19  # in the third global batch, so its step must be skipped
STEPS = 5  # of six: the broken one does not count


def rate(step: int) -> float:
    """A rate that tells every step apart."""
    return 0.1 / (step + 1)


@exercise(
    "05-steps",
    todo="after every `accumulation` micro-batches, and after the last: set the rates, step, count; skip NaN",
    hints=(
        "What counts is an applied optimizer step: not a micro-batch, a rank, or a step that was skipped. "
        "Every param group has a rate of its own.",
        "enumerate(micro_batches, start=1) tells when a step is due: number % accumulation == 0, or it is "
        "the last. Then, if every p.grad.isfinite().all(): lr = rate(len(used)); group['lr'] = lr * "
        "group['ratio'] for all groups; optimizer.step(); used.append(lr). Either way optimizer.zero_grad().",
    ),
    references=("dtlab.train.schedule.Schedule",),
)
def steps(checks: Checks, answer: Any) -> None:
    """Steps on each world size first; then rates, groups and weights against one process."""
    require_function(answer)
    worlds = {}
    for size in WORLDS:
        worlds[size] = ranks = on_ranks(size, _walk, answer)
        for rank, one in enumerate(ranks):
            _answered(one["returned"], rank)
        checks.integer(
            f"{size} rank{'s' * (size > 1)}: optimizer steps",
            len(ranks[0]["rates"]),
            STEPS,
            look="one for each global batch, the smaller last one too, and none whose gradient is not finite",
        )
        checks.integer(
            f"{size} rank{'s' * (size > 1)}: weights that are not finite",
            sum(one["broken"] for one in ranks),
            0,
            look="a gradient that is not finite must not reach the weights, nor stay for the next step",
        )
    expected = [rate(step) for step in range(STEPS)]
    weights, start = _by_hand()
    for size, ranks in worlds.items():
        where = f"on {size} rank{'s' * (size > 1)}"
        checks.equal(
            f"rates of every step {where}",
            [[first for first, _ in one["rates"]] for one in ranks],
            [expected] * size,
            tolerance=1e-12,
            look="set the rate before the step; count applied steps, on any number of ranks",
        )
        checks.equal(
            f"rates of the second param group {where}",
            [[second for _, second in one["rates"]] for one in ranks],
            [[0.25 * lr for lr in expected]] * size,
            tolerance=1e-12,
            look="every group has its own group['ratio']",
        )
        returned = [list(one["returned"]) for one in ranks]
        checks.equal(f"rates returned {where}", returned, [expected] * size, tolerance=1e-12)
        for one in ranks:
            checks.true("the weights moved", not one["weights"].equal(start), look="call optimizer.step()")
            wrong = float((one["weights"] - weights).abs().max())
            checks.true(
                f"weights {where}, equal to those of whole batches in one process",
                wrong < 1e-9,
                look="no gradient may be left over from the step before, or be dropped",
            )
        checks.passed[:] = list(dict.fromkeys(checks.passed))  # one line for all ranks


def _answered(given: Any, rank: int) -> None:
    if given is None or given is ...:
        raise ToDo("run_steps gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, list | tuple):
        raise CheckFailed(f"run_steps gave {given!r} on rank {rank}: give a list of rates.")


def _data() -> tuple[Any, Any, Any, Any]:
    """Features, labels (one is infinite), and the two parameters at their start."""
    import torch

    generator = torch.Generator().manual_seed(5)
    features = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    labels = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    labels[BROKEN_ROW] = torch.inf
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    offset = torch.ones(1, dtype=torch.float64, requires_grad=True)
    return features, labels, weights, offset


def _by_hand() -> tuple[Any, Any]:
    """The weights after the epoch in one process, whole batches and plain arithmetic; and at its start."""
    import torch

    features, labels, weights, offset = _data()
    start, step = torch.cat([weights.detach(), offset.detach()]), 0
    for begin in range(0, ROWS, GLOBAL_BATCH):
        if not begin <= BROKEN_ROW < begin + GLOBAL_BATCH:
            x, y = features[begin : begin + GLOBAL_BATCH], labels[begin : begin + GLOBAL_BATCH]
            loss = ((x @ weights + offset - y) ** 2).sum() / GLOBAL_BATCH
            by_weights, by_offset = torch.autograd.grad(loss, [weights, offset])
            with torch.no_grad():
                weights -= rate(step) * by_weights
                offset -= 0.25 * rate(step) * by_offset
            step += 1
    return torch.cat([weights.detach(), offset.detach()]), start


def _walk(answer: Any) -> dict[str, Any]:
    """One epoch of a small regression on this rank, with an optimizer that notes the rates of its steps."""
    import torch
    import torch.distributed as dist

    from dtlab import world

    with world() as w:
        features, labels, weights, offset = _data()
        parameters = [weights, offset]
        rates: list[tuple[float, float]] = []

        class Noting(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                rates.append((self.param_groups[0]["lr"], self.param_groups[1]["lr"]))
                super().step()

        optimizer = Noting(
            [{"params": [weights], "ratio": 1.0}, {"params": [offset], "ratio": 0.25}], lr=99.0
        )

        def backward(rows: Any) -> None:
            loss = ((features[rows] @ weights + offset - labels[rows]) ** 2).sum() / GLOBAL_BATCH
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                if w.size > 1:
                    dist.all_reduce(gradient)
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

        micro_batches = []
        for begin in range(0, ROWS, GLOBAL_BATCH):
            mine = torch.arange(begin, min(begin + GLOBAL_BATCH, ROWS))[w.rank :: w.size]
            micro_batches += list(mine.split(MICRO))
        accumulation = GLOBAL_BATCH // (MICRO * w.size)
        returned = answer(optimizer, micro_batches, backward, rate, accumulation)
        flat = torch.cat([parameter.detach() for parameter in parameters])
        return {
            "returned": returned,
            "rates": rates,
            "weights": flat,
            "broken": int((~flat.isfinite()).sum()),
        }
