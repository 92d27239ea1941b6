"""Checks of lesson 04: a training step whose ranks hold uneven parts, some of them empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import Checks, exercise, require_float
from dtlab.course.lessons.on_ranks import on_ranks, require_function

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 4


@exercise(
    "04-uneven",
    todo="sum the loss, call backward, all-reduce the sums and the number of samples, divide once",
    hints=(
        "Sums can be added up over ranks, means cannot. Which three things have to be added up before "
        "anything is divided? And what does a rank without samples have to do?",
        "total = the sum of the squared errors; total.backward(); all-reduce a tensor with total.item() and "
        "len(labels); all-reduce every parameter.grad and divide it by the number of samples of all ranks; "
        "return the summed loss over that number. An empty rank does all of it: its sums are 0.",
    ),
    references=(
        "dtlab.data_parallel",
        "dtlab.parallel.by_hand_ddp.HandDDP",
        "torch.nn.parallel.DistributedDataParallel",
    ),
)
def uneven(checks: Checks, answer: Any) -> None:
    """The same number of collectives on all ranks, then loss and gradients of one process."""
    require_function(answer)
    ranks = on_ranks(RANKS, _uneven_cases, answer)
    for sizes in _UNEVEN:
        calls = [one[sizes]["collectives"] for one in ranks]
        checks.integer(
            f"parts of {_words(sizes)}: ranks that make as many collective calls as rank 0",
            sum(count == calls[0] and count > 0 for count in calls),
            RANKS,
            look="a rank without samples makes the same calls; with none at all nothing is added up",
        )
    for sizes in _UNEVEN:
        loss, gradients = _one_process(sizes)
        for rank, one in enumerate(ranks):
            require_float(f"parts of {_words(sizes)}: loss returned on rank {rank}", one[sizes]["loss"])
        checks.equal(
            f"parts of {_words(sizes)}: mean loss, on each rank",
            _named([one[sizes]["loss"] for one in ranks]),
            _named([loss] * RANKS),
            tolerance=1e-9,
            look="the loss summed over all ranks, divided by the samples of all ranks",
        )
        checks.equal(
            f"parts of {_words(sizes)}: gradients of one process, on each rank",
            _named([one[sizes]["gradients"] for one in ranks]),
            _named([gradients] * RANKS),
            tolerance=1e-9,
            look="add up sums, then divide once, by the number of samples of all ranks",
        )


def _named(values: list[Any]) -> dict[str, Any]:
    return {f"rank {rank}": value for rank, value in enumerate(values)}


_UNEVEN: tuple[tuple[int, ...], ...] = ((3, 3, 2, 2), (1, 1, 0, 0), (0, 0, 4, 0))


def _words(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def _problem(sizes: tuple[int, ...]) -> tuple[Any, Tensor, Tensor]:
    """A model and all samples, in float64; every rank makes the same ones."""
    import torch

    random = torch.Generator().manual_seed(sum(sizes) + sizes[0])
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    features = torch.randn(sum(sizes), 3, generator=random, dtype=torch.float64)
    return model, features, torch.randn(sum(sizes), generator=random, dtype=torch.float64)


def _one_process(sizes: tuple[int, ...]) -> tuple[float, list[Tensor]]:
    model, features, labels = _problem(sizes)
    loss = ((model(features).squeeze(1) - labels) ** 2).mean()
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()]


def _uneven_cases(answer: Any) -> dict[tuple[int, ...], dict[str, Any]]:
    from dtlab import traffic, world

    found = {}
    with world() as w:
        for sizes in _UNEVEN:
            model, features, labels = _problem(sizes)
            start = sum(sizes[: w.rank])
            mine = slice(start, start + sizes[w.rank])
            with traffic() as counted:
                loss = answer(model, features[mine], labels[mine])
            w.barrier()
            found[sizes] = {
                "collectives": counted.collectives,
                "loss": loss,
                "gradients": [parameter.grad for parameter in model.parameters()],
            }
    return found
