"""Check of lesson 16's serving path: how long requests wait and how long they are computed, simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dtlab.cost.serving_queue import serve_in_batches
from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function


class Requests(NamedTuple):
    arrivals: list[int]
    most: int
    compute: Callable[[int], int]


def _alone(batch: int) -> int:
    return 100 * batch


def _batched(batch: int) -> int:
    return 90 + 10 * batch


CASES = {
    "requests far apart": Requests([0, 500, 1_000], 1, _alone),
    "a burst of six, one at a time": Requests([0, 0, 0, 10, 20, 30], 1, _alone),
    "the same burst, batches of four": Requests([0, 0, 0, 10, 20, 30], 4, _batched),
    "one arrives when the process gets free": Requests([0, 50, 100, 101], 3, _batched),
    "a pause, then a burst": Requests([5, 1_000, 1_000, 1_000, 1_001], 3, _batched),
    "no request": Requests([], 4, _batched),
}


@exercise(
    "16-serving",
    todo="while requests are left: the process is free or the next one arrives; take those that wait, `most` "
    "at most; each has waited until then and is computed with its batch",
    hints=(
        "Keep two numbers: when the process is free again, and which request is next. When does the next "
        "batch start, and which requests have arrived by then?",
        "start = max(free, arrivals[first]); batch: as many of arrivals[first:first + most] as are <= start; "
        "each gets (start - its arrival, compute(batch)); free = start + compute(batch); first += batch.",
    ),
    references=("dtlab.cost.serving_queue.serve_in_batches",),
)
def serving(checks: Checks, answer: Any) -> None:
    """Requests answered, then their waiting in all, then each pair; then what grows with the load."""
    require_function(answer)
    given = {
        name: _pairs(name, answer(list(case.arrivals), case.most, _guarded(name, case)))
        for name, case in CASES.items()
    }
    right = {name: serve_in_batches(*case) for name, case in CASES.items()}
    for name, pairs in right.items():
        checks.integer(f"{name}: requests answered", len(given[name]), len(pairs), look="each once, in order")
    for name, pairs in right.items():
        checks.integer(
            f"{name}: microseconds of waiting, all together",
            sum(waited for waited, _ in given[name]),
            sum(waited for waited, _ in pairs),
            look="from the arrival to the start of the batch; a batch starts when the process is free and "
            "somebody is there, and holds who has arrived by then",
        )
    checks.equal(
        "waiting and computing of each request", given, right,
        look="all requests of a batch are computed as long as the batch: compute(requests in the batch)",
    )  # fmt: skip
    calm, busy = (answer([gap * n for n in range(50)], 1, _alone) for gap in (150, 80))
    checks.true("with more load the waiting grows", sum(w for w, _ in busy) > sum(w for w, _ in calm))
    checks.true("and the computing does not", [c for _, c in busy] == [c for _, c in calm])


def _guarded(name: str, case: Requests) -> Callable[[int], int]:
    """``compute`` of a case, which refuses what would never end."""
    calls = 0

    def compute(requests: int) -> int:
        nonlocal calls
        calls += 1
        if requests < 1 or calls > 10 * len(case.arrivals) + 10:
            raise CheckFailed(
                f"{name}: compute({requests}), in call {calls} of it.\nWhere to look: a batch starts "
                "when the process is free *and* somebody has arrived, so it holds one request at least."
            )
        return case.compute(requests)

    return compute


def _pairs(name: str, given: Any) -> list[tuple[int, int]]:
    if given is None or given is ...:
        raise ToDo("serve gave no list")
    try:
        return [(waited, computed) for waited, computed in given]
    except (TypeError, ValueError):
        raise CheckFailed(f"{name}: got {given!r}: give a list of (waited, computed).") from None
