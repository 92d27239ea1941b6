"""Values that ranks share: mean, gather, broadcast, barrier, common decisions (lessons 04, 12).

Every function works with the current process group, also one made by plain torch, and without any: then there
is one rank and nothing is sent. A rank must never branch around a collective on what only it knows;
``all_agree`` turns a local fact into a common one. When the ranks bring things that do not fit together, or
make different calls of these, every rank raises the same error with ranks and shapes (``wire.py``).
"""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks import wire
from dtlab.ranks.groups import has_group, rank, wire_device, world_size
from dtlab.ranks.means import mean
from dtlab.ranks.wire import Header

__all__ = [
    "all_agree",
    "barrier",
    "broadcast",
    "gather",
    "has_group",
    "mean",
    "rank",
    "wire_device",
    "world_size",
]

T = TypeVar("T")

_SIGN_FREE = 62  # flags in one number of a header
_MOST_FLAGS = (wire.BODY - 2) * _SIGN_FREE


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


def all_agree(flag: Any, rule: str = "all", group: dist.ProcessGroup | None = None) -> Any:
    """Turn local yes/no answers into one answer that is the same on every rank: one tiny message.

    Args:
        flag: a bool (also NumPy's, a tensor with one, or 0 and 1), or a list or dict of bools (same length or
            keys on every rank).
        rule: ``"all"``: yes when every rank says yes; ``"any"``: yes when at least one does.
        group: process group; default: the current one.

    Returns:
        A bool, list or dict of bools, like ``flag``.

    Raises:
        UserError: unknown rule; on every rank: ranks that ask about different things, or something that is
            no bool, such as the text "no", which counts as true elsewhere in Python.

    Example:
        >>> all_agree(True), all_agree({"stop": False, "save": True}, rule="any")
        (True, {'stop': False, 'save': True})
    """
    if rule not in ("all", "any"):
        raise UserError(f"rule={rule!r} is not known: use 'all' or 'any'")
    if isinstance(flag, Mapping):
        keys = sorted(flag, key=str)
        given = [flag[key] for key in keys]
        what = f"flags {keys}"
    elif isinstance(flag, Sequence) and not isinstance(flag, str | bytes):
        given = list(flag)
        what = f"a list of {len(given)} flags"
    else:
        given = [flag]
        what = "one flag"
    values = [_as_bool(value) for value in given]
    wrong = next((g for g, value in zip(given, values, strict=True) if value is None), None)
    is_wrong = None in values
    if is_wrong:
        what = f"a {type(wrong).__name__}, which is no bool"
    answers = [value is True for value in values]
    if world_size(group) > 1:  # also with something wrong: no rank may wait for one that stopped here
        answers = _agree(answers, f"{what}, rule {rule!r}", rule, group)
    if is_wrong:
        raise UserError(
            f"flag = {reprlib.repr(flag)}: {what}; give a bool, or a list or dict of bools, for example "
            "flag == 'yes'"
        )
    if isinstance(flag, Mapping):
        named = dict(zip(keys, answers, strict=True))
        return {key: named[key] for key in flag}
    return answers if isinstance(flag, Sequence) else answers[0]


def _as_bool(value: Any) -> bool | None:
    """A yes or no; None for what is neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return bool(value) if value in (0, 1) else None
    kind, count = str(getattr(value, "dtype", "")), getattr(value, "numel", lambda: getattr(value, "size", 0))
    return bool(value) if kind in ("bool", "torch.bool") and count() == 1 else None


def _agree(values: list[bool], what: str, rule: str, group: dist.ProcessGroup | None) -> list[bool]:
    inline = len(values) <= _MOST_FLAGS
    words = [_word(values[i : i + _SIGN_FREE]) for i in range(0, len(values), _SIGN_FREE)] if inline else []
    header = Header(wire.FLAGS, body=(zlib.crc32(what.encode()), *words))
    headers = wire.compare("all_agree", header, lambda: what, argument=len(values), same=(2, 6), group=group)
    together = all if rule == "all" else any
    if inline:
        places = [(1 + i // _SIGN_FREE, i % _SIGN_FREE) for i in range(len(values))]
        return [together(h.body[word] >> bit & 1 for h in headers) for word, bit in places]
    sent = torch.tensor(values, dtype=torch.uint8, device=wire_device(group))
    dist.all_reduce(sent, op=dist.ReduceOp.MIN if rule == "all" else dist.ReduceOp.MAX, group=group)
    return [bool(answer) for answer in sent.tolist()]


def _word(flags: Sequence[bool]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))


def gather(x: Any, dst: int | None = 0, group: dist.ProcessGroup | None = None) -> list[Any] | None:
    """Collect one value from every rank, in rank order.

    Args:
        x: a tensor of any shape (the length may differ between ranks and may be 0), or a picklable object.
        dst: rank that gets the list; None gives it to every rank.
        group: process group; default: the current one. ``dst`` counts inside it.

    Returns:
        The list on ``dst`` (tensors on the device of its own ``x``, else on the CPU), None elsewhere.

    Raises:
        UserError: dst is not a rank; on every rank: the ranks name different ones.

    Example:
        >>> gather(torch.arange(3))
        [tensor([0, 1, 2])]
    """
    size = world_size(group)
    if dst is not None and not 0 <= dst < size:
        raise UserError(f"dst={dst} is not a rank: there are ranks 0 to {size - 1}")
    if size == 1:
        return [x.detach() if isinstance(x, Tensor) else x]
    header, data = wire.pack(x, wire_device(group))
    headers = wire.compare(
        "gather",
        header,
        lambda: f"{wire.described(x)} to {'every rank' if dst is None else f'rank {dst}'}",
        argument=-1 if dst is None else dst,
        group=group,
    )
    home = x.device if isinstance(x, Tensor) else torch.device("cpu")
    return wire.collect(headers, data, dst, group, home)


def broadcast(x: T, src: int = 0, group: dist.ProcessGroup | None = None) -> T:
    """The value of rank ``src``, on every rank.

    Args:
        x: a tensor or a picklable object; on the other ranks its value does not matter (a tensor there says
            only on which device the result shall be).
        src: rank whose value counts (inside ``group``).
        group: process group; default: the current one.

    Returns:
        ``x`` itself on ``src``, a new value elsewhere.

    Raises:
        UserError: src is not a rank; on every rank: the ranks name different ones.

    Example:
        >>> broadcast({"lr": 0.1})
        {'lr': 0.1}
    """
    size = world_size(group)
    if not 0 <= src < size:
        raise UserError(f"src={src} is not a rank: there are ranks 0 to {size - 1}")
    if size == 1:
        return x
    device = wire_device(group)
    sends = rank(group) == src
    own, data = wire.pack(x, device) if sends else (Header(), torch.empty(0, dtype=torch.uint8))
    headers = wire.compare("broadcast", own, lambda: f"rank {src}'s value", argument=src, group=group)
    header = headers[src]
    if header.bytes > 0:
        data = data if sends else torch.empty(header.bytes, dtype=torch.uint8, device=device)
        dist.broadcast(data, group=group, group_src=src)
    if sends:
        return x
    home = x.device if isinstance(x, Tensor) else torch.device("cpu")
    result: T = wire.unpack(header, data, home)
    return result
