"""What a request waits for before it is computed: one process that answers, first come first served.

Training hosts take no part in it (lesson 16). `serve_in_batches` goes through requests one by one;
`mean_latency_seconds` is the closed form for random arrivals and one at a time (tested against each other).
"""

from collections.abc import Callable, Sequence

from dtlab.errors import UserError


def serve_in_batches(
    arrivals: Sequence[int], most: int, compute: Callable[[int], int]
) -> list[tuple[int, int]]:
    """(waited, computed) of each request, in the order of arrival.

    Args:
        arrivals: times in whole microseconds, growing.
        most: requests of a batch at most. A batch holds those that have arrived when the process is free.
        compute: microseconds that a batch of so many requests takes.

    Raises:
        UserError: `most` is below 1.

    >>> serve_in_batches([0, 10, 20], 2, lambda requests: 90 + 10 * requests)
    [(0, 100), (90, 110), (80, 110)]
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UserError(f"most={most!r}: give a whole number of 1 or more")
    free, answered = 0, list[tuple[int, int]]()
    while len(answered) < len(arrivals):
        waiting = arrivals[len(answered) : len(answered) + most]
        start = max(free, waiting[0])
        batch = sum(arrived <= start for arrived in waiting)
        answered += [(start - arrived, compute(batch)) for arrived in waiting[:batch]]
        free = start + compute(batch)
    return answered


def mean_latency_seconds(requests_per_second: float, seconds: float) -> float:
    """Mean time of a request, waiting and computing, when each is computed alone in `seconds`.

    `s (1 + u / (2 (1 - u)))` with the load `u = requests_per_second * s`: Pollaczek and Khinchine for Poisson
    arrivals and equal service times (Kleinrock, Queueing Systems I, 1975, section 5.7).

    Raises:
        UserError: a number that is not above 0, or more requests than the process can do.

    >>> round(mean_latency_seconds(6.67, 0.1), 2), round(mean_latency_seconds(9.78, 0.1), 1)
    (0.2, 2.3)
    """
    for name, value in (("requests_per_second", requests_per_second), ("seconds", seconds)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise UserError(f"{name}={value!r} is out of range: give a number above 0")
    load = requests_per_second * seconds
    if load >= 1:
        raise UserError(
            f"requests_per_second={requests_per_second:g} of {seconds:g} s each: the queue grows for ever; "
            f"one process does fewer than {1 / seconds:g}"
        )
    return seconds * (1 + load / (2 * (1 - load)))
