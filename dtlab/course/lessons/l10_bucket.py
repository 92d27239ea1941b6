"""Check of lesson 10's bucket size: all-reduces of a step and their exposed time, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import require_function

Gradients = list[tuple[int, int]]
_KIB = 1024


class Step(NamedTuple):
    """Gradients in order of arrival, (microseconds, bytes); a link; bucket sizes to choose from."""

    gradients: Gradients
    latency_us: int
    bytes_per_us: int
    sizes: tuple[int, ...]

    def microseconds(self, size: int) -> int:
        """One all-reduce of `size` bytes, by a rule with whole numbers: it is the simulated network."""
        return self.latency_us + -(-size // self.bytes_per_us)


STEPS = {
    "many equal layers": Step(
        [(100 * (n + 1), 64 * _KIB) for n in range(12)], 150, 1000,
        tuple(64 * _KIB * n for n in (1, 2, 3, 6, 12)),
    ),
    "small ones among large ones": Step(
        [(40, 400), (90, 90_000), (120, 400), (300, 200_000), (340, 400), (700, 500_000), (720, 1200)],
        60, 2000, (1, 400, 1600, 100_000, 300_000, 10**6),
    ),
    "a slow network": Step(
        [(50 * (n + 1), 20_000 + 3000 * n) for n in range(10)], 400, 200, (20_000, 60_000, 150_000, 10**6)
    ),
    "latency that costs nothing": Step(
        [(200 * (n + 1), 100_000) for n in range(5)], 0, 1000, (100_000, 200_000, 500_000)
    ),
}  # fmt: skip
_LOOK = (
    "a bucket can leave when its last gradient is there and the bucket before it has arrived; exposed is "
    "what is left from the last gradient to the end of the last bucket"
)


@exercise(
    "10-bucket",
    todo="fill buckets in order of arrival; each starts when it is complete and the link is free",
    hints=(
        "Go through the gradients with the bytes of the open bucket and the time at which the link is free. "
        "When the next gradient does not fit, the open bucket leaves: at which time can it start? What is "
        "left to do after the loop?",
        "free = count = filled = ready = 0. For arrives, size in gradients: if filled and filled + size > "
        "bucket_bytes: free = max(free, ready) + microseconds(filled); count += 1; filled = 0. Then filled "
        "+= size; ready = arrives. After the loop the same once more for the last bucket; return count, "
        "free - ready.",
    ),
    references=("dtlab.cost.bucket_time.buckets_in_time",),
)
def bucket(checks: Checks, answer: Any) -> None:
    """Number of all-reduces and exposed microseconds for each size of four steps; then the best size."""
    require_function(answer)
    given = {
        name: {
            size: _pair(name, answer(list(step.gradients), size, step.microseconds)) for size in step.sizes
        }
        for name, step in STEPS.items()
    }
    for name, step in STEPS.items():
        for size in step.sizes:
            count, exposed = given[name][size]
            right_count, right = _right(step.gradients, size, step.microseconds)
            where = f"{name}, buckets of {size:,} bytes"
            if count != right_count:
                checks.integer(
                    f"{where}: all-reduces", count, right_count, look=_count_look(step, given[name])
                )
            if exposed != right:
                look = _mistake(step, given[name]) or _LOOK
                checks.integer(f"{where}: exposed microseconds", exposed, right, look=look)
    for name, step in STEPS.items():
        best = min(step.sizes, key=lambda size: given[name][size][1])
        count, exposed = given[name][best]
        checks.integer(f"{name}: bytes of the best bucket", best, _best(step))
        checks.integer("  its all-reduces", count, count)
        checks.integer("  exposed microseconds", exposed, exposed)


def _best(step: Step) -> int:
    return min(step.sizes, key=lambda size: _right(step.gradients, size, step.microseconds)[1])


def _right(gradients: Gradients, size: int, microseconds: Callable[[int], int]) -> tuple[int, int]:
    from dtlab.cost.bucket_time import buckets_in_time

    found = buckets_in_time(gradients, size, microseconds)
    return found.all_reduces, int(found.exposed)


def _pair(name: str, got: Any) -> tuple[int, int]:
    if got is None or got is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if got is None else "..."))
    is_pair = isinstance(got, tuple | list) and len(got) == 2
    if not is_pair or not all(hasattr(one, "__index__") and not isinstance(one, bool) for one in got):
        raise CheckFailed(
            f"{name}: got {describe(got)}: give (all-reduces, exposed microseconds), two integers."
        )
    return int(got[0]), int(got[1])


def _count_look(step: Step, given: dict[int, tuple[int, int]]) -> str:
    right = {size: _right(step.gradients, size, step.microseconds)[0] for size in step.sizes}
    if all(given[size][0] == right[size] - 1 for size in step.sizes):
        return "the last bucket is still open when the loop ends: it has to travel too"
    if all(given[size][0] == len(step.gradients) for size in step.sizes):
        return "that is one all-reduce for each gradient: a gradient joins the open bucket while it fits"
    return (
        "a new bucket begins when a gradient would make the open one larger than bucket_bytes (a bucket that "
        "is exactly full is not too full); a gradient that is larger by itself travels alone"
    )


def _mistake(step: Step, given: dict[int, tuple[int, int]]) -> str:
    """The usual mistake that gives all numbers of this step, if there is one."""
    for rule, said in _MISTAKES:
        if all(exposed == rule(step, size) for size, (_, exposed) in given.items()):
            return said
    return ""


def _trips(step: Step, size: int) -> list[tuple[int, int]]:
    """(ready, microseconds) of each bucket."""
    trips, filled, ready = [], 0, 0
    for arrives, nbytes in step.gradients:
        if filled and filled + nbytes > size:
            trips.append((ready, step.microseconds(filled)))
            filled = 0
        filled, ready = filled + nbytes, arrives
    return [*trips, (ready, step.microseconds(filled))]


def _no_overlap(step: Step, size: int) -> int:
    return sum(taken for _, taken in _trips(step, size))


def _no_queue(step: Step, size: int) -> int:
    last = step.gradients[-1][0]
    return max(ready + taken for ready, taken in _trips(step, size)) - last


def _no_wait(step: Step, size: int) -> int:
    return _no_overlap(step, size) - step.gradients[-1][0]


def _from_zero(step: Step, size: int) -> int:
    free = 0
    for ready, taken in _trips(step, size):
        free = max(free, ready) + taken
    return free


_MISTAKES = (
    (_no_overlap, "that is all communication: buckets that travel while gradients still arrive are hidden"),
    (_no_queue, "the link carries one all-reduce at a time: a bucket waits for the one before it"),
    (_no_wait, "a bucket cannot leave before its last gradient is there: max(free, ready)"),
    (_from_zero, "that is when the last bucket has arrived: exposed is what comes after the last gradient"),
)
