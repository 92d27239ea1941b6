"""The patients of the debugging clinic (lesson 12): trainers with one fault each, and a slot for the patch.

- ``skips_a_batch``: a collective under a condition that only one rank meets.
- ``own_vocabulary``: shapes that differ between ranks.
- ``unused_head``: a parameter that one rank's loss does not reach.
- ``wrong_pairs``: a group that the rank is not in.
- ``old_settings``: an address from an earlier job.
- ``barrier_before_each_step`` and ``barrier_on_rank_0``: the barrier that was added against a hang.
- ``stuck_reader``: no fault in the collectives at all; one rank's read does not return.

Each runs in every rank (``launch(skips_a_batch, 2)``). Its first argument is the faulty part, a function with
a default: hand in your own and nothing else of the trainer changes. ``patience`` is the timeout of a
collective in seconds. ``patients()`` lists the five whose fault is to be named and patched.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtlab.ranks.worlds import world

if TYPE_CHECKING:
    from dtlab.ranks.worlds import World

LOSSES = ((2.0, 1.5, math.nan, 1.0), (2.0, 1.25, 1.5, 0.75))
ITEMS = (("tea", "milk", "tea", "milk"), ("milk", "bread", "jam", "bread"))
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def patients() -> dict[str, Callable[..., Any]]:
    """The five by name.

    >>> len(patients())
    5
    """
    five = (skips_a_batch, own_vocabulary, unused_head, wrong_pairs, old_settings)
    return {patient.__name__: patient for patient in five}


# ---------------------------------------------------------------- a condition that one rank meets


def skip_step(w: World, weight: Tensor, loss: float, gradient: Tensor) -> None:
    """One step: average the gradients, unless the loss is not finite."""
    if not math.isfinite(loss):
        return  # a bad batch: leave it out
    dist.all_reduce(gradient)
    weight -= 0.5 * gradient / w.size


def skips_a_batch(step: Callable[..., None] = skip_step, patience: float = 5.0) -> list[float]:
    """Four steps on two ranks; returns the weight after each. Rank 0's third loss is not a number."""
    after = []
    with world(timeout=patience) as w:
        weight = torch.zeros(1)
        for number, loss in enumerate(LOSSES[w.rank]):
            w.log.info("step %d, loss %.2f", number, loss)
            step(w, weight, loss, torch.tensor([loss]))
            after.append(weight.item())
        w.log.info("all steps done")
    return after


# ---------------------------------------------------------------- shapes that differ


def own_items(rows: tuple[str, ...]) -> list[str]:
    """The vocabulary: every item of this rank's rows, in order."""
    return sorted(set(rows))


def own_vocabulary(
    items_of: Callable[[tuple[str, ...]], list[str]] = own_items, patience: float = 5.0, steps: int = 2
) -> dict[str, list[Any]]:
    """A table with a number for each item. Start alike (rank 0's), then ``steps`` steps."""
    with world(timeout=patience) as w:
        items = items_of(ITEMS[w.rank])
        table = torch.full((len(items),), float(w.rank + 1))
        dist.broadcast(table, src=0)
        start = table.tolist()
        w.log.info("table after the broadcast: %s", start)
        for number in range(steps):
            gradient = torch.ones(len(items))
            dist.all_reduce(gradient)
            w.log.info("step %d: gradient %s", number, gradient.tolist())
            table -= 0.5 * gradient / w.size
    return {"items": items, "start": start, "table": table.tolist()}


# ---------------------------------------------------------------- a parameter without a gradient


class TwoHeads(nn.Module):
    """One head says whether a row is clicked, the other whether it is bought."""

    def __init__(self) -> None:
        super().__init__()
        self.click = nn.Linear(2, 1, bias=False)
        self.buy = nn.Linear(2, 1, bias=False)
        for number, head in enumerate((self.click, self.buy)):
            nn.init.constant_(head.weight, 1.0 + number)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``rows [B, 2]`` -> (click scores ``[B]``, buy scores ``[B]``)."""
        return self.click(rows).squeeze(1), self.buy(rows).squeeze(1)


def shopping(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Rows [3, 2] and whether they were clicked [3]. In step 1 nobody clicks on rank 1."""
    rows = torch.arange(6.0).reshape(3, 2) + rank
    clicked = (
        torch.tensor([True, False, True]) if (rank, step) != (1, 1) else torch.zeros(3, dtype=torch.bool)
    )
    return rows, clicked


def loss_if_clicked(model: nn.Module, rows: Tensor, clicked: Tensor) -> Tensor:
    """All rows train the click head; the rows that were clicked train the buy head."""
    click, buy = model(rows)
    loss = click.sum()
    if clicked.any():
        loss = loss + buy[clicked].sum()
    return loss


def unused_head(loss_of: Callable[..., Tensor] = loss_if_clicked, patience: float = 60.0) -> list[float]:
    """Three steps of torch's own DDP; returns the four weights."""
    with world(timeout=patience) as w:
        model = DistributedDataParallel(TwoHeads())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, *shopping(w.rank, step)).backward()
            optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


# ---------------------------------------------------------------- the wrong group


def pair_by_remainder(rank: int, size: int, parts: int) -> dict[str, list[int]]:
    """Ranks that hold the parts of my replica, and ranks that hold my part of every replica."""
    model = [parts * (rank % parts) + part for part in range(parts)]
    return {"model": model, "data": list(range(rank % parts, size, parts))}


def wrong_pairs(
    groups_of: Callable[[int, int, int], dict[str, list[int]]] = pair_by_remainder, patience: float = 5.0
) -> float:
    """Two replicas of a model cut in two: ranks 0, 1 and ranks 2, 3. Each pair adds up its outputs."""
    with world(timeout=patience) as w:
        # every rank makes every group, in the same order, also those that it is not in
        made = {tuple(ranks): dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])}
        mine = groups_of(w.rank, w.size, 2)
        output = torch.tensor(10.0**w.rank)
        dist.all_reduce(output, group=made[tuple(mine["model"])])
    return output.item()


# ---------------------------------------------------------------- an old address


def file_wins(environ: Mapping[str, str], file: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment of the job, and the names for which the file was not followed."""
    return {**environ, **file}, []


def old_settings(
    settings: Callable[..., tuple[dict[str, str], list[str]]] = file_wins,
    old_port: int = 9,
    patience: tuple[float, float] = (20.0, 20.0),
) -> dict[str, Any]:
    """Two hosts; the settings file on host 1 still has the port of last week's job. Plain torch.

    ``patience``: seconds until the rank of host 0, and that of host 1, gives up.
    """
    host = int(os.environ["GROUP_RANK"])
    file = {"LR": "0.01"} | ({"MASTER_PORT": str(old_port)} if host == 1 else {})
    environ, ignored = settings(dict(os.environ), file)
    os.environ.update(environ)
    dist.init_process_group("gloo", timeout=timedelta(seconds=patience[host]))
    total = torch.ones(1)
    dist.all_reduce(total)
    return {"ranks": int(total.item()), "lr": os.environ["LR"], "ignored": ignored}


# ---------------------------------------------------------------- barriers, and a rank that is only slow


def barrier_before_each_step(patience: float = 5.0) -> None:
    """``skips_a_batch`` with a barrier added against its hang."""

    def step(w: World, weight: Tensor, loss: float, gradient: Tensor) -> None:
        w.barrier()
        skip_step(w, weight, loss, gradient)

    skips_a_batch(step, patience)


def barrier_on_rank_0(patience: float = 5.0) -> None:
    """A trainer without a fault, until somebody made it wait for the file to be written."""
    with world(timeout=patience) as w:
        for _ in range(3):
            gradient = torch.ones(1)
            dist.all_reduce(gradient)
        if w.rank == 0:
            w.log.info("saved")
            w.barrier()


def stuck_reader(patience: float = 5.0, num_workers: int = 0) -> None:
    """Rank 1's disk does not answer. A monitored barrier stands before each step."""
    with world() as w:
        for rows in torch.utils.data.DataLoader(_Rows(w.rank), batch_size=2, num_workers=num_workers):
            dist.monitored_barrier(timeout=timedelta(seconds=patience), wait_all_ranks=True)
            dist.all_reduce(rows)


class _Rows(torch.utils.data.Dataset[float]):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        if self.rank == 1:
            time.sleep(60)  # stands for a read that does not come back
        return float(index)
