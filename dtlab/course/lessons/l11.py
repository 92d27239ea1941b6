"""Checks of lesson 11: row groups by (rank, worker); l11_prepare and l11_cache have the other two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l11_cache, l11_prepare  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import on_ranks, require_function

RANKS, WORKERS = 4, 2
# Three files whose last row group is smaller, as a writer leaves them.
FILES = ((100, 100, 100, 100, 60), (100, 100, 100, 100, 60), (100, 100, 80))
LAYOUTS: dict[str, list[int]] = {
    "13 groups of three files": [rows for file in FILES for rows in file],
    "16 equal groups": [50] * 16,
    "a large and a small group in turn": [100, 10] * 8,
    "the large groups last": [10] * 12 + [100] * 4,
    "3 groups for 4 ranks": [70, 70, 70],
}
READERS = ((4, 2), (2, 3), (1, 1))


@exercise(
    "11-groups",
    todo="deal out the row groups to the ranks, each to the one with the fewest rows so far; then those of "
    "this rank to its workers in the same way",
    hints=(
        "Every process makes the same plan for all ranks and takes its own part of it. Give a group to "
        "whoever has the fewest rows so far: what they differ by then is never more than one group.",
        "Write a helper that deals a list of groups to so many parts: rows = [0] * parts; for each group, "
        "least = rows.index(min(rows)), append it there and add its rows. Deal range(len(group_rows)) to "
        "`size` parts and take part `rank`; deal that list to `workers` parts and take part `worker`.",
    ),
)
def groups(checks: Checks, answer: Any) -> None:
    """Who reads each group, in several layouts; rows that four real ranks read; then the balance."""
    require_function(answer)
    for what, rows in LAYOUTS.items():
        for size, workers in READERS:
            _coverage(checks, answer, what, rows, size, workers)
    checks.passed[:] = [f"{len(LAYOUTS)} layouts, {len(READERS)} numbers of readers: every group once"]
    _read_by_ranks(checks, answer)
    for what, rows in LAYOUTS.items():
        plan = _plan(answer, rows, 4, 2)
        checks.true(f"{what}: the same when asked again", plan == _plan(answer, rows, 4, 2))
        readers = [plan[rank, worker] for rank in range(4) for worker in range(2)]
        by_rank = [[g for w in range(2) for g in plan[rank, w]] for rank in range(4)]
        _balance(
            checks, f"{what}: the ranks", by_rank, rows, look=_AT_ONCE if _spread(readers, rows)[2] else ""
        )
        for rank in range(4):
            parts = [plan[rank, worker] for worker in range(2)]
            _balance(checks, f"{what}: the workers of rank {rank}", parts, rows)
    checks.passed[1:] = [
        *checks.passed[1:4],
        "the rows of ranks, and of workers, differ by one group at most",
    ]


Plan = dict[tuple[int, int], list[int]]


def _plan(answer: Any, rows: Sequence[int], size: int, workers: int) -> Plan:
    return {
        (rank, worker): _numbers(answer(list(rows), rank, size, worker, workers), rank, worker)
        for rank in range(size)
        for worker in range(workers)
    }


def _numbers(given: Any, rank: int, worker: int) -> list[int]:
    if given is None or given is ...:
        raise ToDo("my_groups gave None; is a return missing?" if given is None else "...")
    try:
        return [int(group) for group in given]
    except (TypeError, ValueError):
        raise CheckFailed(
            f"my_groups gave {describe(given)} for worker {worker} of rank {rank}: give a list of numbers of "
            "row groups."
        ) from None


def _coverage(checks: Checks, answer: Any, what: str, rows: list[int], size: int, workers: int) -> None:
    plan = _plan(answer, rows, size, workers)
    read = [group for mine in plan.values() for group in mine]
    foreign = sorted(set(read) - set(range(len(rows))))
    if foreign:
        raise CheckFailed(
            f"{what}: group {foreign[0]} was handed out, and there are the groups 0 to {len(rows) - 1}. "
            "Return numbers of groups, not of rows."
        )
    where = f"{what}, {size} ranks of {workers} workers"
    times = [read.count(group) for group in range(len(rows))]
    checks.integer(f"{where}: groups that nobody reads", times.count(0), 0, look=_NOBODY)
    again = sum(count > 1 for count in times)
    checks.integer(
        f"{where}: groups read more than once", again, 0, look=_why_again(times, plan, size, workers)
    )


_NOBODY = (
    "deal out every group, also when there are more readers than groups or the numbers do not divide; and "
    "deal only this rank's groups to its workers"
)


def _why_again(times: list[int], plan: Plan, size: int, workers: int) -> str:
    """Which of the two numbers the answer does not look at."""
    same_rank = all(plan[rank, worker] == plan[0, worker] for rank, worker in plan)
    same_worker = all(plan[rank, worker] == plan[rank, 0] for rank, worker in plan)
    if size > 1 and same_rank:
        return "every rank got the same groups: `rank` and `size` must decide"
    if workers > 1 and same_worker:
        return "every worker of a rank got the same groups: `worker` and `workers` must decide too"
    return f"each group has one reader; group {times.index(max(times))} has {max(times)}"


_AT_ONCE = (
    "all workers of all ranks are balanced, and the ranks are not: were the groups dealt to all of them at "
    "once? Deal them to the ranks first, then those of a rank to its workers"
)


def _spread(parts: list[list[int]], rows: list[int]) -> tuple[list[int], int, bool]:
    """Rows of each part, rows of the largest group, and whether the parts differ by no more than that."""
    held = [sum(rows[group] for group in part) for part in parts]
    largest = max((rows[group] for part in parts for group in part), default=0)
    return held, largest, max(held) - min(held) <= largest


def _balance(checks: Checks, who: str, parts: list[list[int]], rows: list[int], *, look: str = "") -> None:
    held, largest, is_even = _spread(parts, rows)
    checks.true(
        f"{who} have {held} rows, which differ by no more than the largest group, {largest}",
        is_even,
        look=look
        or (
            "count rows and not groups: the next group goes to whoever has the fewest rows so far"
            if max(map(len, parts)) - min(map(len, parts)) <= 1
            else "the next group goes to whoever has the fewest rows so far: a file is too large a piece"
        ),
    )


def _read_by_ranks(checks: Checks, answer: Any) -> None:
    """Coverage of the rows that four ranks really read, two workers' parts each."""
    import tempfile

    from dtlab.data.coverage import seen

    with tempfile.TemporaryDirectory() as place:
        rows = _write(Path(place))
        ids = on_ranks(RANKS, _read, answer, place)
    found = seen(ids, range(rows))
    checks.integer(
        f"rows read by {RANKS} real ranks", int(found.times.sum()), rows, look="see the groups above"
    )
    checks.integer("rows that no rank read", len(found.never), 0)
    checks.integer("rows read more than once", len(found.twice), 0)


def _write(folder: Path) -> int:
    """Write ``FILES`` as Parquet; returns the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    for number, file in enumerate(FILES):
        ids = pa.table({"id": range(first, first + sum(file))})
        pq.write_table(ids, folder / f"{number}.parquet", row_group_size=file[0])
        first += sum(file)
    return first


def _read(answer: Any, place: str) -> list[int]:
    """The ids in the groups that this rank's workers are given."""
    from dtlab import world
    from dtlab.data.shards import groups_of, read_groups

    with world() as w:
        found = groups_of(sorted(Path(place).glob("*.parquet")))
        rows = [group.rows for group in found]
        mine = [int(g) for worker in range(WORKERS) for g in answer(rows, w.rank, w.size, worker, WORKERS)]
        return read_groups([found[number] for number in mine])["id"].to_pylist() if mine else []
