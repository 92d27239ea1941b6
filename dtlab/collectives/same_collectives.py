"""Do all ranks make the same collective calls? Asked before each of them (lesson 12).

Ranks that call ``all_reduce`` with another dtype, another operation or beside a ``broadcast`` do not always
hang: two calls of one size pair up, and every rank goes on with a wrong number. Inside
``with same_collectives():`` the ranks compare what they are about to call, in one small message more for each
call, and all of them raise where they differ. For finding a fault, not for a run: it also takes the detour of
:mod:`dtlab.collectives.traffic_counter`, and sees what that sees.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from dtlab.collectives.traffic_counter import _COLLECTIVES, _INPUTS, _group, _tensors
from dtlab.errors import UserError
from dtlab.ranks import agreement

__all__ = ["same_collectives"]

_REDUCTIONS = {int(getattr(dist.ReduceOp, name)): name for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")}
# Ranks may bring unlike sizes to these: the root's tensors are the others' results.
_ANY_SIZE = ("scatter", "gather", "all_to_all", "barrier")


@contextmanager
def same_collectives() -> Iterator[None]:
    """Compare the ranks' collective calls inside the block: operation, dtype, sizes, reduction and root.

    Every rank of a group enters it before its next collective. Point-to-point messages are not compared.

    Raises:
        UserError: on every rank of the group, with what each one calls and where.

    >>> with same_collectives():  # doctest: +SKIP
    ...     dist.all_reduce(x, op=dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)
    UserError: the ranks differ in collective 1: rank 0 calls all_reduce(SUM, float32 [4]) at line 7: ...
    """
    with _Comparing():
        yield


class _Dispatch:
    # Beside the mode and not in it: see traffic_counter.
    calls: dict[int, int]
    """Calls so far by the identity of their group: a rank outside of a group makes none there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        if func.namespace in ("c10d", "_c10d_functional") and name in _COLLECTIVES:
            names = (argument.name for argument in func._schema.arguments)
            given = dict(zip(names, args, strict=False)) | kwargs
            group = _group(given)
            number = self.calls[id(group)] = self.calls.get(id(group), 0) + 1
            _compare(number, _described(_COLLECTIVES[name], given), group)
        return func(*args, **kwargs)


class _Comparing(_Dispatch, TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = {}


def _compare(number: int, what: str, group: dist.ProcessGroup | None) -> None:
    size = agreement.world_size(group)
    if size == 1:
        return
    device = agreement.wire_device(group)
    mine = torch.tensor([number, zlib.crc32(what.encode())], dtype=torch.int64, device=device)
    everybody = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everybody, mine, group=group)
    if all(torch.equal(other, mine) for other in everybody):
        return
    texts: list[Any] = [None] * size
    dist.all_gather_object(texts, f"{what}{_where()}", group=group)
    ranks = range(size) if group is None else dist.get_process_group_ranks(group)
    calls = "; ".join(f"rank {rank} calls {text}" for rank, text in zip(ranks, texts, strict=True))
    raise UserError(f"the ranks differ in collective {number}: {calls}; every rank must make the same call")


def _described(op: str, given: Mapping[str, Any]) -> str:
    """``all_reduce(SUM, float32 [4])``: everything that must be equal."""
    parts = []
    if given.get("reduce_op") is not None:
        parts.append(_reduction(given["reduce_op"]))
    if given.get("root_rank") is not None:
        parts.append(f"root {given['root_rank']}")
    if op not in _ANY_SIZE:
        tensors = _tensors(next((given[name] for name in _INPUTS if given.get(name) is not None), None))
        parts += [f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors]
    return f"{op}({', '.join(parts)})"


def _reduction(op: Any) -> str:
    """SUM, MAX, ... of the dispatcher's object; functional collectives name it in a text."""
    if isinstance(op, str):
        return op.upper()
    try:
        number = int(op.op())
        return _REDUCTIONS.get(number, f"reduction {number}")
    except (AttributeError, TypeError, RuntimeError):  # a torch that cannot tell
        return "a reduction"


def _where() -> str:
    """`` at line 7 of train.py``: the innermost line that is not torch's or dtlab's."""
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*libraries, here + os.sep, "<frozen")):
            return f" at line {frame.lineno} of {os.path.basename(frame.filename)}"
    return ""
