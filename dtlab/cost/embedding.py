"""Bytes that a rank sends in one step for one embedding table, for each way to hold it (lesson 07). No torch.

Symbols: n ranks, a table of V rows and d columns, e bytes a number, 8 bytes an index. In this step rank r
looks up L_r rows, duplicates counted, and U_r different ones; u[r][q] of them live on rank q.

========================  =======================================================================
how the table is held     bytes sent by rank r
========================  =======================================================================
data parallel, dense      2(n-1)/n x V d e: the all-reduce of the whole gradient
data parallel, sparse     (n-1) L_r (8 + d e): every rank's indices and rows to all others
row-wise, table-wise      8(n-1) + out_r (8 + d e) + in_r d e: counts; indices and, in the backward,
                          gradients to the owners; vectors to those who asked
column-wise               8(n-1) + 8(n-1) U_r + e d_r (sum of U - U_r) + e (d - d_r) U_r
row-wise by DTensor       2(n-1)/n x 8 + (n-1) m (8 + 2 d e), m = the largest L: lengths agreed,
                          indices gathered, vectors reduce-scattered, gradients gathered
========================  =======================================================================

``out_r = sum over q != r of u[r][q]``, ``in_r = sum over q != r of u[q][r]``, d_r the columns of rank r.
A collective's bytes are those of the best algorithm (`dtlab.collectives.wire_formulas`): the traffic counter
measures the same figures, to the byte. Only the first line depends on V, only the second and the last on
duplicates.

Source of the ways: Naumov et al., "Deep learning recommendation model", arXiv 1906.00091, section 4; names as
in TorchRec (Ivchenko et al., RecSys 2022).
"""

from collections.abc import Sequence

from dtlab.errors import UserError

__all__ = [
    "INDEX_BYTES",
    "column_wise_bytes",
    "columns_of",
    "deal_tables",
    "dense_bytes",
    "dtensor_bytes",
    "row_wise_bytes",
    "sparse_bytes",
]

INDEX_BYTES = 8


def dense_bytes(rows: int, dim: int, ranks: int, *, element_bytes: int = 4) -> int:
    """A replica on every rank, dense gradients: the whole table crosses, however few rows were touched.

    >>> dense_bytes(1_000_000, 16, 4)
    96000000
    """
    check_numbers(rows=rows, dim=dim, ranks=ranks, element_bytes=element_bytes)
    return round(2 * (ranks - 1) / ranks * (rows * dim * element_bytes))


def sparse_bytes(lookups: int, dim: int, ranks: int, *, element_bytes: int = 4) -> int:
    """A replica on every rank, sparse gradients: ``lookups`` entries of this rank, duplicates counted.

    >>> sparse_bytes(512, 16, 4)
    110592
    """
    check_numbers(dim=dim, ranks=ranks, element_bytes=element_bytes)
    check_numbers(0, lookups=lookups)
    return (ranks - 1) * lookups * (INDEX_BYTES + dim * element_bytes)


def row_wise_bytes(
    requests: Sequence[Sequence[int]],
    rank: int,
    dim: int,
    *,
    element_bytes: int = 4,
    with_backward: bool = True,
) -> int:
    """Rows (or whole tables) dealt to the ranks. ``requests[r][q]``: different rows that r asks of q.

    >>> row_wise_bytes([[128] * 4] * 4, 0, 16)
    52248
    """
    ranks = _square(requests)
    _check_rank(rank, ranks)
    check_numbers(dim=dim, element_bytes=element_bytes)
    row = dim * element_bytes
    asked_of_others = sum(requests[rank]) - requests[rank][rank]
    asked_by_others = sum(line[rank] for line in requests) - requests[rank][rank]
    forward = INDEX_BYTES * (ranks - 1) + INDEX_BYTES * asked_of_others + row * asked_by_others
    return forward + (row * asked_of_others if with_backward else 0)


def columns_of(dim: int, ranks: int) -> list[int]:
    """How many of ``dim`` columns each rank holds: as equal as possible, the larger parts first.

    >>> columns_of(10, 4)
    [3, 3, 2, 2]
    """
    check_numbers(dim=dim, ranks=ranks)
    return [dim // ranks + (rank < dim % ranks) for rank in range(ranks)]


def column_wise_bytes(
    unique: Sequence[int], rank: int, dim: int, *, element_bytes: int = 4, with_backward: bool = True
) -> int:
    """Every rank holds all rows of some columns. ``unique[r]``: different rows that rank r looks up.

    >>> column_wise_bytes([512] * 4, 0, 16)
    61464
    """
    ranks = len(unique)
    _check_rank(rank, ranks)
    check_numbers(element_bytes=element_bytes)
    own = columns_of(dim, ranks)[rank]
    numbers = own * (sum(unique) - unique[rank])
    if with_backward:
        numbers += (dim - own) * unique[rank]
    return INDEX_BYTES * (ranks - 1) * (1 + unique[rank]) + element_bytes * numbers


def dtensor_bytes(longest: int, dim: int, ranks: int, *, element_bytes: int = 4) -> int:
    """Rows sharded by DTensor. ``longest``: most lookups of a rank; the others are padded to it.

    >>> dtensor_bytes(512, 16, 4)
    208908
    """
    check_numbers(dim=dim, ranks=ranks, element_bytes=element_bytes)
    check_numbers(0, longest=longest)
    agreed = round(2 * (ranks - 1) / ranks * INDEX_BYTES)
    return agreed + (ranks - 1) * longest * (INDEX_BYTES + 2 * dim * element_bytes)


def deal_tables(sizes: Sequence[int], num_ranks: int, loads: Sequence[int] | None = None) -> list[int]:
    """A rank for each table: the largest first, each to the rank with the least so far.

    ``sizes``: rows, bytes or lookups of each table; ``loads``: what the ranks already carry. From empty ranks
    the heaviest one ends with at most 4/3 - 1/(3n) of the best possible (Graham, 1969).

    Raises:
        UserError: a negative size, loads of another number of ranks.

    >>> deal_tables([5, 9, 4, 4], 2)
    [1, 0, 1, 0]
    """
    carried = list(loads or [0] * num_ranks)
    if len(carried) != num_ranks or num_ranks < 1:
        raise UserError(f"loads: {len(carried)} numbers for {num_ranks} ranks; give one for each rank")
    if any(size < 0 for size in sizes):
        raise UserError(f"sizes: {list(sizes)}; give sizes of 0 or more")
    owners = [0] * len(sizes)
    for table in sorted(range(len(sizes)), key=lambda table: -sizes[table]):
        owners[table] = min(range(num_ranks), key=lambda rank: (carried[rank], rank))
        carried[owners[table]] += sizes[table]
    return owners


def check_numbers(least: int = 1, **given: int) -> None:
    """``UserError`` for the first of the named values that is no whole number of ``least`` or more."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name}: {value!r}; give a whole number of {least} or more")


def _square(requests: Sequence[Sequence[int]]) -> int:
    if any(len(line) != len(requests) for line in requests) or not requests:
        lengths = [len(line) for line in requests]
        raise UserError(f"requests: lines of {lengths} for {len(requests)} ranks; give one number per pair")
    return len(requests)


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise UserError(f"rank: {rank}; give a rank of 0 to {ranks - 1}")
