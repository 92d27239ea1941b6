"""Values that ranks share: mean, gather, broadcast, barrier, common decisions (lessons 04, 12).

Every function works with the current process group, also one made by plain torch, and without any: then there
is one rank and nothing is sent. A rank must never branch around a collective on what only it knows;
``all_agree`` turns a local fact into a common one.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError

T = TypeVar("T")

# A payload's header, so that every rank knows what the others hold: kind, dtype, dimensions, shape, bytes.
_HEADER = 16
_MAX_DIMS = _HEADER - 4
_TENSOR, _OBJECT = 0, 1
_DTYPES = (
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
# all_agree sends a multiple of this many numbers, so that ranks with different flags still meet and can say
# so.
_PAD = 16


def has_group() -> bool:
    """Whether a process group exists."""
    return dist.is_available() and dist.is_initialized()


def rank(group: dist.ProcessGroup | None = None) -> int:
    """This process's rank; 0 without a group."""
    return dist.get_rank(group) if has_group() else 0


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of ranks; 1 without a group."""
    return dist.get_world_size(group) if has_group() else 1


def wire_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Where small messages must live: the CPU if the group has a CPU backend, else the current CUDA card."""
    if has_group():
        backends = dist.get_backend_config(group)
        if "cpu:" not in backends and "nccl" in backends:
            return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Wait until every rank is here.

    Example:
        >>> barrier()
    """
    if world_size(group) == 1:
        return
    device = wire_device(group)
    if device.type == "cuda":
        dist.barrier(group, device_ids=[device.index])
    else:
        dist.barrier(group)


def mean(x: Any, weight: float | None = None, group: dist.ProcessGroup | None = None) -> Any:
    """The mean over ranks, known to all of them.

    Args:
        x: a number, a tensor (same shape on every rank), or a dict of numbers.
        weight: how much this rank counts, usually its number of samples. All ranks give one or none does.
            A rank of weight 0 has no say; its value may be NaN.
        group: process group; default: the current one.

    Returns:
        float, tensor (floating, on x's device) or dict of floats. A key that only some ranks give is averaged
        over these. NaN where all weights are 0.

    Raises:
        UserError: a negative or non-finite weight, or something that is no number.

    Example:
        >>> mean(0.5), mean({"loss": 2.0}, weight=10)
        (0.5, {'loss': 2.0})
    """
    if weight is not None and not 0 <= float(weight) < float("inf"):
        raise UserError(
            f"weight={weight} must be a finite number that is not negative: give the sample count"
        )
    share = 1.0 if weight is None else float(weight)
    if isinstance(x, Mapping):
        return _mean_dict(x, share, group)
    if isinstance(x, Tensor):
        return _mean_tensor(x, share, group)
    try:
        value = float(x)
    except (TypeError, ValueError):
        raise UserError(
            f"mean takes a number, a tensor or a dict of numbers, not {type(x).__name__}"
        ) from None
    both = torch.tensor([value * share if share else 0.0, share], dtype=torch.float64)
    if world_size(group) > 1:
        both = both.to(wire_device(group))
        dist.all_reduce(both, group=group)
    total, weights = both.tolist()
    return total / weights if weights else float("nan")


def _mean_tensor(x: Tensor, share: float, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach()
    dtype = x.dtype if x.is_floating_point() or x.is_complex() else torch.float32
    # Sums of half-precision values lose digits, and a sample count above 2048 does not fit them.
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    value = x.to(wide) * share if share else torch.zeros_like(x, dtype=wide)
    # The weight travels behind the values: one message instead of two.
    both = torch.cat([value.flatten(), torch.tensor([share], dtype=wide, device=x.device)])
    if world_size(group) > 1:
        wire = both if _can_send(both, group) else both.to(wire_device(group))
        dist.all_reduce(wire, group=group)
        both = wire.to(x.device)
    return (both[:-1] / both[-1]).reshape(x.shape).to(dtype)


def _can_send(x: Tensor, group: dist.ProcessGroup | None) -> bool:
    backends = dist.get_backend_config(group)
    return f"{x.device.type}:" in backends or (x.device.type == "cuda" and "nccl" in backends)


def _mean_dict(x: Mapping[Any, Any], share: float, group: dist.ProcessGroup | None) -> dict[Any, float]:
    try:
        own = {key: float(value) for key, value in x.items()}
    except (TypeError, ValueError):
        bad = next(key for key, value in x.items() if not _is_number(value))
        raise UserError(f"mean of a dict takes numbers: {bad!r} is {type(x[bad]).__name__}") from None
    totals: dict[Any, float] = {}
    weights: dict[Any, float] = {}
    # Ranks may give different keys, so they cannot add up blindly: position 3 of one is not position 3 of
    # another.
    for values, their_share in gather((own, share), dst=None, group=group) or ():
        for key, value in values.items():
            totals[key] = totals.get(key, 0.0) + (value * their_share if their_share else 0.0)
            weights[key] = weights.get(key, 0.0) + their_share
    return {key: totals[key] / weights[key] if weights[key] else float("nan") for key in totals}


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def all_agree(flag: Any, rule: str = "all", group: dist.ProcessGroup | None = None) -> Any:
    """Turn local yes/no answers into one answer that is the same on every rank: one tiny all-reduce.

    Args:
        flag: a bool, or a list or dict of bools (same length or keys on every rank).
        rule: ``"all"``: yes when every rank says yes; ``"any"``: yes when at least one does.
        group: process group; default: the current one.

    Returns:
        A bool, list or dict of bools, like ``flag``.

    Raises:
        UserError: unknown rule; ranks that ask about different things (on every rank).

    Example:
        >>> all_agree(True), all_agree({"stop": False, "save": True}, rule="any")
        (True, {'stop': False, 'save': True})
    """
    if rule not in ("all", "any"):
        raise UserError(f"rule={rule!r} is not known: use 'all' or 'any'")
    if isinstance(flag, Mapping):
        keys = sorted(flag, key=str)
        values = [bool(flag[key]) for key in keys]
        what = f"{rule}/dict/{keys}"
    elif isinstance(flag, Sequence) and not isinstance(flag, str | bytes):
        values = [bool(value) for value in flag]
        what = f"{rule}/list/{len(values)}"
    else:
        values = [bool(flag)]
        what = f"{rule}/bool"
    if world_size(group) > 1:
        values = _agree(values, what, rule, group)
    if isinstance(flag, Mapping):
        answers = dict(zip(keys, values, strict=True))
        return {key: answers[key] for key in flag}
    return values if isinstance(flag, Sequence) else values[0]


def _agree(values: list[bool], what: str, rule: str, group: dist.ProcessGroup | None) -> list[bool]:
    question = zlib.crc32(what.encode())
    # The minimum of yes is "all", the minimum of no is the opposite of "any".
    numbers = [question, -question, *(value if rule == "all" else not value for value in values)]
    numbers += [0] * (-len(numbers) % _PAD)
    wire = torch.tensor(numbers, dtype=torch.int64, device=wire_device(group))
    dist.all_reduce(wire, op=dist.ReduceOp.MIN, group=group)
    lowest, highest, *answers = wire.tolist()
    if lowest != -highest:
        asked = what.split("/", 1)[1]
        raise UserError(
            f"all_agree: the ranks ask about different things; rank {rank(group)} asks {asked} with rule "
            f"{rule!r}. Give the same flags in the same call on every rank"
        )
    return [bool(answer) if rule == "all" else not answer for answer in answers[: len(values)]]


def gather(x: Any, dst: int | None = 0, group: dist.ProcessGroup | None = None) -> list[Any] | None:
    """Collect one value from every rank, in rank order.

    Args:
        x: a tensor of any shape (the length may differ between ranks and may be 0), or a picklable object.
        dst: rank that gets the list; None gives it to every rank.
        group: process group; default: the current one. ``dst`` counts inside it.

    Returns:
        The list on ``dst`` (tensors on the device of its own ``x``, else on the CPU), None elsewhere.

    Raises:
        UserError: dst is not a rank.

    Example:
        >>> gather(torch.arange(3))
        [tensor([0, 1, 2])]
    """
    size = world_size(group)
    if dst is not None and not 0 <= dst < size:
        raise UserError(f"dst={dst} is not a rank: there are ranks 0 to {size - 1}")
    if size == 1:
        return [x.detach() if isinstance(x, Tensor) else x]
    wire = wire_device(group)
    header, payload = _pack(x, wire)
    headers = list(torch.empty(size * _HEADER, dtype=torch.int64, device=wire).chunk(size))
    dist.all_gather(headers, header, group=group)
    sizes = [int(h[3]) for h in headers]
    most = max(sizes)
    padded = torch.zeros(most, dtype=torch.uint8, device=wire)
    padded[: payload.numel()] = payload
    parts = [torch.empty(0, dtype=torch.uint8)] * size
    receives = dst is None or dst == rank(group)
    if most > 0:
        if receives:
            parts = list(torch.empty(size * most, dtype=torch.uint8, device=wire).chunk(size))
        if dst is None:
            dist.all_gather(parts, padded, group=group)
        else:
            dist.gather(padded, parts if receives else None, group=group, group_dst=dst)
    if not receives:
        return None
    home = x.device if isinstance(x, Tensor) else torch.device("cpu")
    return [_unpack(h, part[:n], home) for h, part, n in zip(headers, parts, sizes, strict=True)]


def broadcast(x: T, src: int = 0, group: dist.ProcessGroup | None = None) -> T:
    """The value of rank ``src``, on every rank.

    Args:
        x: a tensor or a picklable object; on the other ranks its value does not matter (a tensor there says
            only on which device the result shall be).
        src: rank whose value counts (inside ``group``).
        group: process group; default: the current one.

    Returns:
        ``x`` itself on ``src``, a new value elsewhere.

    Example:
        >>> broadcast({"lr": 0.1})
        {'lr': 0.1}
    """
    size = world_size(group)
    if not 0 <= src < size:
        raise UserError(f"src={src} is not a rank: there are ranks 0 to {size - 1}")
    if size == 1:
        return x
    wire = wire_device(group)
    sends = rank(group) == src
    header, payload = _pack(x if sends else None, wire)
    dist.broadcast(header, group=group, group_src=src)
    length = int(header[3])
    if not sends:
        payload = torch.empty(length, dtype=torch.uint8, device=wire)
    if length > 0:
        dist.broadcast(payload, group=group, group_src=src)
    if sends:
        return x
    home = x.device if isinstance(x, Tensor) else torch.device("cpu")
    result: T = _unpack(header, payload, home)
    return result


def _pack(x: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """A fixed-size header and the value's bytes."""
    if isinstance(x, Tensor):
        if x.dtype not in _DTYPES or x.dim() > _MAX_DIMS:
            raise UserError(
                f"a tensor of {x.dtype} with {x.dim()} dimensions cannot be sent: convert it first"
            )
        data = x.detach().contiguous().flatten().view(torch.uint8).to(device)
        head = [_TENSOR, _DTYPES.index(x.dtype), x.dim(), data.numel(), *x.shape]
    else:
        data = torch.frombuffer(bytearray(pickle.dumps(x)), dtype=torch.uint8).to(device)
        head = [_OBJECT, 0, 0, data.numel()]
    head += [0] * (_HEADER - len(head))
    return torch.tensor(head, dtype=torch.int64, device=device), data


def _unpack(header: Tensor, data: Tensor, device: torch.device) -> Any:
    kind, dtype, dims, _, *shape = header.tolist()
    if kind == _OBJECT:
        return pickle.loads(data.cpu().numpy().tobytes())  # from a peer of this run, never from a file
    return data.clone().view(_DTYPES[dtype]).reshape(shape[:dims]).to(device)
