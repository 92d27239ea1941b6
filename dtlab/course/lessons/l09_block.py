"""Check of lesson 09's sharded block: parts, messages, what is kept whole; then values of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe, difference
from dtlab.course.copies import copied_name
from dtlab.course.lessons.on_ranks import on_ranks, require_function

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = (5, 7, 5, 7)  # three blocks, of 43, 41 and 43 numbers
ROWS = 2
REFERENCES = ("dtlab.parallel.fsdp.fully_sharded", "torch.distributed.fsdp.fully_shard")


@exercise(
    "09-block",
    todo="forward: gather, use, drop; backward: gather again, recompute, give the gradient's mean in parts",
    hints=(
        "gather: an empty tensor of ranks * len(shard) numbers for dist.all_gather_into_tensor, of which the "
        "first n count. reduce: the gradient padded to ranks * size, dist.reduce_scatter_tensor, divided by "
        "the ranks. Backward has x and the shard: it can do the forward once more, this time with a graph.",
        "forward: ctx.save_for_backward(x, shard); ctx.n, ctx.block = n, block; return block(x, "
        "gather(shard, n)). backward: x, shard = ctx.saved_tensors; x = x.detach().requires_grad_(); whole = "
        "gather(shard, ctx.n).requires_grad_(); with torch.enable_grad(): y = ctx.block(x, whole); of_x, "
        "of_whole = torch.autograd.grad(y, (x, whole), gradient); return of_x, reduce(of_whole, len(shard)), "
        "None, None.",
    ),
    references=REFERENCES,
)
def block(checks: Checks, answer: Any, shard_of: Any) -> None:
    """Parts of every rank; messages, their bytes and what stays whole on 2 and 3 ranks; then all values."""
    require_function(shard_of)
    copied = copied_name(shard_of, REFERENCES)
    if copied:
        raise CheckFailed(f"shard_of is {copied} itself, or calls it. Write it out: pad, then a slice.")
    if not isinstance(answer, type) or not hasattr(answer, "apply"):
        raise CheckFailed(f"the answer is {describe(answer)}: hand in the class ShardedBlock itself.")
    for size in (2, 3):
        _parts_right(checks, shard_of, size)
    worlds = {size: on_ranks(size, _measure, answer) for size in (2, 3)}
    for size, ranks in worlds.items():
        for rank, one in enumerate(ranks):
            if "gave" in one:
                if one["gave"] == "None":
                    raise ToDo("the forward gave None; is a return missing?")
                raise CheckFailed(f"rank {rank}: {one['gave']}")
            _messages_right(checks, one, size)
    checks.passed[:] = list(dict.fromkeys(checks.passed))
    for size, ranks in worlds.items():
        _values_right(checks, ranks, size)
    checks.passed[:] = list(dict.fromkeys(checks.passed))


def _parts_right(checks: Checks, shard_of: Any, size: int) -> None:
    """The parts, before any rank is started: as many numbers as there must be, and the right ones."""
    import torch

    for n in (_numbers(0), 12):
        flat = torch.arange(1.0, n + 1)
        parts = [shard_of(flat.clone(), rank, size) for rank in range(size)]
        if parts[0] is None:
            raise ToDo("shard_of gave None; is a return missing?")
        for part in parts:
            if not isinstance(part, torch.Tensor) or part.dim() != 1:
                raise CheckFailed(f"shard_of: give a tensor [numbers], not {describe(part)}.")
            look = "shard_of: ceil(n / ranks) on every rank, so that all-gather and reduce-scatter fit"
            checks.integer(f"numbers of {n} on each of {size} ranks", len(part), -(-n // size), look=look)
        if any(part.untyped_storage().nbytes() > part.nbytes for part in parts):
            raise CheckFailed(
                "shard_of: the part is a view, and a view keeps all of its storage alive.\n"
                "Where to look: .clone() the slice, so that the rest of the numbers can go."
            )
        joined = torch.cat(parts)
        if difference(joined[:n], flat) or joined[n:].any():
            raise CheckFailed(
                f"shard_of: the parts of {size} ranks, one after the other, are not flat and then zeros.\n"
                "Where to look: rank r has the numbers from r * ceil(n / ranks) on; zeros fill the last part."
            )


def _messages_right(checks: Checks, one: dict[str, Any], size: int) -> None:
    blocks = len(WIDTHS) - 1
    parts = [8 * -(-_numbers(i) // size) for i in range(blocks)]
    forward, backward = one["forward"], one["backward"]
    gathers = "gather the block's weights once, use them, and let them go"
    again = "once more for each block: nothing whole was kept from the forward"
    means = "each block's whole gradient goes out once, and this rank's part of the mean comes back"
    for what, got, want, look in (
        ("all-gathers in forward", forward["all_gather"][0], blocks, gathers),
        ("bytes given to them", forward["all_gather"][1], sum(parts), "the shard, nothing else"),
        ("all-gathers in backward", backward["all_gather"][0], blocks, again),
        ("bytes given to those", backward["all_gather"][1], sum(parts), "the shard, nothing else"),
        ("reduce-scatters in backward", backward["reduce_scatter"][0], blocks, means),
        ("bytes given to the reduce-scatters", backward["reduce_scatter"][1], size * sum(parts),
         "the whole gradient, padded to ranks * size numbers"),
        ("other messages", forward["other"] + backward["other"], 0,
         "all-gathers and reduce-scatters are all that is needed: an all-reduce would give every rank all"),
    ):  # fmt: skip
        checks.integer(f"{what}, {size} ranks", got, want, look=look)
    checks.integer(
        f"bytes kept from forward to backward beside x and y, {size} ranks",
        one["kept"],
        0,
        look="save x and the shard, which are there anyway. Weights that are kept whole (saved, or in a "
        "graph) are what ZeRO-3 is there to avoid",
    )

    largest = size * max(parts)
    checks.integer(
        f"bytes gathered at the peak of a forward without samples, {size} ranks",
        one["gathered"],
        largest,
        look="one copy of the largest block, padded; a list of parts that is joined afterwards makes two",
    )


def _values_right(checks: Checks, ranks: list[dict[str, Any]], size: int) -> None:
    wanted = [_one_process(rank) for rank in range(size)]
    means = [sum(one["gradients"][i] for one in wanted) / size for i in range(len(WIDTHS) - 1)]
    for rank, one in enumerate(ranks):
        checks.equal(
            f"output, {size} ranks", one["y"], wanted[rank]["y"], tolerance=1e-12,
            look="the block is called with x and the n numbers of all ranks, without the padding",
        )  # fmt: skip
        checks.equal(
            f"gradient of x, {size} ranks", one["x"], wanted[rank]["x"], tolerance=1e-12,
            look="torch.autograd.grad of the block's output, with the gradient that came in; x is the "
            "rank's own, so nothing is averaged",
        )  # fmt: skip
        for i, mean in enumerate(means):
            part = _part(mean, rank, size)
            checks.equal(
                f"gradient of each shard, {size} ranks", one["gradients"][i], part, tolerance=1e-12,
                look=_gradient_look(one["gradients"][i], part, wanted[rank]["gradients"][i], rank, size),
            )  # fmt: skip


def _gradient_look(got: Tensor, part: Tensor, own: Tensor, rank: int, size: int) -> str:
    if difference(got, size * part, 1e-9) == "":
        return f"{size} times too long: reduce-scatter sums, and the mean over the ranks is wanted"
    if difference(got, part / size, 1e-9) == "":
        return f"{size} times too short: divided twice"
    if difference(got, _part(own, rank, size), 1e-9) == "":
        return "this is the gradient of this rank's samples alone: no rank has heard of the others"
    return "rank r gets the numbers of its own part, in the order of shard_of"


def _numbers(i: int) -> int:
    """Of block i: a matrix, a bias and a scale."""
    return WIDTHS[i] * WIDTHS[i + 1] + WIDTHS[i + 1] + 1


def _block(i: int) -> Any:
    inputs, outputs = WIDTHS[i], WIDTHS[i + 1]

    def use(x: Tensor, whole: Tensor) -> Tensor:
        if len(whole) != _numbers(i):
            raise ValueError(
                f"the block has {_numbers(i)} numbers and was given {len(whole)}: cut the padding off"
            )
        matrix = whole[: inputs * outputs].view(outputs, inputs)
        bias = whole[inputs * outputs : -1]
        return (x @ matrix.T + bias).tanh() * whole[-1]

    return use


def _flats() -> list[Tensor]:
    import torch

    draw = torch.Generator().manual_seed(9)
    return [torch.randn(_numbers(i), generator=draw, dtype=torch.float64) / 2 for i in range(len(WIDTHS) - 1)]


def _samples(rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and wanted outputs of a rank."""
    import torch

    draw = torch.Generator().manual_seed(90 + rank)
    return tuple(
        torch.randn(ROWS, width, generator=draw, dtype=torch.float64) for width in (WIDTHS[0], WIDTHS[-1])
    )  # type: ignore[return-value]


def _part(flat: Tensor, rank: int, size: int) -> Tensor:
    import torch

    own = -(-len(flat) // size)
    padded = torch.cat([flat, flat.new_zeros(own * size - len(flat))])
    return padded[rank * own : (rank + 1) * own]


def _one_process(rank: int) -> dict[str, Any]:
    """Output and gradients for the samples of one rank, with whole weights."""
    x, wanted = _samples(rank)
    flats = [flat.requires_grad_() for flat in _flats()]
    y = x.requires_grad_()
    for i, flat in enumerate(flats):
        y = _block(i)(y, flat)
    ((y - wanted) ** 2).sum().backward()
    return {"y": y.detach(), "x": x.grad, "gradients": [flat.grad for flat in flats]}


def _measure(answer: Any) -> dict[str, Any]:
    """What this rank sends, keeps and computes."""
    import torch

    from dtlab import traffic, world
    from dtlab.diagnose.memory_trace import trace_memory

    with world() as w:
        shards = [_part(flat, w.rank, w.size).clone().requires_grad_() for flat in _flats()]
        x, wanted = _samples(w.rank)
        x.requires_grad_()
        outputs = [x]
        with trace_memory() as trace, traffic() as forward:
            trace.label("given", [x, *shards])
            before = trace.now
            for i, shard in enumerate(shards):
                y = answer.apply(outputs[-1], shard, _numbers(i), _block(i))
                if y is None:
                    return {"gave": "None"}
                if not isinstance(y, torch.Tensor) or y.shape != (ROWS, WIDTHS[i + 1]):
                    return {"gave": f"the forward gave {describe(y)}: give what the block gives."}
                outputs.append(y)
            wanted_now = before + sum(output.nbytes for output in outputs[1:])
            _settle(lambda: trace.now <= wanted_now)
            kept = trace.now - wanted_now
        gathered = max(_gathered(answer, shard, i) for i, shard in enumerate(shards))
        with traffic() as backward:
            ((outputs[-1] - wanted) ** 2).sum().backward()
        w.barrier()
        zero = torch.zeros_like
        return {
            "forward": _counts(forward), "backward": _counts(backward), "kept": kept,
            "gathered": gathered,
            "y": outputs[-1].detach(), "x": zero(x) if x.grad is None else x.grad,
            "gradients": [zero(one) if one.grad is None else one.grad for one in shards],
        }  # fmt: skip


def _settle(is_so: Any) -> None:
    """Wait a little: gloo's thread may let go of a message after the call has returned."""
    import time

    for _ in range(100):
        if is_so():
            return
        time.sleep(0.01)


def _gathered(answer: Any, shard: Tensor, i: int) -> int:
    """Bytes beside the shard at the peak of block i's forward, without samples: the least of three times."""
    import torch

    from dtlab.diagnose.memory_trace import trace_memory

    peaks = []
    for _ in range(3):
        with trace_memory() as trace:
            x = torch.empty(0, WIDTHS[i], dtype=torch.float64)
            trace.label("given", [shard])
            before = trace.now
            answer.apply(x, shard, _numbers(i), _block(i))
            _settle(lambda: trace.now <= before)  # noqa: B023
        peaks.append(trace.peak - before)
    return min(peaks)


def _counts(counted: Any) -> dict[str, Any]:
    """Calls and payload of the two collectives, and how many others there were."""
    found: dict[str, Any] = {}
    for op in ("all_gather", "reduce_scatter"):
        calls = [call.payload for call in counted.collective_log if call.op == op]
        found[op] = (len(calls), sum(calls))
    known = sum(calls for calls, _ in found.values())
    return {**found, "other": counted.collectives - known + counted.messages}
