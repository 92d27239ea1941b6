"""Check of lesson 03: gradients of several micro-batches, and when they are synchronised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import Checks, exercise, require_float
from dtlab.course.compare import difference
from dtlab.course.lessons.on_ranks import on_ranks
from dtlab.course.lessons.small_model import flat_gradient, loss, mean_loss, new_model, rows_of_step

if TYPE_CHECKING:
    from torch import Tensor


@exercise(
    "03-accumulate",
    todo="run every micro-batch but the last inside model.no_sync(), and divide each loss by their number",
    hints=(
        "Only the last backward has to average, because it averages everything that has accumulated by "
        "then. What has each loss to be divided by, so that the sum of the gradients is the mean over "
        "all micro-batches?",
        "for number, (x, y) in enumerate(micro_batches, start=1): with nullcontext() if number == "
        "len(micro_batches) else model.no_sync(): loss = loss_of(model(x), y) / len(micro_batches); "
        "loss.backward(). Add loss.item() up, return it.",
    ),
)
def accumulate(checks: Checks, answer: Any) -> None:
    """Both wrappers, one, three and four micro-batches: all-reduces, gradients and the loss returned."""
    counts = (1, 3, 4)
    results = on_ranks(2, _accumulating_rank, answer, counts)
    look = "synchronise in the last micro-batch only; forward and backward of the others go inside no_sync()"
    for count in counts:
        of = f"{count} micro-batch{'es' if count > 1 else ''}"
        for wrapper in ("by_hand", "torch"):
            calls = results[0][wrapper, count]["all_reduces"]
            if calls != 1:
                checks.integer(f"all-reduces of one step of {of}, engine {wrapper!r}", calls, 1, look=look)
        checks.integer(f"all-reduces of one step of {of}, both wrappers", calls, 1, look=look)
    names = {
        (rank, *key): f"rank {rank}, {key[1]} micro-batch{'es' if key[1] > 1 else ''}, engine {key[0]}"
        for rank, result in enumerate(results)
        for key in result
    }
    joined = {count: _joined(count) for count in counts}
    checks.equal(
        "gradients of one process on the joined batch, on both ranks",
        {name: results[rank][wrapper, count]["gradient"] for (rank, wrapper, count), name in names.items()},
        {name: joined[count][0] for (_, _, count), name in names.items()},
        tolerance=1e-12,
        look=_accumulate_look(results, joined),
    )
    for (rank, wrapper, count), name in names.items():
        require_float(f"mean loss returned, {name}", results[rank][wrapper, count]["returned"])
    checks.equal(
        "mean loss returned, on both ranks",
        {name: results[rank][wrapper, count]["returned"] for (rank, wrapper, count), name in names.items()},
        {name: joined[count][1][rank] for (rank, _, count), name in names.items()},
        tolerance=1e-9,
        look="the mean over this rank's micro-batches",
    )


def _accumulate_look(results: list[dict[Any, Any]], joined: dict[int, tuple[Tensor, list[float]]]) -> str:
    """What is wrong with the first gradient that is, told from what it is instead."""
    for key in results[0]:
        count, got = key[1], results[0][key]["gradient"]
        if difference(got, joined[count][0], 1e-12) == "":
            continue
        if difference(got, results[1][key]["gradient"], 1e-12) != "":
            return (
                "the two ranks hold different gradients, so something was added after the all-reduce: the "
                "micro-batch that synchronises must be the last one"
            )
        last = _joined(count, last_only=True)[0]
        if any(difference(got, last / part, 1e-12) == "" for part in (1, count)):
            return (
                "only the last micro-batch is in it: does something zero the gradients between, or skip one?"
            )
        if difference(got, count * joined[count][0], 1e-12) == "":
            return f"{count} times too large: divide each loss by the number of micro-batches"
        if difference(2 * got, joined[count][0], 1e-12) == "":
            return "half of what it should be: the wrapper divides by the number of ranks already"
        break
    return "each loss divided by the number of micro-batches; the last backward averages over ranks, once"


def _accumulating_rank(answer: Any, counts: tuple[int, ...]) -> dict[Any, Any]:

    from dtlab import traffic, world
    from dtlab.parallel import data_parallel

    found: dict[Any, Any] = {}
    with world() as w:
        for engine in ("by_hand", "torch"):
            model = data_parallel(new_model(seed=0, plain=True), w, engine=engine)  # type: ignore[arg-type]
            for count in counts:
                model.zero_grad()
                with traffic() as sent:
                    returned = answer(model, _micro_batches(w.rank, count), mean_loss)
                found[engine, count] = {
                    "all_reduces": sent.by_op["all_reduce"].calls,
                    "returned": returned,
                    "gradient": flat_gradient(model),
                }
                w.barrier()
    return found


def _micro_batches(rank: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Different rows for each rank and place."""
    return [rows_of_step(10 * rank + place, 4) for place in range(count)]


def _joined(count: int, last_only: bool = False) -> tuple[Tensor, list[float]]:
    """Gradient of one process on all micro-batches (or the last) of two ranks, each rank's mean loss."""
    import torch

    model = new_model(seed=0, plain=True)
    parts = [_micro_batches(rank, count) for rank in range(2)]
    losses = [sum(loss(model, *one).item() for one in part) / count for part in parts]
    every = [one for part in parts for one in (part[-1:] if last_only else part)]
    loss(model, torch.cat([x for x, _ in every]), torch.cat([y for _, y in every])).backward()
    return flat_gradient(model), losses
