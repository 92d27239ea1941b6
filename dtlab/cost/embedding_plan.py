"""How to hold an embedding table: bytes per step and memory of each way, then the least (lesson 07).

A plan is an expectation: ids are drawn with Zipf popularity, row i with probability proportional to
``i ** -skew`` (0 = all rows alike, 1 = natural text and most item logs), the table sorted by frequency.

- Different rows in a batch of L lookups: ``sum of 1 - (1 - p_i)^L``. Exchanges send each row once.
- The busiest rank counts. Of neighbouring rows rank 0 holds all hot ones and serves most; every n-th row is
  balanced up to the hottest rows.
- Memory of a rank: weights + gradient + optimizer state of the rows it holds. A dense replica has a gradient
  of the whole table; where gradients are sparse, those of the touched rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log1p

from dtlab.cost.embedding import (
    INDEX_BYTES,
    check_numbers,
    columns_of,
    deal_tables,
    dense_bytes,
    sparse_bytes,
)
from dtlab.errors import UserError

__all__ = ["TableOption", "TablePlan", "expected_unique", "plan_table"]

EXACT = 1024  # rows whose probability is taken one by one; beyond, in groups of like probability


@dataclass(frozen=True, kw_only=True)
class TableOption:
    """One way to hold the table: expected bytes that the busiest rank sends in a step, and bytes it holds."""

    strategy: str
    """As in ``dtlab.parallel.embedding.STRATEGIES``; "data_parallel" with dense and with sparse gradients."""
    sparse_gradients: bool
    bytes_per_step: int
    memory_bytes: int
    fits: bool

    @property
    def name(self) -> str:
        """The strategy, and for replicas the kind of gradient."""
        if self.strategy != "data_parallel":
            return self.strategy
        return f"data_parallel, {'sparse' if self.sparse_gradients else 'dense'}"


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """Every option, the fewest bytes first, and the one to take."""

    options: tuple[TableOption, ...]
    unique_rows: float
    """Expected different rows in a rank's batch."""

    @property
    def best(self) -> TableOption:
        """The option with the fewest bytes among those that fit.

        Raises:
            UserError: none fits; it names the smallest.
        """
        for option in self.options:
            if option.fits:
                return option
        least = min(self.options, key=lambda option: option.memory_bytes)
        raise UserError(
            f"memory_bytes: no way to hold the table fits; {least.name} needs {least.memory_bytes:,} "
            "bytes on a rank; take more ranks, fewer columns, a hashed table or a smaller optimizer state"
        )

    def lines(self) -> list[str]:
        """One aligned line for each option: bytes per step, bytes in memory, whether it fits.

        >>> print(plan_table(1_000_000, 16, samples=512, ranks=4).lines()[0])
        row_wise                      52,235 bytes a step      48,032,760 bytes on a rank  <- least bytes
        """
        chosen = next((option for option in self.options if option.fits), None)
        lines = []
        for option in self.options:
            note = "  <- least bytes" if option is chosen else "" if option.fits else "  does not fit"
            lines.append(
                f"{option.name:<22}{option.bytes_per_step:>14,} bytes a step"
                f"{option.memory_bytes:>16,} bytes on a rank{note}"
            )
        return lines


def plan_table(
    rows: int | Sequence[int],
    dim: int,
    *,
    samples: int,
    ranks: int,
    skew: float = 0.0,
    memory_bytes: float = float("inf"),
    element_bytes: int = 4,
    state_bytes_per_number: float = 8.0,
) -> TablePlan:
    """All ways to hold a table of ``dim`` columns, by the bytes that the busiest rank sends in a step.

    Args:
        rows: of the table, or of each of its fields one after another, as in ``FieldEmbedding``.
        dim: columns.
        samples: of one rank in one step; each looks up one row of every field.
        ranks: number of ranks.
        skew: exponent of the Zipf popularity in every field; 0 for none.
        memory_bytes: what a rank may spend on this table.
        element_bytes: of a number; 4 for float32.
        state_bytes_per_number: of the optimizer: 8 for Adam, 0 for SGD, 4/dim for row-wise Adagrad.

    A tie goes to the option that needs less memory. The time of a message is not in it: for small tables a
    replica's one all-reduce, shared with the rest of the model, is also the fewest messages.

    Raises:
        UserError: a size below 1, a negative skew, memory or state.

    >>> plan_table(50, 16, samples=4096, ranks=4).best.name
    'data_parallel, dense'
    >>> plan_table(10_000_000, 16, samples=4096, ranks=4, skew=1.0).best.name
    'row_wise_cyclic'
    """
    fields = [rows] if isinstance(rows, int) else list(rows)
    if not fields:
        raise UserError("rows: no field; give the number of rows of at least one")
    for size in fields:
        check_numbers(rows=size)
    check_numbers(dim=dim, ranks=ranks, samples=samples, element_bytes=element_bytes)
    for name, value in (
        ("skew", skew),
        ("memory_bytes", memory_bytes),
        ("state_bytes_per_number", state_bytes_per_number),
    ):
        if not value >= 0:
            raise UserError(f"{name}: {value}; give a number of 0 or more")
    total, lookups, vector = sum(fields), samples * len(fields), dim * element_bytes
    uniques = [expected_unique(size, samples, skew) for size in fields]
    unique = sum(uniques)
    counts = INDEX_BYTES * (ranks - 1)

    def busiest(asked: Sequence[float]) -> float:
        """Bytes of the busiest rank when every rank asks ``asked[q]`` rows of rank q."""
        return max(
            counts + (unique - own) * (INDEX_BYTES + vector) + (ranks - 1) * own * vector for own in asked
        )

    block = -(-total // ranks)
    blocks = [_unique_between(fields, samples, skew, r * block, (r + 1) * block) for r in range(ranks)]
    owners = deal_tables(fields, ranks)
    whole = [sum(u for u, owner in zip(uniques, owners, strict=True) if owner == r) for r in range(ranks)]
    largest = max(
        sum(size for size, owner in zip(fields, owners, strict=True) if owner == r) for r in range(ranks)
    )
    # (strategy, sparse gradients, bytes sent, rows held, rows in the gradient)
    dense = dense_bytes(total, dim, ranks, element_bytes=element_bytes)
    sparse = sparse_bytes(lookups, dim, ranks, element_bytes=element_bytes)
    found: list[tuple[str, bool, float, float, float]] = [
        ("data_parallel", False, dense, total, total),
        ("data_parallel", True, sparse, total, ranks * lookups),
        ("row_wise", True, busiest(blocks), block, ranks * max(blocks)),
        ("row_wise_cyclic", True, busiest([unique / ranks]), block, unique),
        ("table_wise", True, busiest(whole), largest, ranks * max(whole)),
    ]
    if dim >= ranks:
        own = columns_of(dim, ranks)[0]
        sent = INDEX_BYTES * (ranks - 1) * (1 + unique)
        sent += element_bytes * unique * (own * (ranks - 1) + dim - own)
        found.append(("column_wise", True, sent, total * own / dim, ranks * unique * own / dim))
    row_memory = dim * (element_bytes + state_bytes_per_number)
    options = []
    for strategy, is_sparse, sent, held, touched in found:
        memory = round(held * row_memory + min(touched, held) * vector)
        options.append(
            TableOption(
                strategy=strategy,
                sparse_gradients=is_sparse,
                bytes_per_step=round(sent) if ranks > 1 else 0,
                memory_bytes=memory,
                fits=memory <= memory_bytes,
            )
        )
    options.sort(key=lambda option: (option.bytes_per_step, option.memory_bytes))
    return TablePlan(options=tuple(options), unique_rows=unique)


def expected_unique(rows: int, lookups: int, skew: float = 0.0) -> float:
    """Expected number of different rows among ``lookups`` draws: ``sum of 1 - (1 - p_i)^lookups``.

    Rows from 1024 on are taken in groups whose probabilities differ by at most ``skew`` in 64.

    >>> round(expected_unique(1_000_000, 512)), round(expected_unique(1_000_000, 512, skew=1.0))
    (512, 379)
    """
    check_numbers(rows=rows, lookups=lookups)
    return _unique_between([rows], lookups, skew, 0, rows)


def _unique_between(fields: Sequence[int], samples: int, skew: float, start: int, end: int) -> float:
    """Expected different rows among rows ``start`` to ``end`` (not included) of fields one after another."""
    found, offset = 0.0, 0
    for size in fields:
        first, last = max(start - offset, 0), min(end - offset, size)
        if first < last:
            total = sum(count * weight for count, weight in _groups(0, size, skew))
            for count, weight in _groups(first, last, skew):
                found += count * _chance(min(1.0, weight / total), samples)
        offset += size
    return found


def _chance(probability: float, lookups: int) -> float:
    """Of being drawn at least once: ``1 - (1 - p)^L``."""
    return 1.0 if probability >= 1 else -expm1(lookups * log1p(-probability))


def _groups(start: int, end: int, skew: float) -> Sequence[tuple[int, float]]:
    """(number of rows, mean weight ``i ** -skew`` of them), rows counted from 1."""
    if start >= end:
        return []
    if skew == 0:
        return [(end - start, 1.0)]
    groups: list[tuple[int, float]] = []
    row = start + 1
    while row <= end:
        last = row if row <= EXACT else min(end, row + row // 64)
        middle = (row + last) / 2
        groups.append((last - row + 1, middle**-skew))
        row = last + 1
    return groups
