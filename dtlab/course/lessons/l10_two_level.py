"""Check of lesson 10's two-level all-reduce: what crosses between hosts, then the sum."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import Checks, exercise
from dtlab.course.lessons.on_ranks import on_ranks

NUMBERS = 48  # of the tensor; can be divided by every number of ranks on a host
RANKS = 4
# Ranks on a host: two hosts of two, one host of four, four hosts of one.
LAYOUTS = (2, 4, 1)


@exercise(
    "10-two-level",
    todo="reduce_scatter in the host, all_reduce your part across the hosts, all_gather in the host",
    hints=(
        "How many ranks are on this host, and which part of the sum could each of them look after? Each of "
        "them talks to the rank with the same place on the other hosts, about its part only.",
        "part = torch.empty(tensor.numel() // dist.get_world_size(local), dtype=tensor.dtype); "
        "dist.reduce_scatter_tensor(part, tensor, group=local); dist.all_reduce(part, group=across); "
        "dist.all_gather_into_tensor(tensor, part, group=local).",
    ),
)
def two_level(checks: Checks, answer: Any) -> None:
    """Calls and bytes of each collective on three layouts of four ranks, then the sums."""
    results = on_ranks(RANKS, _rank, answer, timeout=12)
    whole = 8 * NUMBERS
    for local in LAYOUTS:
        for rank, one in enumerate(results):
            for op, right in _right(local).items():
                got = one[local]["calls"].get(op, [])
                if got != right:
                    _refuse(checks, local, rank, op, got, right)
    for local in LAYOUTS:
        hosts = RANKS // local
        name = f"{hosts} host{'s' if hosts > 1 else ''} of {local}"
        crossed = results[0][local]["calls"]["all_reduce"][0][1] if hosts > 1 else 0
        checks.integer(f"{name}: bytes of the tensor of {whole} that a rank sums across hosts", crossed,
                       whole // local if hosts > 1 else 0)  # fmt: skip
    look = "the result belongs into the tensor that was given: all_gather_into_tensor(tensor, part, ...)"
    got, first = results[0][LAYOUTS[0]]["tensor"][0], _sum()[0]
    if got in (first / 2, first / RANKS):
        look = "a sum was asked for, not a mean: divide nowhere"
    checks.equal(
        "the sum over all ranks, on every rank, in place",
        [[one[local]["tensor"] for local in LAYOUTS] for one in results],
        [[_sum() for _ in LAYOUTS] for _ in results],
        look=look,
    )


def _right(local: int) -> dict[str, list[tuple[int, int]]]:
    """(ranks of the group, bytes given) of each call."""
    whole = 8 * NUMBERS
    return {
        "reduce_scatter": [(local, whole)],
        "all_reduce": [(RANKS // local, whole // local)],
        "all_gather": [(local, whole // local)],
    }


def _refuse(checks: Checks, local: int, rank: int, op: str, got: Any, right: Any) -> None:
    where = f"{RANKS // local} host(s) of {local}, rank {rank}"
    checks.integer(
        f"{where}: calls of {op}",
        len(got),
        1,
        look="reduce_scatter in the host, one all_reduce across, all_gather in the host",
    )
    (size, payload), (right_size, right_payload) = got[0], right[0]
    checks.integer(
        f"{where}: ranks in the group of the {op}",
        size,
        right_size,
        look="the fast links are inside the host: scatter and gather in `local`, all_reduce in `across`",
    )
    checks.integer(
        f"{where}: bytes given to the {op}",
        payload,
        right_payload,
        look=f"each rank looks after 1/{local} of the tensor: numel() // dist.get_world_size(local)",
    )


def _sum() -> list[float]:
    return [sum(_value(rank, number) for rank in range(RANKS)) for number in range(NUMBERS)]


def _value(rank: int, number: int) -> float:
    return float((rank + 1) * (number + 1) + 100 * rank * rank)


def _rank(answer: Any) -> dict[int, Any]:
    import torch
    import torch.distributed as dist

    from dtlab import traffic, world

    found: dict[int, Any] = {}
    with world() as w:
        for local in LAYOUTS:
            inside = across = None
            for first in range(0, RANKS, local):
                ranks = list(range(first, first + local))
                group = dist.new_group(ranks)
                inside = group if w.rank in ranks else inside
            for place in range(local):
                ranks = list(range(place, RANKS, local))
                group = dist.new_group(ranks)
                across = group if w.rank in ranks else across
            tensor = torch.tensor([_value(w.rank, n) for n in range(NUMBERS)], dtype=torch.float64)
            with traffic() as sent:
                answer(tensor, inside, across)
            calls: dict[str, list[tuple[int, int]]] = {}
            for call in sent.collective_log:
                calls.setdefault(call.op, []).append((call.size, call.payload))
            found[local] = {"calls": calls, "tensor": tensor.tolist()}
            w.barrier()
    return found
