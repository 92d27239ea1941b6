"""Checks of lesson 03: one model on all ranks, gradients in buckets; l03_accumulate has the third."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.compare import difference
from dtlab.course.copies import copied_name
from dtlab.course.lessons import l03_accumulate  # noqa: F401  (registers its exercise)
from dtlab.course.lessons.on_ranks import on_ranks
from dtlab.course.lessons.small_model import (
    flat,
    flat_gradient,
    loss,
    new_model,
    rows_of_step,
    trainable,
)

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 3  # neither 2 nor 4: a divisor that was written down as a number shows
STEPS = 3
REFERENCES = (
    "dtlab.parallel.HandDDP",
    "dtlab.data_parallel",
    "dtlab.parallel.broadcast_state",
    "torch.nn.parallel.DistributedDataParallel",
)


@exercise(
    "03-average",
    todo="broadcast rank 0's parameters and buffers; after backward make every gradient the mean over ranks",
    hints=(
        "same_start: one dist.broadcast(..., src=0) for each parameter and each buffer. "
        "average_gradients: what does dist.all_reduce leave in a tensor, and what is between a sum and "
        "a mean?",
        "for tensor in [*model.parameters(), *model.buffers()]: dist.broadcast(tensor.detach(), src=0)."
        " Then, for each parameter whose grad is not None: dist.all_reduce(parameter.grad); "
        "parameter.grad /= dist.get_world_size()",
    ),
    references=REFERENCES,
)
def average(checks: Checks, answer: Any, start: Any) -> None:
    """Three ranks with other first weights, a frozen layer and a buffer; beside one process."""
    copied = copied_name(start, REFERENCES)
    if copied:
        raise CheckFailed(
            f"same_start is {copied} itself, or calls it. Write it out: one broadcast a tensor."
        )
    results = on_ranks(RANKS, _train_replica, answer, start)
    parameters = trainable(new_model(0))
    look = "same_start: broadcast from rank 0 each parameter, also a frozen one, and each buffer"
    checks.integer(
        "different models after same_start", len({one["started"] for one in results}), 1, look=look
    )
    look = "one dist.all_reduce for each parameter that has a gradient"
    for rank, one in enumerate(results):
        for calls, _ in one["calls"]:
            if calls != len(parameters):
                checks.integer(f"all-reduces of a step, rank {rank}", calls, len(parameters), look=look)
    checks.integer("all-reduces of a step, every rank", results[0]["calls"][0][0], len(parameters), look=look)
    checks.integer(
        "bytes handed to them",
        results[0]["calls"][0][1],
        sum(parameter.nbytes for parameter in parameters),
        look="the gradients, each once, nothing else",
    )
    look = "write the mean back into parameter.grad, on every rank"
    checks.integer(
        f"different models after {STEPS} steps", len({one["ended"] for one in results}), 1, look=look
    )
    checks.equal(
        "parameters after same_start are rank 0's", results[-1]["first"], flat(new_model(0)), look="src=0"
    )
    expected, gradients = _one_process(RANKS)
    look = f"the mean over all {RANKS} ranks (dist.get_world_size()), of gradients, written back into .grad"
    if difference(results[0]["gradient"], RANKS * gradients, 1e-9) == "":
        look = f"{RANKS} times too long: all_reduce gives the sum; divide it by the world size"
    checks.equal("gradients of the first step", results[0]["gradient"], gradients, tolerance=1e-12, look=look)
    checks.equal(
        "parameters as of one process on the joined batch",
        results[-1]["parameters"],
        expected,
        tolerance=1e-12,
    )


def _train_replica(average: Any, start: Any) -> dict[str, Any]:
    """One rank: start, then STEPS steps on its rows."""
    import torch

    from dtlab import traffic, world
    from dtlab.parallel import parameter_hash

    with world() as w:
        model = new_model(seed=w.rank)
        start(model)
        found: dict[str, Any] = {"started": parameter_hash(model), "first": flat(model), "calls": []}
        optimizer = torch.optim.SGD(trainable(model), lr=0.5)
        for step in range(STEPS):
            loss(model, *(column[w.rank :: w.size] for column in rows_of_step(step, 8 * w.size))).backward()
            with traffic() as sent:
                average(model)
            calls = [call for call in sent.collective_log if call.op == "all_reduce"]
            found["calls"].append((len(calls), sum(call.payload for call in calls)))
            found.setdefault("gradient", flat_gradient(model))
            optimizer.step()
            optimizer.zero_grad()
        w.barrier()  # a rank that skips a message must not leave before the others have theirs
        return found | {"ended": parameter_hash(model), "parameters": flat(model)}


def _one_process(size: int) -> tuple[Tensor, Tensor]:
    """Parameters after STEPS steps on the joined batches, and the gradient of the first."""
    import torch

    model, gradients = new_model(seed=0), []
    optimizer = torch.optim.SGD(trainable(model), lr=0.5)
    for step in range(STEPS):
        loss(model, *rows_of_step(step, 8 * size)).backward()
        gradients.append(flat_gradient(model))
        optimizer.step()
        optimizer.zero_grad()
    return flat(model), gradients[0]


@exercise(
    "03-buckets",
    todo="pack gradients, last first, into buckets of at most bucket_bytes; one all-reduce for each",
    hints=(
        "Two loops. The first makes a list of lists of gradients: before a gradient joins the last "
        "list, ask whether it still fits. The second sends one list: cat, all_reduce, divide, split, "
        "copy back.",
        "buckets, filled = [[]], 0; for parameter in reversed(list(model.parameters())): if buckets[-1]"
        " and filled + parameter.grad.nbytes > bucket_bytes: buckets.append([]), filled = 0. Then "
        "bucket = torch.cat([g.flatten() for g in gradients]); after the all-reduce: "
        "gradient.copy_(mean.view_as(gradient)) for the parts of bucket.split([...]).",
    ),
    references=REFERENCES,
)
def buckets(checks: Checks, answer: Any) -> None:
    """Payload of every all-reduce for six bucket sizes; then the number returned, and the means."""
    # Bytes: every gradient alone, three that fit exactly, one that is too large, in between, all; at last
    # less than the first gradient, which an answer that opens a bucket for it leaves an empty one behind.
    sizes = [8, 120, 800, 1200, 10**6, 4]
    results = on_ranks(RANKS, _bucket_rank, answer, sizes)
    for size in sizes:
        expected, sent = _payloads(size), results[0][size]["payloads"]
        checks.integer(
            f"all-reduces for buckets of {size:,} bytes",
            len(sent),
            len(expected),
            look=_known_mistake(size, sent)
            or "begin a new bucket when a gradient would make the open one too large; send the last too",
        )
        look = (
            _known_mistake(size, sent)
            or "from the last parameter to the first; more than bucket_bytes only for a single gradient"
        )
        for number, (got, right) in enumerate(zip(sent, expected, strict=True)):
            if got != right:
                checks.integer(
                    f"bytes of all-reduce {number}, buckets of {size:,} bytes", got, right, look=look
                )
        returned = results[0][size]["returned"]
        if returned != len(expected):
            checks.integer(f"number returned for buckets of {size:,} bytes", returned, len(expected))
    checks.integer("bytes in all of them", sum(results[0][sizes[0]]["payloads"]), sum(_payloads(sizes[0])))
    every = [
        (f"rank {rank}, {size:,} bytes", one, size) for rank, one in enumerate(results) for size in sizes
    ]
    checks.equal(
        "the mean gradients, on every rank and for every bucket size",
        {name: one[size]["gradients"] for name, one, size in every},
        {name: one["means"] for name, one, _ in every},
        tolerance=1e-12,
        look="divide by the world size; copy each part of the bucket back into its own gradient",
    )


def _bucket_rank(answer: Any, sizes: list[int]) -> dict[Any, Any]:
    import torch.distributed as dist

    from dtlab import traffic, world

    found: dict[Any, Any] = {}
    with world() as w:
        model = new_model(seed=0, plain=True)
        rows = [column[w.rank :: w.size] for column in rows_of_step(0, 8 * w.size)]
        loss(model, *rows).backward()
        means = flat_gradient(model)
        dist.all_reduce(means)
        found["means"] = means / w.size
        for size in sizes:
            model.zero_grad()
            loss(model, *rows).backward()
            with traffic() as sent:
                returned = answer(model, size)
            found[size] = {
                "payloads": [call.payload for call in sent.collective_log if call.op == "all_reduce"],
                "returned": returned,
                "gradients": flat_gradient(model),
            }
            w.barrier()
    return found


def _payloads(bucket_bytes: int, *, counts: str = "nbytes", full_is_too_full: bool = False) -> list[int]:
    """Bytes of each bucket of the plain model, last parameter first; or what a mistake makes of them."""
    filled: list[int] = []
    size = 0
    for parameter in reversed(list(new_model(seed=0, plain=True).parameters())):
        more = parameter.nbytes if counts == "nbytes" else parameter.numel()
        fits = size + more < bucket_bytes if full_is_too_full else size + more <= bucket_bytes
        if filled and fits:
            filled[-1] += parameter.nbytes
            size += more
        else:
            filled.append(parameter.nbytes)
            size = more
    return filled


def _known_mistake(size: int, sent: list[int]) -> str:
    """Where to look when the buckets are those of a mistake that is often made."""
    if sent == _payloads(size, counts="numel"):
        return "bucket_bytes counts bytes: gradient.nbytes, not numel(), which counts numbers of 8 bytes here"
    if sent == _payloads(size, full_is_too_full=True):
        return f"a bucket of exactly {size:,} bytes is full, not too full: a new one begins at more than that"
    return ""
