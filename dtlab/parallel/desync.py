"""Which parameter differs between the replicas, and on which rank (lessons 03 and 12).

Data parallelism keeps replicas bit-equal. A rank that drifts (a defective card, a step that one rank skipped,
a weight changed on one rank) goes on training without an error; only a comparison finds it. The ranks
exchange one number per parameter: 16 bytes each, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.ddp import unwrap
from dtlab.ranks import agreement

__all__ = ["DesyncError", "check_replicas", "differing_parameters", "differing_tensors", "refuse_differing"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

_NOTHING = -(2**61)  # no sum of bits comes near


class DesyncError(RuntimeError):
    """The replicas are no longer one model."""


def differing_parameters(model: nn.Module, group: dist.ProcessGroup | None = None) -> dict[str, list[int]]:
    """Parameters and buffers that are not the same bits everywhere: name -> ranks that differ (collective).

    The ranks named are those that do not have what most ranks have; in a tie, what rank 0 has counts.

    >>> differing_parameters(nn.Linear(2, 1))  # a world of one agrees with itself
    {}
    """
    inner = unwrap(model)
    return differing_tensors([*inner.named_parameters(), *inner.named_buffers()], group)


@torch.no_grad()
def differing_tensors(
    named: Sequence[tuple[str, Tensor | None]], group: dist.ProcessGroup | None = None
) -> dict[str, list[int]]:
    """As :func:`differing_parameters`, for the same names on every rank; None differs from every tensor."""
    if agreement.world_size(group) == 1 or not named:
        return {}
    device = next((tensor.device for _, tensor in named if tensor is not None), None)
    sums = torch.stack([_bits(tensor, device) for _, tensor in named])
    wire = torch.cat([sums, -sums]).to(agreement.wire_device(group))
    dist.all_reduce(wire, op=dist.ReduceOp.MIN, group=group)
    lowest, highest = wire.chunk(2)
    places = (lowest != -highest).nonzero().flatten().tolist()
    if not places:
        return {}
    everybody = agreement.gather(sums.cpu(), dst=None, group=group) or []
    found = {}
    for place in places:
        values = [int(mine[place]) for mine in everybody]
        usual = max(dict.fromkeys(values), key=values.count)
        found[named[place][0]] = [rank for rank, value in enumerate(values) if value != usual]
    return found


def check_replicas(model: nn.Module, step: int, group: dist.ProcessGroup | None = None) -> None:
    """Compare the replicas after ``step`` (collective).

    Raises:
        DesyncError: on every rank, with the names of the parameters and the ranks that differ.
    """
    refuse_differing(differing_parameters(model, group), step)


def refuse_differing(found: Mapping[str, Sequence[int]], step: int) -> None:
    """``DesyncError`` when ``found`` names parameters, with the ranks that differ in each."""
    if not found:
        return
    name, ranks = next(iter(found.items()))
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    who = f"rank {', '.join(map(str, ranks))}"
    raise DesyncError(
        f"step {step}: the replicas differ in {name}{others}; {who} left the others. Go back to the last "
        "checkpoint, and look for what only that rank does (a changed weight, a skipped step, faulty memory)"
    )


def _bits(tensor: Tensor | None, device: torch.device | None = None) -> Tensor:
    """A sum over the tensor's bits: another one as soon as a single bit differs. Stays on the device."""
    if tensor is None:
        return torch.tensor(_NOTHING, device=device)
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return _bits(tensor.values()) + 31 * _bits(tensor.indices())
    plain = tensor.detach().contiguous().flatten()
    if plain.is_complex():
        plain = torch.view_as_real(plain).flatten()
    if plain.dtype == torch.bool:
        plain = plain.to(torch.uint8)
    return plain.view(_WORDS[plain.element_size()]).sum(dtype=torch.int64)
