"""What travels between ranks, and its first message: who brings what (lesson 12).

Every helper of ``agreement.py`` begins with one small all-gather of headers. So each rank sees what all of
them bring, and when that does not fit together all raise the same error, which names ranks and shapes.
Without it gloo ends the process, or adds up what does not belong together. Numbers and flags fit into the
header; a larger payload follows in a second message, whose size all know by then.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks.groups import rank, wire_device

__all__ = ["Header", "collect", "compare", "pack", "unpack"]

_FIELDS = 6  # before the body: call, argument, kind, dtype, dimensions, bytes
BODY = 14
_LENGTH = _FIELDS + BODY
_MOST_DIMS = BODY - 1  # a mean's weight stands behind the shape
_MOST_TEXT = 160  # bytes with which a rank says what it brings
NOTHING, TENSOR, OBJECT, NUMBER, DICT, FLAGS = range(6)
CALLS = ("mean", "gather", "broadcast", "all_agree")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


@dataclass(frozen=True)
class Header:
    """What one rank brings to one call; ``body`` is a tensor's shape, or numbers and flags themselves."""

    kind: int = NOTHING
    dtype: int = 0
    dims: int = 0
    bytes: int = 0
    body: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.body[: self.dims]


def compare(
    call: str,
    own: Header,
    text: Callable[[], str],
    *,
    argument: int = 0,
    same: Sequence[int] = (),
    group: dist.ProcessGroup | None = None,
) -> list[Header]:
    """The headers of all ranks, in rank order (collective).

    Args:
        call: which helper this is.
        own: what this rank brings.
        text: what this rank brings, in words, for the error.
        argument: must be equal on every rank (the destination of a gather ...).
        same: numbers of the first fields that must be equal too.
        group: who takes part.

    Raises:
        UserError: on every rank, when they do not make the same call with the same things.
    """
    device, size = wire_device(group), dist.get_world_size(group)
    numbers = [CALLS.index(call), argument, own.kind, own.dtype, own.dims, own.bytes, *own.body]
    numbers += [0] * (_LENGTH - len(numbers))
    flat = torch.empty(size * _LENGTH, dtype=torch.int64, device=device)
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_gather(list(flat.chunk(size)), mine, group=group)
    rows = flat.view(size, _LENGTH).tolist()
    places = (0, 1, *same)
    first = [rows[0][place] for place in places]
    if any([row[place] for place in places] != first for row in rows[1:]):
        raise UserError(_told(f"{call} of {text()}", group))
    return [Header(row[2], row[3], row[4], row[5], tuple(row[_FIELDS:])) for row in rows]


def _told(own: str, group: dist.ProcessGroup | None) -> str:
    """What every rank brings, in one line; all ranks know by now that they must say it."""
    device, size = wire_device(group), dist.get_world_size(group)
    written = own.encode()[:_MOST_TEXT].ljust(_MOST_TEXT)
    flat = torch.empty(size * _MOST_TEXT, dtype=torch.uint8, device=device)
    mine = torch.frombuffer(bytearray(written), dtype=torch.uint8).to(device)
    dist.all_gather(list(flat.chunk(size)), mine, group=group)
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    said: dict[str, list[int]] = {}
    for number, line in zip(ranks, flat.view(size, _MOST_TEXT).cpu(), strict=True):
        said.setdefault(bytes(line.tolist()).decode(errors="replace").rstrip(), []).append(number)
    told = "; ".join(f"rank {_listed(who)}: {what}" for what, who in said.items())
    return (
        f"the ranks bring different things to one call ({told}). Fix: make the same calls in the same order, "
        "with the same shape and type, on every rank"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def pack(x: Any, device: torch.device) -> tuple[Header, Tensor]:
    """A value's header and its bytes.

    Raises:
        UserError: a tensor that cannot be sent.
    """
    if isinstance(x, Tensor):
        header = tensor_header(x)
        data = x.detach().contiguous().flatten().view(torch.uint8).to(device)
        return header, data
    data = torch.frombuffer(bytearray(pickle.dumps(x)), dtype=torch.uint8).to(device)
    return Header(OBJECT, bytes=data.numel()), data


def tensor_header(x: Tensor) -> Header:
    """The header of a tensor."""
    if x.dtype not in DTYPES or x.dim() > _MOST_DIMS:
        raise UserError(f"a tensor of {x.dtype} with {x.dim()} dimensions cannot be sent: convert it first")
    return Header(TENSOR, DTYPES.index(x.dtype), x.dim(), x.numel() * x.element_size(), tuple(x.shape))


def unpack(header: Header, data: Tensor, device: torch.device) -> Any:
    """The value whose header and bytes these are."""
    if header.kind == OBJECT:
        return pickle.loads(data.cpu().numpy().tobytes())  # from a peer of this run, never from a file
    return data.clone().view(DTYPES[header.dtype]).reshape(header.shape).to(device)


def collect(
    headers: Sequence[Header],
    data: Tensor,
    dst: int | None,
    group: dist.ProcessGroup | None,
    home: torch.device,
) -> list[Any] | None:
    """The values that follow these headers, on ``dst`` (None: everywhere); this rank's is ``data``."""
    size, device = len(headers), wire_device(group)
    most = max(header.bytes for header in headers)
    padded = torch.zeros(most, dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    parts = [torch.empty(0, dtype=torch.uint8)] * size
    receives = dst is None or dst == rank(group)
    if most > 0:
        if receives:
            parts = list(torch.empty(size * most, dtype=torch.uint8, device=device).chunk(size))
        if dst is None:
            dist.all_gather(parts, padded, group=group)
        else:
            dist.gather(padded, parts if receives else None, group=group, group_dst=dst)
    if not receives:
        return None
    return [unpack(h, part[: h.bytes], home) for h, part in zip(headers, parts, strict=True)]


def described(x: Any) -> str:
    """``float32 [3, 4]`` for a tensor, the type's name for anything else."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    return type(x).__name__


def bits_of(value: float) -> int:
    """A float's 64 bits as a whole number, so that it can travel in a header."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def float_of(bits: int) -> float:
    """The reverse of :func:`bits_of`."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
