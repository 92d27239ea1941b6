"""Check of lesson 09's mesh: who talks to whom, bytes inside a copy and between copies, the mean gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe, difference
from dtlab.course.copies import copied_name
from dtlab.course.lessons.on_ranks import on_ranks, require_function

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.ranks.worlds import World

RANKS, NUMBERS = 4, 13
MESHES = ((2, 2), (1, 4), (4, 1))  # copies x shards
GRIDS = ((2, 2), (2, 4), (3, 2), (1, 3))
REFERENCES = (
    "dtlab.parallel.dims.ParallelDims",
    "dtlab.parallel.fsdp.fully_sharded",
    "torch.distributed.fsdp.fully_shard",
)


@exercise(
    "09-mesh",
    todo="reduce-scatter among the shards of a copy, then all-reduce the part among the copies",
    hints=(
        "copy, shard = divmod(rank, shards). Among the ranks of its copy a rank gives a whole gradient and "
        "needs a part: a reduce-scatter. What the copies have of the same part is then small: an all-reduce.",
        "peers: [copy * shards + s for s in range(shards)] and [c * shards + shard for c in range(copies)]. "
        "hybrid_reduce: pad to ranks * size; dist.reduce_scatter_tensor(part, padded, group=shard_group); "
        "dist.all_reduce(part, group=copy_group); divide by the ranks of both groups.",
    ),
    references=REFERENCES,
)
def mesh(checks: Checks, answer: Any, peers: Any) -> None:
    """Groups of four grids; messages and bytes on three meshes of 4 ranks; then the mean gradient."""
    require_function(peers)
    copied = copied_name(peers, REFERENCES)
    if copied:
        raise CheckFailed(f"peers is {copied} itself, or calls it. Write it out: divmod, and two lists.")
    _groups_right(checks, peers)
    results = on_ranks(RANKS, _measure, answer)
    worlds = {shape: [one[shape] for one in results] for shape in MESHES}
    for (copies, shards), ranks in worlds.items():
        name = f"{copies} cop{'y' if copies == 1 else 'ies'} x {shards} shard{'s' if shards > 1 else ''}"
        size = 8 * -(-NUMBERS // shards)
        inside, between = (shards - 1) * size, round(2 * (copies - 1) / copies * size)
        for rank, one in enumerate(ranks):
            if one["gave"] is not None:
                if one["gave"] == "None":
                    raise ToDo("hybrid_reduce gave None; is a return missing?")
                raise CheckFailed(f"{name}, rank {rank}: {one['gave']}")
            checks.integer(
                f"{name}: bytes that a rank sends inside its copy", one["reduce_scatter"], inside,
                look="one reduce-scatter of the whole gradient, padded, in shard_group",
            )  # fmt: skip
            checks.integer(
                f"{name}: bytes that a rank sends to other copies", one["all_reduce"], between,
                look="an all-reduce of the part, in copy_group. All-reducing the whole gradient first sends "
                "as many times more as there are shards",
            )  # fmt: skip
            checks.integer(f"{name}: bytes of other messages", one["other"], 0, look="two calls are enough")
    checks.passed[:] = list(dict.fromkeys(checks.passed))
    for (copies, shards), ranks in worlds.items():
        name = f"{copies} x {shards}"
        mean = sum(_gradient(rank) for rank in range(RANKS)) / RANKS
        for rank, one in enumerate(ranks):
            part = _part(mean, rank % shards, shards)  # type: ignore[arg-type]
            look = _look(one["part"], part, rank, copies, shards)
            checks.equal(f"{name}: the mean over 4 ranks, of its part", one["part"], part,
                         tolerance=1e-12, look=look)  # fmt: skip
    checks.passed[:] = list(dict.fromkeys(checks.passed))


def _groups_right(checks: Checks, peers: Any) -> None:
    total = 0
    for copies, shards in GRIDS:
        for rank in range(copies * shards):
            given = peers(rank, copies, shards)
            if given is None:
                raise ToDo("peers gave None; is a return missing?")
            if not isinstance(given, tuple | list) or len(given) != 2:
                raise CheckFailed(f"peers gave {describe(given)}: give two lists of ranks.")
            copy, shard = divmod(rank, shards)
            wanted = (
                [copy * shards + s for s in range(shards)],
                [c * shards + shard for c in range(copies)],
            )
            names = ("shards of its copy", "copies of its shard")
            for what, got, want in zip(names, given, wanted, strict=True):
                if list(got) != want:
                    raise CheckFailed(
                        f"peers, {copies} copies x {shards} shards, rank {rank}: {what} are "
                        f"{describe(list(got))}, expected {want}.\nWhere to look: ranks of one copy are "
                        "neighbours, so rank = copy * shards + shard."
                    )
                total += len(want)
    checks.integer(f"ranks named, over {len(GRIDS)} grids", total, total)


def _look(got: Tensor, part: Tensor, rank: int, copies: int, shards: int) -> str:
    for times, what in (
        (RANKS, "the sum over all ranks: divide by their number"),
        (copies, f"{copies} times too long: divide by the copies too"),
        (shards, f"{shards} times too long: divide by the shards too"),
    ):
        if times > 1 and difference(got, times * part, 1e-9) == "":
            return what
    copy = rank // shards
    own = sum(_gradient(one) for one in range(copy * shards, (copy + 1) * shards)) / shards
    if difference(got, _part(own, rank % shards, shards), 1e-9) == "":  # type: ignore[arg-type]
        return "the mean of this copy alone: the copies would drift apart from here on"
    return "part r of a copy is numbers r * size to (r + 1) * size; which group is which?"


def _gradient(rank: int) -> Tensor:
    import torch

    draw = torch.Generator().manual_seed(900 + rank)
    return torch.randn(NUMBERS, generator=draw, dtype=torch.float64)


def _part(flat: Tensor, shard: int, shards: int) -> Tensor:
    import torch

    size = -(-len(flat) // shards)
    padded = torch.cat([flat, flat.new_zeros(size * shards - len(flat))])
    return padded[shard * size : (shard + 1) * size]


def _measure(answer: Any) -> dict[tuple[int, int], dict[str, Any]]:
    """For each mesh, what this rank sends and what it gets."""
    from dtlab import world

    with world() as w:
        return {shape: _on_mesh(answer, shape, w) for shape in MESHES}


def _on_mesh(answer: Any, shape: tuple[int, int], w: World) -> dict[str, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from dtlab import traffic

    grid = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard"))
    size = -(-NUMBERS // shape[1])
    gradient = _gradient(w.rank)
    try:
        with traffic() as sent:
            part = answer(gradient, size, grid["shard"].get_group(), grid["copy"].get_group())
    except NotImplementedError:
        raise
    except RuntimeError:  # of sizes that do not go together
        return {
            "gave": "a message was refused.\nWhere to look: a reduce-scatter takes as many times `size` "
            "numbers as its group has ranks. Which group holds the shards?"
        }
    w.barrier()
    found: dict[str, Any] = {op: sent.by_op[op].bytes for op in ("reduce_scatter", "all_reduce")}
    found["other"] = sent.bytes - sum(found.values())
    found["gave"] = None
    if part is None:
        found["gave"] = "None"
    elif not isinstance(part, torch.Tensor) or part.shape != (size,):
        found["gave"] = f"hybrid_reduce gave {describe(part)}: give this rank's {size} numbers."
    elif difference(gradient, _gradient(w.rank)):
        found["gave"] = "the gradient that was given is not what it was: reduce a copy, it may be used on."
    return {**found, "part": part}
