"""What more ranks can bring, and what one step is bound by (lesson 01).

A step is read, computed and synchronised: `data + compute + sync` seconds, one after the other unless said.
"Speed-up" is samples per second over those of one rank, with the same batch on every rank.
"""

from typing import Literal

from dtlab.errors import UserError

Bound = Literal["compute-bound", "input-bound", "communication-bound"]


def amdahl(parallel_share: float, n: int) -> float:
    """Speed-up on `n` ranks when only a share of the work is divided: `1 / ((1 - p) + p/n)`.

    Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", 1967.

    >>> amdahl(0.9, 8)
    4.7058823529411775
    """
    if not 0 <= parallel_share <= 1:
        raise UserError(f"parallel_share={parallel_share!r} is not a share: give 0 to 1")
    _check_ranks(n)
    return 1 / ((1 - parallel_share) + parallel_share / n)


def implied_serial_share(speedup: float, n: int) -> float:
    """The serial share for which Amdahl gives `speedup` on `n` ranks: `(n/S - 1) / (n - 1)`.

    A share that changes with n says that the law does not describe the system.

    >>> [round(implied_serial_share(s, n), 3) for s, n in ((1.8, 2), (3.2, 4), (5.6, 8))]
    [0.111, 0.083, 0.061]
    """
    _check_ranks(n)
    if n == 1:
        raise UserError("n=1 implies no serial share: give a speed-up on 2 or more ranks")
    if speedup <= 0:
        raise UserError(f"speedup={speedup!r} is not a speed-up: give a number above 0")
    return (n / speedup - 1) / (n - 1)


def step_seconds(
    data_seconds: float,
    compute_seconds: float,
    sync_seconds: float,
    n: int,
    shared_reader: bool = False,
    *,
    prefetch: bool = False,
) -> float:
    """One step on `n` ranks, in seconds.

    - a reader that all ranks share serves them in turn, so the data takes `n` times as long;
    - a single rank synchronises with nobody: `sync_seconds` counts from 2 ranks on (`cost.collectives` has
      formulas for it);
    - with `prefetch`, reading runs beside computing and the longer of the two counts.
    """
    _check_ranks(n)
    _check_seconds(data_seconds=data_seconds, compute_seconds=compute_seconds, sync_seconds=sync_seconds)
    data = data_seconds * n if shared_reader else data_seconds
    work = max(data, compute_seconds) if prefetch else data + compute_seconds
    return work + (sync_seconds if n > 1 else 0.0)


def predict_speedup(
    data_seconds: float,
    compute_seconds: float,
    sync_seconds: float,
    n: int,
    shared_reader: bool = False,
    *,
    prefetch: bool = False,
) -> float:
    """Samples per second on `n` ranks over those on one, from one rank's step and the sync among `n` ranks.

    `n * T(1) / T(n)` with `T` of `step_seconds`.

    >>> predict_speedup(0.0, 0.09, 0.01, n=4)
    3.6
    >>> round(predict_speedup(0.10, 0.01, 0.0, n=8, shared_reader=True), 2)  # the reader is the limit
    1.09
    """
    one = step_seconds(data_seconds, compute_seconds, 0.0, 1, shared_reader, prefetch=prefetch)
    many = step_seconds(data_seconds, compute_seconds, sync_seconds, n, shared_reader, prefetch=prefetch)
    if one == 0:
        raise UserError("data_seconds and compute_seconds are both 0: there is no step to speed up")
    return n * one / many


def classify_step(data_seconds: float, compute_seconds: float, sync_seconds: float = 0.0) -> Bound:
    """What a step is bound by: the longest of its three parts names it.

    At a tie computing wins over reading, and reading over synchronising. `data_seconds` is the time that the
    step *waits* for data, `sync_seconds` the communication that is not hidden behind computing.

    >>> classify_step(0.030, 0.010, 0.005)
    'input-bound'
    """
    _check_seconds(data_seconds=data_seconds, compute_seconds=compute_seconds, sync_seconds=sync_seconds)
    if data_seconds == compute_seconds == sync_seconds == 0:
        raise UserError(
            "data_seconds, compute_seconds and sync_seconds are all 0: there is no step to classify"
        )
    parts: list[tuple[float, Bound]] = [
        (compute_seconds, "compute-bound"),
        (data_seconds, "input-bound"),
        (sync_seconds, "communication-bound"),
    ]
    return max(parts, key=lambda part: part[0])[1]


def _check_ranks(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UserError(f"n={n!r} is not a number of ranks: give a whole number of 1 or more")


def _check_seconds(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{name}={value!r} is not a time: give 0 or more seconds")
