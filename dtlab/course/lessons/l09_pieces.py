"""Check of lesson 09's checkpoint in pieces: which slices of which files a rank of another world reads."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import require_function

# Numbers, ranks that saved, ranks that load; the last ones leave a rank without a number.
CASES = ((12, 4, 2), (12, 4, 4), (13, 4, 3), (13, 3, 4), (10, 1, 3), (10, 3, 1), (5, 4, 4), (5, 2, 4))


@exercise(
    "09-pieces",
    todo="from the first number of this rank's part to its last, file by file",
    hints=(
        "First say which numbers of [n] the rank needs: start = rank * own and stop, both at most n. Number "
        "i stands in file i // size at i % size. Go from start to stop, and stop at the end of each file.",
        "size, own = -(-n // saved_by), -(-n // ranks); at, stop = min(rank * own, n), min((rank + 1) * own, "
        "n). while at < stop: file = at // size; end = min(stop, (file + 1) * size); append (file, at - file "
        "* size, end - file * size); at = end.",
    ),
)
def pieces(checks: Checks, answer: Any) -> None:
    """Numbers read in eight moves between worlds, files opened; then what is read, number by number."""
    require_function(answer)
    given = {
        (n, saved_by, ranks): [_listed(answer(n, saved_by, rank, ranks)) for rank in range(ranks)]
        for n, saved_by, ranks in CASES
    }
    for (n, saved_by, ranks), plans in given.items():
        case = f"{n} numbers, from {saved_by} files to {ranks} rank{'s' if ranks > 1 else ''}"
        size, own = -(-n // saved_by), -(-n // ranks)
        for rank, plan in enumerate(plans):
            for file, start, stop in plan:
                if not 0 <= file < saved_by or not 0 <= start < stop <= size:
                    raise CheckFailed(
                        f"{case}, rank {rank}: piece {(file, start, stop)} is in no file: they are 0 to "
                        f"{saved_by - 1}, with {size} numbers each.\nWhere to look: start and stop count "
                        "within the file, stop is above start, and a rank without numbers reads nothing."
                    )
            wanted = max(0, min((rank + 1) * own, n) - rank * own)
            read = sum(stop - start for _, start, stop in plan)
            checks.integer(f"{case}: numbers that rank {rank} reads", read, wanted,
                           look=_look(read, wanted, own, n // ranks))  # fmt: skip
            files = len({file for file, _, _ in plan})
            least = len({i // size for i in range(rank * own, min((rank + 1) * own, n))})
            checks.integer(f"{case}: files that rank {rank} opens", files, least,
                           look="only those in which its numbers stand")  # fmt: skip
            pieces_there = len(plan)
            checks.integer(f"{case}: pieces of rank {rank}", pieces_there, least,
                           look="one piece of each file: its numbers stand side by side there")  # fmt: skip
    total = sum(n for n, _, _ in CASES)
    checks.passed[:] = []
    checks.integer(f"numbers read in {len(CASES)} moves, each once", total, total)
    for (n, saved_by, ranks), plans in given.items():
        size, own = -(-n // saved_by), -(-n // ranks)
        for rank, plan in enumerate(plans):
            read_there = [file * size + i for file, start, stop in plan for i in range(start, stop)]
            checks.equal(
                f"{n} numbers, {saved_by} files: what rank {rank} of {ranks} reads", read_there,
                list(range(min(rank * own, n), min((rank + 1) * own, n))),
                look="rank r's part begins at number r * ceil(n / ranks), and number i stands in file "
                "i // ceil(n / saved_by)",
            )  # fmt: skip
    checks.passed[1:] = ["every rank's part, number by number"]


def _look(read: int, wanted: int, own: int, rounded_down: int) -> str:
    if read == own and wanted < own:
        return "padding is not read: the part of the last ranks ends at n"
    if read == rounded_down < own:
        return "round up: with // alone the last numbers are on no rank"
    if read < wanted:
        return "a part may lie in several files: go on until its last number"
    return "the rank's own part alone: from rank * ceil(n / ranks), as many numbers"


def _listed(given: Any) -> list[tuple[int, int, int]]:
    if given is None or given is ...:
        raise ToDo("the answer gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, list | tuple) or any(
        not isinstance(piece, list | tuple)
        or len(piece) != 3
        or not all(hasattr(i, "__index__") and not isinstance(i, bool) for i in piece)
        for piece in given
    ):
        raise CheckFailed(f"the answer gave {describe(given)}: give a list of (file, start, stop).")
    return [(int(file), int(start), int(stop)) for file, start, stop in given]
