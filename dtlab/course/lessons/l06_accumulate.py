"""Check of lesson 06's accumulation: one all-reduce, one micro-batch alive, and the mean over all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import Checks, exercise, require_float
from dtlab.course.compare import difference
from dtlab.course.lessons.on_ranks import on_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

SEQUENCE, NO_TOKEN = 5, -100
# Rows of rank 0 and of rank 1, and the most rows of one forward.
CASES = {"5 and 3 rows": (5, 3, 2), "4 and no rows": (4, 0, 3), "2 and 2 rows at once": (2, 2, 8)}
_WAITS = (
    "the ranks have unequal numbers of micro-batches, so only the last backward of each may synchronise: "
    "forward and backward of the others go inside model.no_sync(). Every rank has a last one, also without "
    "rows."
)
# What is counted -> its key, the right number of a case, where to look.
_COUNTS: dict[str, tuple[str, int, str]] = {
    "all-reduces of one step": (
        "all_reduces",
        1,
        "forward and backward of every micro-batch but the last go inside model.no_sync()",
    ),
    "rows over micro_batch in the largest forward": (
        "rows_over",
        0,
        "cut tokens and targets into pieces of at most micro_batch rows",
    ),
    "tensors of earlier micro-batches that are still kept when a forward begins": (
        "kept",
        0,
        "call backward for each micro-batch at once. A sum of losses keeps all their graphs alive, which is "
        "the memory that accumulation is to save",
    ),
}


@exercise(
    "06-accumulate",
    todo="forward and backward of each micro-batch, all but the last in no_sync; sums, divided by all tokens",
    hints=(
        "tokens.split(micro_batch) cuts rows, and gives one empty piece for no rows: that rank, too, must "
        "take part in the all-reduce. DDP divides by the number of ranks; what has the loss to be multiplied "
        "with, so that the tokens of all ranks are what is divided by?",
        "pieces = list(zip(tokens.split(micro_batch), targets.split(micro_batch))); for number, (inputs, "
        "wanted) in enumerate(pieces, start=1): with nullcontext() if number == len(pieces) else "
        "model.no_sync(): loss = loss_sum(model(inputs), wanted); (loss * ranks / total).backward(). "
        "Add loss.item() up outside, and return it.",
    ),
)
def accumulate(checks: Checks, answer: Any) -> None:
    """Three ways to share rows over two ranks; counts of each, then gradients and sums."""
    results = on_ranks(2, _accumulating, answer, look=_WAITS)
    for name, (count, right, look) in _COUNTS.items():
        for case in CASES:
            wrong = [one[case][count] for one in results if one[case][count] != right]
            if wrong:
                checks.integer(f"{case}: {name}", wrong[0], right, look=look)
        checks.integer(f"{name}, in each of {len(CASES)} cases", right, right)
    one_process = {case: _one_process(case) for case in CASES}
    for case, whole in one_process.items():
        for rank, one in enumerate(results):
            got, wanted = one[case]["gradient"], whole["gradient"]
            if difference(got, wanted, 1e-12):
                look = _gradient_look(case, got, wanted)
                checks.equal(f"{case}: gradient on rank {rank}", got, wanted, tolerance=1e-12, look=look)
            require_float(f"{case}: loss returned on rank {rank}", one[case]["returned"])
    checks.equal(
        "gradient of the mean over all tokens in one process, on both ranks",
        [[one[case]["gradient"] for one in results] for case in CASES],
        [[whole["gradient"]] * 2 for whole in one_process.values()],
        tolerance=1e-12,
    )
    checks.equal(
        "summed loss returned, on both ranks",
        {(case, rank): one[case]["returned"] for case in CASES for rank, one in enumerate(results)},
        {(case, rank): whole["sums"][rank] for case, whole in one_process.items() for rank in range(2)},
        tolerance=1e-9,
        look="the sum over this rank's tokens: neither divided nor multiplied",
    )


def _gradient_look(case: str, got: Tensor, right: Tensor) -> str:
    """What is wrong with a gradient, told from what it is instead."""
    total = _tokens_of(case)
    for factor, why in (
        (
            0.5,
            "half of what it should be: DDP averages over the ranks, so multiply by their number",
        ),
        (2.0, "twice what it should be: DDP has divided by the ranks once, so multiply by `ranks` once"),
        (total / 2, "it was never divided by `total`"),
        (total, "it was never divided by `total`"),
    ):
        if difference(got, factor * right, 1e-9) == "":
            return why
    if not bool(got.any()):
        return "it is 0: was backward called, and is zero_grad() nowhere in it?"
    return (
        "the sum of losses of every micro-batch, times ranks / total. A mean of each micro-batch weighs the "
        "tokens of a short one more; zero_grad() in between forgets the earlier ones"
    )


def _model() -> nn.Module:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Embedding(7, 6), nn.Tanh(), nn.Linear(6, 7)).double()


def _loss_sum(output: Tensor, targets: Tensor) -> Tensor:
    import torch.nn.functional as F

    return F.cross_entropy(output.flatten(0, 1), targets.flatten(), ignore_index=NO_TOKEN, reduction="sum")


def _rows(case: str, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one rank; row r has only r % 4 + 1 targets that are tokens."""
    import torch

    count = CASES[case][rank]
    generator = torch.Generator().manual_seed(10 * rank + count)
    tokens = torch.randint(7, (count, SEQUENCE), generator=generator)
    targets = torch.randint(7, (count, SEQUENCE), generator=generator)
    for row in range(count):
        targets[row, row % 4 + 1 :] = NO_TOKEN
    return tokens, targets


def _tokens_of(case: str) -> int:
    return sum(int((_rows(case, rank)[1] != NO_TOKEN).sum()) for rank in range(2))


def _flat_gradient(model: nn.Module) -> Tensor:
    import torch

    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])


def _accumulating(answer: Any) -> dict[str, Any]:
    """On a rank: every case with the answer."""
    import torch

    from dtlab import traffic, world
    from dtlab.parallel import data_parallel

    found = {}
    with world() as w:
        for case, (_, _, micro_batch) in CASES.items():
            model = data_parallel(_model(), w)
            alive: list[int] = [0]
            rows, kept = [0], [0]
            model.register_forward_pre_hook(_forward_begins(alive, rows, kept))
            with traffic() as sent, torch.autograd.graph.saved_tensors_hooks(_Kept.pack(alive), _Kept.unpack):
                returned = answer(
                    model, *_rows(case, w.rank), micro_batch, _loss_sum, _tokens_of(case), w.size
                )
            found[case] = {
                "all_reduces": sent.by_op["all_reduce"].calls,
                "rows_over": max(0, max(rows) - micro_batch),
                "kept": max(kept),
                "returned": returned,
                "gradient": _flat_gradient(model),
            }
            w.barrier()
    return found


def _forward_begins(alive: list[int], rows: list[int], kept: list[int]) -> Any:
    def hook(module: Any, inputs: tuple[Tensor, ...]) -> None:
        rows.append(len(inputs[0]))
        kept.append(alive[0])

    return hook


class _Kept:
    """A tensor that the graph keeps for backward; it counts itself as long as it lives."""

    def __init__(self, tensor: Tensor, alive: list[int]) -> None:
        self.tensor, self._alive = tensor, alive
        alive[0] += 1

    def __del__(self) -> None:
        self._alive[0] -= 1

    @classmethod
    def pack(cls, alive: list[int]) -> Any:
        return lambda tensor: cls(tensor, alive)

    @staticmethod
    def unpack(kept: _Kept) -> Tensor:
        return kept.tensor


def _one_process(case: str) -> dict[str, Any]:
    """Gradient of the mean over all tokens in one process, and the summed loss of each rank's rows."""
    model, parts = _model(), [_rows(case, rank) for rank in range(2)]
    losses = [_loss_sum(model(tokens), targets) for tokens, targets in parts]
    (sum(losses) / _tokens_of(case)).backward()  # type: ignore[union-attr]
    return {"gradient": _flat_gradient(model), "sums": [loss.item() for loss in losses]}
