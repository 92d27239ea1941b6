"""Do all ranks hold one model? Names, shapes and dtypes are compared before anything is shared (lesson 03).

Collectives send bytes: a float64 rank would read float32 bytes as its own numbers, without an error. One
all-gather of 8 bytes finds that at wrapping; only when it does, the descriptions travel too.
"""

import hashlib
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.sharded import is_sharded
from dtlab.ranks.agreement import wire_device

__all__ = ["check_same_model"]

Line = tuple[str, str]  # name, and what it is: "parameter (3, 2) float32"


def check_same_model(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """``UserError`` on every rank of ``group`` when their models differ: it names the first difference.

    Names, shapes, dtypes and ``requires_grad`` count, of parameters and then of buffers, in the order of the
    model. Values do not. A collective: all ranks of ``group`` call it.
    """
    lines = _lines(module)
    digest = int.from_bytes(hashlib.sha256(repr(lines).encode()).digest()[:8], "big", signed=True)
    own = torch.tensor([digest], dtype=torch.int64, device=wire_device(group))
    size = dist.get_world_size(group)
    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own, group=group)
    digests = [int(one) for one in gathered]
    other = next((rank for rank, one in enumerate(digests) if one != digests[0]), None)
    if other is None:
        return
    by_rank: list[list[Line]] = [[] for _ in range(size)]
    dist.all_gather_object(by_rank, lines, group=group)
    ranks = dist.get_process_group_ranks(group)
    raise UserError(_message(by_rank[0], by_rank[other], [ranks[0], ranks[other]]))


def _lines(module: nn.Module) -> list[Line]:
    parameters = [
        (name, f"{'parameter' if parameter.requires_grad else 'frozen parameter'} {_shared_kind(parameter)}")
        for name, parameter in module.named_parameters()
    ]
    return parameters + [(name, f"buffer {_kind(buffer)}") for name, buffer in module.named_buffers()]


def _shared_kind(parameter: Tensor) -> str:
    # Of what is sharded every rank holds a part of its own size.
    if not is_sharded(parameter):
        return _kind(parameter)
    return f"sharded, {parameter.dim()} dimensions {str(parameter.dtype).removeprefix('torch.')}"


def _kind(tensor: Tensor) -> str:
    if nn.parameter.is_lazy(tensor):
        return "without a shape yet"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _message(first: list[Line], second: list[Line], ranks: list[int]) -> str:
    one, other = next(pair for pair in zip_longest(first, second) if pair[0] != pair[1])
    # A layer that one rank lacks moves up all that follow: its own name is the news, not its place.
    is_new = one is None or (other is not None and other[0] not in dict(first))
    name = (other if is_new else one)[0]
    has = [dict(lines).get(name, "nothing of that name") for lines in (first, second)]
    if has[0] == has[1]:  # the same lines in another order
        has = [f"{line[0]} in its place" for line in (one, other)]
    return (
        f"{name}: rank {ranks[0]} has {has[0]}, rank {ranks[1]} has {has[1]}; "
        f"build the same model on every rank, in the same dtype"
    )
