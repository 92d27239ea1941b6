"""Check of lesson 07's sharded table: rows placed without a gap, once each over the wire, and balanced."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function

RANKS, ROWS, DIM = 3, 11, 2
# Uneven numbers of ids, ids that come twice on a rank and on two ranks, a rank without any, none at all. With
# row i on rank i % 3, rank 0's first batch is sorted by an order that is not its own inverse.
BATCHES: dict[str, list[list[int]]] = {
    "uneven ids": [[7, 2, 7, 3, 1, 10], [10, 1, 2], [9, 3, 5, 9]],
    "a rank without ids": [[8, 8, 8], [], [6, 8, 2, 6, 0]],
    "no ids at all": [[], [], []],
}
_UNTOLD = ("8 rows", "5 rows")  # the same counts for other sizes; told when they are wrong
SKEW_RANKS, SKEW_ROWS, SKEW_IDS, BALANCED = 4, 10_000, 2_000, 1.2


@exercise(
    "07-lookup",
    todo="place rows so that hot neighbours part; ask each owner once for each row, and put vectors back",
    hints=(
        "place: which rank gets row i if neighbours must part, and how many of its rows come before? lookup: "
        "unique(return_inverse=True) gives what to ask and where it goes; messages must be sorted by owner.",
        "place: rows % ranks, rows // ranks. lookup: wanted, position = ids.unique(return_inverse=True); "
        "owners, slots = place(wanted, ...); order = owners.argsort(stable=True); asked = "
        "torch.bincount(owners, minlength=ranks); served = gather_counts(asked, None); then all_to_all("
        "slots[order], asked.tolist(), served, None), exchange(part[...], served, asked.tolist(), None), and "
        "vectors[order.argsort()][position].",
    ),
    references=("dtlab.parallel.embedding_rows.RowWise", "dtlab.parallel.shard_embeddings"),
)
def lookup(checks: Checks, answer: Any, place: Any) -> None:
    """Rows, slots, messages and bytes as counts; then vectors, gradients, and balance on skewed ids."""
    require_function(place)
    for rows, ranks in ((ROWS, RANKS), (8, 4), (5, 4)):
        _placed(checks, place, rows, ranks)
    owners = _pair_of(place, _all_rows(ROWS), ROWS, RANKS)[0]
    results = on_ranks(RANKS, _measure, answer, place)
    from dtlab.cost.embedding import row_wise_bytes

    for batch, ids in BATCHES.items():
        requests = [[int((owners[sorted(set(own))] == q).sum()) for q in range(RANKS)] for own in ids]
        for rank, found in enumerate(results):
            if found[batch].get("gave") == "None":
                raise ToDo("lookup gave None; is a return missing?")
            if "gave" in found[batch]:
                raise CheckFailed(f"{batch}, rank {rank}: {found[batch]['gave']}")
        for rank, found in enumerate(results):
            one = found[batch]
            checks.integer(
                f"{batch}: all_to_alls of a step, every rank",
                one["calls"],
                4,
                look="counts, slots and vectors forward, gradients backward (gather_counts, all_to_all, "
                "exchange once each), on every rank, also on one without ids",
            )
            duplicated = 16 * len(ids[rank]) if len(ids[rank]) > len(set(ids[rank])) else 0
            checks.integer(
                f"{batch}: bytes sent in a step by rank {rank}",
                one["bytes"],
                row_wise_bytes(requests, rank, DIM, element_bytes=8),
                look="ask for each different row once: ids.unique(return_inverse=True)"
                if duplicated
                else "slots to their owners, vectors back, gradients to the owners; nothing else",
            )
    whole = _whole()
    for batch, ids in BATCHES.items():
        expected, gradient = _one_process(ids)
        for rank, found in enumerate(results):
            checks.equal(
                f"{batch}: vectors",
                found[batch]["vectors"],
                expected[rank],
                tolerance=1e-12,
                look="vectors come sorted by owner: undo the order, then spread with the inverse of unique",
            )
        checks.equal(
            f"{batch}: gradient of the table, mean over ranks",
            _joined([found[batch]["gradient"] for found in results], place, whole),
            gradient,
            tolerance=1e-12,
            look="vectors must come through exchange, which autograd can go back through",
        )
    loads = _skewed_loads(place)
    checks.true(
        f"skewed ids: the busiest of {SKEW_RANKS} ranks serves under {BALANCED} times the mean",
        max(loads) < BALANCED * sum(loads) / len(loads),
        look=f"rows are sorted by how often they are asked for, and the ranks serve {loads}: part neighbours",
    )
    checks.passed[:] = [line for line in dict.fromkeys(checks.passed) if not line.startswith(_UNTOLD)]


def _all_rows(count: int) -> Any:
    import torch

    return torch.arange(count)


def _pair_of(place: Any, rows: Any, num_rows: int, ranks: int) -> tuple[Any, Any]:
    import torch

    given = place(rows, num_rows, ranks)
    if given is None or given is ...:
        raise ToDo("place gave None; is a return missing?")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise CheckFailed("place: give two tensors, owners and slots.")
    owners, slots = given
    for name, one in (("owners", owners), ("slots", slots)):
        if not isinstance(one, torch.Tensor) or one.shape != rows.shape or one.dtype != torch.int64:
            raise CheckFailed(f"place: {name} must be an int64 tensor with one entry for each row.")
    return owners, slots


def _placed(checks: Checks, place: Any, rows: int, ranks: int) -> None:
    """Every row has a rank and a slot of its own, and no rank holds more than its share."""
    owners, slots = _pair_of(place, _all_rows(rows), rows, ranks)
    where = f"{rows} rows on {ranks} ranks"
    wrong = int(((owners < 0) | (owners >= ranks)).sum())
    checks.integer(f"{where}: rows on a rank that is none", wrong, 0, look="owners are 0 to ranks - 1")
    most = -(-rows // ranks)
    held = int(owners.bincount(minlength=ranks).max())
    checks.integer(
        f"{where}: rows on the fullest rank", held, most, look="the rows divided by the ranks, rounded up"
    )
    checks.integer(
        f"{where}: slots outside their rank's part",
        int((slots < 0).sum() + (slots >= owners.bincount(minlength=ranks)[owners]).sum()),
        0,
        look="a slot is a place among the rank's own rows, from 0 to their number - 1",
    )
    different = len(set(zip(owners.tolist(), slots.tolist(), strict=True)))
    checks.integer(
        f"{where}: places that are taken", different, rows, look="two rows share a slot of one rank"
    )


def _whole() -> Any:
    import torch

    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _loss(vectors: Any) -> Any:
    """A loss in which every number of every vector has its own gradient."""
    import torch

    return (vectors * torch.arange(1, vectors.numel() + 1).view_as(vectors).sin() + vectors**2).sum()


def _one_process(ids: list[list[int]]) -> tuple[list[Any], Any]:
    import torch

    whole = _whole().requires_grad_()
    vectors = [whole[torch.tensor(own, dtype=torch.int64)] for own in ids]
    (sum(_loss(one) for one in vectors) / len(ids)).backward()
    return [one.detach() for one in vectors], whole.grad


def _own_rows(place: Any, rank: int) -> Any:
    """The rows of a rank in the order of their slots."""
    owners, slots = place(_all_rows(ROWS), ROWS, RANKS)
    mine = _all_rows(ROWS)[owners == rank]
    return mine[slots[owners == rank].argsort()]


def _joined(parts: list[Any], place: Any, whole: Any) -> Any:
    import torch

    joined = torch.zeros_like(whole)
    for rank, part in enumerate(parts):
        joined[_own_rows(place, rank)] = part
    return joined


def _measure(answer: Any, place: Any) -> dict[str, Any]:
    """For each batch: vectors, gradient of the own part, calls and bytes of look-up and backward."""
    import torch

    from dtlab import traffic, world

    found: dict[str, Any] = {}
    with world() as w:
        for batch, ids in BATCHES.items():
            part = _whole()[_own_rows(place, w.rank)].requires_grad_()
            mine = torch.tensor(ids[w.rank], dtype=torch.int64)
            with traffic() as counted:
                vectors = answer(mine, part, ROWS, w.size)
            fine = isinstance(vectors, torch.Tensor) and vectors.shape == (len(mine), DIM)
            all_fine = all(w.gather(fine, dst=None))  # backward is a collective: all ranks go, or none
            with traffic() as back:
                if all_fine and vectors.requires_grad:
                    _loss(vectors).backward()
            w.barrier()
            if vectors is None:
                found[batch] = {"gave": "None"}
            elif not fine:
                shape = tuple(vectors.shape) if isinstance(vectors, torch.Tensor) else "no tensor"
                found[batch] = {
                    "gave": f"lookup gave {shape} for {len(mine)} ids; give {(len(mine), DIM)}, one row an "
                    "id, also for an id that comes twice."
                }
            else:
                found[batch] = {
                    "vectors": vectors.detach(),
                    "gradient": torch.zeros_like(part) if part.grad is None else part.grad,
                    "calls": counted.by_op["all_to_all"].calls + back.by_op["all_to_all"].calls,
                    "bytes": counted.bytes + back.bytes,
                }
    return found


def _skewed_loads(place: Any) -> list[int]:
    """Different rows that each rank serves when every rank draws ids with Zipf popularity."""
    import torch

    popularity = 1 / torch.arange(1, SKEW_ROWS + 1, dtype=torch.float64)
    served = torch.zeros(SKEW_RANKS, dtype=torch.int64)
    for rank in range(SKEW_RANKS):
        draw = torch.Generator().manual_seed(rank)
        ids = popularity.multinomial(SKEW_IDS, replacement=True, generator=draw).unique()
        owners, _ = _pair_of(place, ids, SKEW_ROWS, SKEW_RANKS)
        served += owners.bincount(minlength=SKEW_RANKS)
    return [int(one) for one in served]
