"""What ranks must agree on before they share out samples, compared in one small collective (lesson 04)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks import agreement


def joined_as(group: "dist.ProcessGroup | None" = None) -> tuple[int, int] | None:
    """Return (rank, size) in the group (the default one for None), or None where no group exists."""
    if not agreement.has_group():
        return None
    return agreement.rank(group), agreement.world_size(group)


def check_same(
    owner: str, rank: int, values: Mapping[str, int], group: "dist.ProcessGroup | None" = None
) -> None:
    """Compare named integers over the ranks of the group (collective; nothing to do in a world of one).

    Args:
        owner: what they belong to, for the message ("sampler").
        rank: which part of the samples this rank takes; every part must have exactly one taker.

    Raises:
        UserError: on every rank alike, with the value of each rank, as in ``{0: 1, 1: 2}``.
    """
    joined = joined_as(group)
    if joined is None or joined[1] == 1:
        return
    world_size = joined[1]
    mine = torch.tensor([rank, *values.values()], dtype=torch.int64, device=agreement.wire_device(group))
    rows = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine, group=group)
    parts, *columns = ({r: int(row[i]) for r, row in enumerate(rows)} for i in range(len(mine)))
    for name, column in zip(values, columns, strict=True):
        if len(set(column.values())) > 1:
            raise UserError(
                f"ranks disagree on the {owner}'s {name}: {column}; give every rank the same {name}, "
                "or some samples are seen twice and others never"
            )
    if sorted(parts.values()) != list(range(world_size)):
        raise UserError(
            f"ranks take the same part of the samples, the {owner}'s rank is {parts}; "
            "leave rank and world_size out, or give each process its own"
        )


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    """Return ``value`` as an int.

    Raises:
        UserError: it is no whole number, or below ``at_least``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"{name} is {value!r}; give a whole number")
    if value < at_least:
        raise UserError(f"{name} is {value}; give {at_least} or more")
    return int(value)
