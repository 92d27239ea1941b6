"""Count what a rank sends and receives: messages and bytes, per operation and per peer (lesson 02).

``with traffic() as t:`` counts every operation of ``torch.distributed`` at the level of the dispatcher, below
the Python functions. So it also sees what torch calls from C++: the bucket all-reduces of DDP's backward, the
gathers of FSDP2, the functional collectives of DTensor. A wrapper around ``dist.all_reduce`` sees none of
these.

- Point-to-point messages (by-hand algorithms) are counted as sent: ``messages``, ``bytes``, ``by_peer``,
  ``log``.
- A collective counts as one call; its bytes are those that a rank sends by formula
  (:mod:`dtlab.collectives.wire_formulas`), because its messages are made inside the library.
- It sees the thread that entered it, and the autograd threads that this thread's backward uses. It does not
  see threads of your own: enter it there.
- Inside it every torch operation makes a detour through Python: count there, measure time elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dtlab.collectives.wire_formulas import wire_bytes

__all__ = ["Collective", "Message", "Peer", "Tally", "Traffic", "traffic"]

# What the dispatcher calls an operation -> what people call it.
_COLLECTIVES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
}
_SENDS = {"send", "isend"}
_RECEIVES = {"recv_", "irecv", "recv_any_source_"}
_INPUTS = ("inputs", "input_tensors", "input_list", "input_tensor", "input", "tensors", "tensor")


@dataclass
class Tally:
    """How often, and how many bytes this rank sent for it."""

    calls: int = 0
    bytes: int = 0


@dataclass
class Peer:
    """Point-to-point traffic with one other rank."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class Message:
    """One point-to-point message, as its sender or its receiver saw it.

    ``step`` counts this rank's sends, or its receives, from 0. ``chunk`` is the message's tag: the by-hand
    ring tags a message with the number of its chunk. ``offset`` is where the data begins in its storage, in
    bytes.
    """

    step: int
    src: int
    dst: int
    bytes: int
    chunk: int
    offset: int = 0


@dataclass(frozen=True)
class Collective:
    """One collective call: ``payload`` bytes given to it, ``bytes`` sent by this rank by formula."""

    op: str
    payload: int
    bytes: int
    size: int


class _Tallies(dict[str, Tally]):
    """A dict in which what never happened reads as zero."""

    def __missing__(self, op: str) -> Tally:
        return Tally()


class _Peers(dict[int, Peer]):
    def __missing__(self, rank: int) -> Peer:
        return Peer()


@dataclass
class Traffic:
    """What one rank sent and received. Can be sent between processes."""

    rank: int = 0
    by_op: dict[str, Tally] = field(default_factory=_Tallies)
    """"send", "recv", "all_reduce", ... -> :class:`Tally`; an operation that never ran reads as zero."""
    by_peer: dict[int, Peer] = field(default_factory=_Peers)
    """global rank of the peer -> :class:`Peer`, point-to-point only; -1 is "from any rank"."""
    log: list[Message] = field(default_factory=list)
    """Messages sent, in order."""
    received_log: list[Message] = field(default_factory=list)
    """Messages received, in order of posting."""
    collective_log: list[Collective] = field(default_factory=list)
    """Collective calls, in order."""
    order: str = ""
    """The point-to-point calls in order: ``s`` for each send, ``r`` for each receive."""

    @property
    def messages(self) -> int:
        """Point-to-point messages sent."""
        return len(self.log)

    @property
    def received_messages(self) -> int:
        """Point-to-point messages received."""
        return len(self.received_log)

    @property
    def collectives(self) -> int:
        """Collective calls, barriers included."""
        return len(self.collective_log)

    @property
    def bytes(self) -> int:
        """Bytes sent: those of the messages, and those of the collectives by formula."""
        return sum(message.bytes for message in self.log) + sum(call.bytes for call in self.collective_log)

    @property
    def received_bytes(self) -> int:
        """Bytes of the point-to-point messages received."""
        return sum(message.bytes for message in self.received_log)

    @property
    def moved_bytes(self) -> int:
        """Bytes of point-to-point messages that passed this rank's link, in both directions."""
        return sum(message.bytes for message in self.log) + self.received_bytes

    def _count(self, op: str, sent: int) -> None:
        tally = self.by_op.setdefault(op, Tally())
        tally.calls += 1
        tally.bytes += sent

    def add_send(self, dst: int, tensors: Sequence[Tensor], tag: int) -> None:
        size, offset = _payload(tensors), _offset(tensors)
        self.log.append(Message(len(self.log), self.rank, dst, size, tag, offset))
        self.order += "s"
        peer = self.by_peer.setdefault(dst, Peer())
        peer.sent_messages += 1
        peer.sent_bytes += size
        self._count("send", size)

    def add_receive(self, src: int, tensors: Sequence[Tensor], tag: int) -> None:
        size, offset = _payload(tensors), _offset(tensors)
        self.received_log.append(Message(len(self.received_log), src, self.rank, size, tag, offset))
        self.order += "r"
        peer = self.by_peer.setdefault(src, Peer())
        peer.received_messages += 1
        peer.received_bytes += size
        self._count("recv", 0)

    def add_collective(self, call: Collective) -> None:
        self.collective_log.append(call)
        self._count(call.op, call.bytes)


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the traffic of this rank inside the ``with`` block.

    >>> with traffic() as t:  # doctest: +SKIP
    ...     ring_all_reduce(torch.ones(1000))  # 4 ranks
    >>> t.messages, t.bytes, t.by_peer[1].sent_bytes  # doctest: +SKIP
    (6, 6000, 6000)
    """
    counted = Traffic(rank=dist.get_rank() if dist.is_initialized() else 0)
    with _Counting(counted):
        yield counted


class _Dispatch:
    # Beside the mode and not in it: torch wraps a mode's own __torch_dispatch__ so that its first call
    # imports torch._dynamo, which takes seconds in every rank.
    counted: Traffic

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("c10d", "_c10d_functional"):
            names = (argument.name for argument in func._schema.arguments)
            _count(self.counted, func.__name__.split(".")[0], dict(zip(names, args, strict=False)) | kwargs)
        return func(*args, **kwargs)


class _Counting(_Dispatch, TorchDispatchMode):
    def __init__(self, counted: Traffic) -> None:
        super().__init__()
        self.counted = counted


def _count(counted: Traffic, name: str, given: Mapping[str, Any]) -> None:
    if name in _SENDS:
        tensors = _tensors(given.get("tensors", given.get("tensor")))
        counted.add_send(_global_rank(_group(given), given["dst"]), tensors, given["tag"])
    elif name in _RECEIVES:
        tensors = _tensors(given.get("tensors", given.get("tensor")))
        src = given.get("src")
        counted.add_receive(
            -1 if src is None else _global_rank(_group(given), src), tensors, given.get("tag", 0)
        )
    elif name == "batch_p2p_ops":
        for kind, peer, tag, tensor in zip(
            given["op_list"], given["peer_list"], given["tag_list"], given["tensors"], strict=True
        ):
            add = counted.add_send if "send" in kind else counted.add_receive
            add(_global_rank(_group(given), peer), [tensor], tag)
    elif name in _COLLECTIVES:
        counted.add_collective(_collective(_COLLECTIVES[name], given))


def _collective(op: str, given: Mapping[str, Any]) -> Collective:
    group = _group(given)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if op == "barrier":
        return Collective(op, 0, 0, size)
    tensors = _tensors(next(given[name] for name in _INPUTS if given.get(name) is not None))
    payload = _payload(tensors)
    if op == "all_reduce" and any(tensor.is_sparse for tensor in tensors):
        op = "sparse_all_reduce"
    own_part = None
    if op == "all_to_all":
        splits = list(given.get("input_split_sizes") or [])
        if splits:
            own_part = splits[rank] * (tensors[0].nbytes // max(tensors[0].shape[0], 1))
        elif len(tensors) == size:
            own_part = tensors[rank].nbytes
    is_root = given.get("root_rank", -1) == rank
    return Collective(op, payload, wire_bytes(op, payload, size, is_root=is_root, own_part=own_part), size)


def _group(given: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """The group of a call; None (the default group) where this torch cannot tell."""
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, dist.ProcessGroup):
        return group
    try:
        if isinstance(group, str):
            from torch.distributed.distributed_c10d import _resolve_process_group

            return _resolve_process_group(group)  # type: ignore[arg-type]
        return dist.ProcessGroup.unbox(group)
    except (AttributeError, ImportError):
        return None


def _global_rank(group: dist.ProcessGroup | None, group_rank: int) -> int:
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def _tensors(value: Any) -> list[Tensor]:
    """A tensor, a list of tensors or a list of lists of tensors as one flat list."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value or () for tensor in _tensors(item)]


def _payload(tensors: Sequence[Tensor]) -> int:
    return sum(_num_bytes(tensor) for tensor in tensors)


def _num_bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:  # before coalescing: what this rank really holds
        return tensor._indices().nbytes + tensor._values().nbytes
    return int(tensor.numel() * tensor.element_size())


def _offset(tensors: Sequence[Tensor]) -> int:
    if not tensors or tensors[0].layout != torch.strided:
        return 0
    return int(tensors[0].storage_offset() * tensors[0].element_size())
