"""All-reduce by hand over send and receive: ring, tree and parameter server (lesson 02).

Each function sums ``tensor`` over the ranks of ``group`` in place and returns it, on every rank, as
``torch.distributed.all_reduce`` does. They use ``isend`` and ``irecv`` and nothing else, so that every
message can be counted (:func:`dtlab.collectives.traffic`) and drawn. With N ranks and a tensor of S bytes:

===================  =======================  ==========================  =====================
algorithm            messages sent by a rank  bytes sent by a rank        steps one after another
===================  =======================  ==========================  =====================
ring                 2(N-1)                   2(N-1)/N x S                2(N-1)
tree                 root: log2 N, leaf: 1    root: log2 N x S, leaf: S   2 log2 N
parameter server     server: N-1, worker: 1   server: (N-1) x S           2(N-1)
===================  =======================  ==========================  =====================

The server also receives (N-1) x S bytes, so 2(N-1) x S bytes pass through its link.

- Any shape, also not contiguous; any size, also fewer elements than ranks or none.
- Every rank must call with the same shape and dtype. Without a process group it is a world of one.
- ``UserError`` for a sparse tensor and for a rank that is not in ``group``.

Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Tree: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
Parameter server: Li et al., "Scaling distributed machine learning with the parameter server", 2014.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError

__all__ = ["chunk_bounds", "parameter_server_all_reduce", "ring_all_reduce", "tree_all_reduce"]


def chunk_bounds(numel: int, num_chunks: int) -> list[tuple[int, int]]:
    """Start and end of each of ``num_chunks`` nearly equal chunks; the first ones take the remainder.

    >>> chunk_bounds(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    small, longer = divmod(numel, num_chunks)
    starts = [index * small + min(index, longer) for index in range(num_chunks + 1)]
    return list(pairwise(starts))


def ring_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum over the ring: N-1 steps reduce-scatter, then N-1 steps all-gather, one chunk a step.

    Rank r sends to r+1 and receives from r-1. In step s of the first half it sends chunk r-s and adds what
    arrives to chunk r-s-1; after it, rank r holds the whole sum of chunk r+1. The second half passes the
    finished chunks on. The tag of a message is the number of its chunk.

    >>> ring_all_reduce(torch.ones(3))  # a world of one: its own sum
    tensor([1., 1., 1.])
    """
    return _in_place(_ring, tensor, group)


def tree_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum up a binomial tree to rank 0 of the group, then send the sum down the same tree.

    In round d = 1, 2, 4, ... rank r sends to r-d when r is an odd multiple of d. Each message is the whole
    tensor, so a tree has few steps (it wins for small tensors) and many bytes at its root.

    >>> tree_all_reduce(torch.ones(3))
    tensor([1., 1., 1.])
    """
    return _in_place(_tree, tensor, group)


def parameter_server_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum on rank 0 of the group, the server, in rank order; the server then sends the sum to every worker.

    The order of the additions is that of a single process that adds rank 0, 1, 2, ..., so the result equals
    it bit for bit. Every byte passes the server's link: that is what stops it from scaling.

    >>> parameter_server_all_reduce(torch.ones(3))
    tensor([1., 1., 1.])
    """
    return _in_place(_parameter_server, tensor, group)


def _in_place(algorithm: Callable[..., None], tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Run ``algorithm`` on a flat view of ``tensor`` (on a flat copy when it is not contiguous)."""
    if tensor.layout != torch.strided:
        raise UserError(f"tensor: layout {tensor.layout} cannot be cut into messages; pass tensor.to_dense()")
    if not dist.is_initialized():
        return tensor
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise UserError(
            f"group: rank {dist.get_rank()} is not a member of it; only its members may call the collective"
        )
    if size == 1 or tensor.numel() == 0:
        return tensor
    data = tensor.detach()
    if data.is_contiguous():
        algorithm(data.view(-1), rank, size, group)
    else:
        flat = data.reshape(-1)
        algorithm(flat, rank, size, group)
        data.copy_(flat.view(data.shape))
    return tensor


def _ring(flat: Tensor, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
    chunks = [flat[start:end] for start, end in chunk_bounds(flat.numel(), size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    arrived = torch.empty_like(chunks[0])  # the first chunk is the longest

    def exchange(sent: int, received: int, buffer: Tensor) -> None:
        # Both are posted before either is waited for: if every rank sent first and then waited, and the
        # messages were too large to be buffered, the ring would stand still.
        sending = dist.isend(chunks[sent], group=group, group_dst=right, tag=sent)
        receiving = dist.irecv(buffer, group=group, group_src=left, tag=received)
        _wait(sending)
        _wait(receiving)

    for step in range(size - 1):
        sent, received = (rank - step) % size, (rank - step - 1) % size
        buffer = arrived[: chunks[received].numel()]
        exchange(sent, received, buffer)
        chunks[received] += buffer
    for step in range(size - 1):
        sent, received = (rank + 1 - step) % size, (rank - step) % size
        exchange(sent, received, chunks[received])


def _tree(flat: Tensor, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
    arrived = torch.empty_like(flat)
    distances = [1 << power for power in range((size - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            _wait(dist.isend(flat, group=group, group_dst=rank - distance))
        elif rank % (2 * distance) == 0 and rank + distance < size:
            _wait(dist.irecv(arrived, group=group, group_src=rank + distance))
            flat += arrived
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            _wait(dist.irecv(flat, group=group, group_src=rank - distance))
        elif rank % (2 * distance) == 0 and rank + distance < size:
            _wait(dist.isend(flat, group=group, group_dst=rank + distance))


def _parameter_server(flat: Tensor, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
    if rank != 0:
        _wait(dist.isend(flat, group=group, group_dst=0))
        _wait(dist.irecv(flat, group=group, group_src=0))
        return
    arrived = torch.empty_like(flat)
    for worker in range(1, size):
        _wait(dist.irecv(arrived, group=group, group_src=worker))
        flat += arrived
    for sending in [dist.isend(flat, group=group, group_dst=worker) for worker in range(1, size)]:
        _wait(sending)


def _wait(work: dist.Work | None) -> None:
    # isend and irecv return None on a rank outside the group, which _in_place has refused already.
    assert work is not None
    work.wait()
