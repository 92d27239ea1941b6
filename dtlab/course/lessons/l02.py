"""Checks of lesson 02: who a rank is, the ring all-reduce, and the time that an all-reduce takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import answer_line, stuck

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.collectives import Traffic

RANKS = 4
ELEMENTS = 1000  # divides by the ranks, so that bytes per rank are whole
UNEVEN = (10, 3)  # chunks of different length; fewer elements than ranks
LARGE = 1_000_000  # larger than any buffer on the way


@exercise(
    "02-who",
    todo="read RANK, WORLD_SIZE and LOCAL_RANK from environ; name all that are missing in one ValueError",
    hints=(
        "A card is counted on its own host, so its number is the local rank. Look for missing names first, "
        "before you read any of them.",
        'missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in environ]; raise '
        "ValueError with ', '.join(missing) in it when the list is not empty; then int(environ['RANK']) ...",
    ),
    references=("dtlab.ranks.environment.detect", "dtlab.world"),
)
def who(checks: Checks, answer: Any) -> None:
    """Two hosts of two cards for real, one rank of a larger job on paper, and missing variables."""
    from dtlab import launch

    results = launch(_ask, 2, answer, nnodes=2, timeout=20, echo=False)
    look = "each host counts its own cards from 0: which variable does that too?"
    cards = [_card(_field(got, "device")) for got in results]
    _each(checks, "rank", [_field(got, "rank") for got in results], [0, 1, 2, 3], "RANK, as an int")
    _each(checks, "world size", [_field(got, "size") for got in results], [4] * 4, "WORLD_SIZE, as an int")
    _each(checks, "card on its own host", cards, [0, 1, 0, 1], look)
    given = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    got = answer(dict(given))
    for name, value in (("rank", 5), ("size", 6)):
        checks.integer(
            f"{name}, from the variables of rank 5 of 6",
            _field(got, name),
            value,
            look="read environ, not os.environ",
        )
    checks.integer(
        "card, from the variables of rank 5 of 6",
        _card(_field(got, "device")),
        1,
        look="read environ, not os.environ",
    )
    for missing in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("WORLD_SIZE", "LOCAL_RANK"), ("LOCAL_RANK",)):
        left = {name: value for name, value in given.items() if name not in missing}
        checks.equal(
            f"names in the error when {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            _named_missing(answer, left),
            sorted(missing),
            look="collect every missing name first, then raise one ValueError that lists them",
        )


def _each(checks: Checks, what: str, values: list[Any], expected: list[int], look: str) -> None:
    """Compare a count of every rank; one line when all are right, the first wrong rank otherwise."""
    for rank, (got, right) in enumerate(zip(values, expected, strict=True)):
        if not isinstance(got, int) or isinstance(got, bool) or got != right:
            checks.integer(f"{what}, rank {rank}", got, right, look=look)
    if len(set(expected)) == 1:
        checks.integer(f"{what}, every rank", values[0], expected[0])
    else:
        checks.integer(f"ranks with the right {what}", len(values), len(expected))


def _ask(answer: Any) -> Any:
    import os

    return answer(dict(os.environ))


def _field(got: Any, name: str) -> Any:
    if got is None or got is ...:
        return got  # the stub: the check says so
    if not isinstance(got, dict) or name not in got:
        raise CheckFailed(
            f"who_am_i gave {describe(got)}: give a dict with the keys 'rank', 'size' and 'device'."
        )
    return got[name]


def _card(device: Any) -> int:
    found = re.fullmatch(r"cuda:(\d+)", str(device))
    if not found:
        raise CheckFailed(f"device: got {describe(device)}, expected text such as 'cuda:1'.")
    return int(found[1])


def _named_missing(answer: Any, environ: dict[str, str]) -> list[str]:
    try:
        answer(environ)
    except ValueError as error:
        return sorted(set(re.findall(r"\b(?:RANK|WORLD_SIZE|LOCAL_RANK)\b", str(error))))
    except KeyError as error:
        raise CheckFailed(
            f"a missing variable raised KeyError: {error}: one name, and the next run names the next.\n"
            "Where to look: test which names are missing before reading any, and raise ValueError."
        ) from error
    return []


@exercise(
    "02-ring",
    todo="send one chunk to the right and add the one from the left, size - 1 times; then pass the sums on",
    hints=(
        "Which chunk does rank r send in step s? It starts with chunk r and in the next step sends on the "
        "one that it has just added to. After size - 1 steps it holds the whole sum of chunk r + 1. Post "
        "isend and irecv first, wait for both after.",
        "First half, step s: send chunks[(rank - s) % size], receive into a buffer as long as "
        "chunks[(rank - s - 1) % size], wait for both, add the buffer to that chunk. Second half, step s: "
        "send chunks[(rank + 1 - s) % size] and receive straight into chunks[(rank - s) % size].",
    ),
    references=(
        "dtlab.collectives.ring_all_reduce",
        "dtlab.collectives.tree_all_reduce",
        "dtlab.collectives.parameter_server_all_reduce",
        "torch.distributed.all_reduce",
    ),
)
def ring(checks: Checks, answer: Any) -> None:
    """Messages, steps and bytes on four real ranks, then values; then uneven and large sizes."""
    if not callable(answer):
        raise CheckFailed(f"the answer is {describe(answer)}: hand in the function itself.")
    even = _run_ring(answer, (ELEMENTS,))
    _ring_integers(checks, [one[ELEMENTS]["traffic"] for one in even], RANKS, 4 * ELEMENTS)
    _ring_values(checks, even)
    uneven = _run_ring(answer, (*UNEVEN, LARGE))
    checks.equal(
        f"bytes sent by all ranks together for {UNEVEN[0]} elements, 2(N-1) x S",
        sum(one[UNEVEN[0]]["traffic"].bytes for one in uneven),
        2 * (RANKS - 1) * 4 * UNEVEN[0],
        look="cut with chunk_bounds: no padding, no element left out",
    )
    _ring_values(checks, uneven)
    checks.true(
        "the tensor that was given is the one that comes back",
        all(one["same"] for result in (*even, *uneven) for one in result.values()),
        look="work on chunks of the tensor (views), and return the tensor itself, no copy",
    )


def _ring_values(checks: Checks, results: list[dict[int, dict[str, Any]]]) -> None:
    for elements in results[0]:
        checks.equal(
            f"{elements:,} elements: largest difference to the sum, on each rank",
            [result[elements]["error"] for result in results],
            [0.0] * len(results),
            look=_LEFT_AT[max(result[elements]["left_at"] for result in results)],
        )


_ASSIGNED = (
    "If you wrote `chunks[i] = ...`: that puts another tensor into the list and leaves the given one "
    "as it is. Use `+=` or chunks[i].copy_(...)."
)
_LEFT_AT = {
    "": "which chunk goes out in which step? Add in the first half, overwrite in the second; wait for both "
    "operations of a step before you use what came.",
    "half": f"the sums of the first half are there; the second half never reached the tensor. {_ASSIGNED}",
    "start": f"chunks of the tensor are as they were at the start. {_ASSIGNED}",
}


def _left_at(tensor: Tensor, rank: int, size: int) -> str:
    """Where chunks that are wrong have stayed: at the "start", after the first "half", or neither, ""."""
    import torch

    from dtlab.collectives import chunk_bounds

    before = [_numbers(len(tensor), one) for one in range(size)]
    states = []
    for chunk, (start, end) in enumerate(chunk_bounds(len(tensor), size)):
        inside = [(chunk + step) % size for step in range((rank - chunk) % size + 1)]
        half, whole = (
            torch.stack([before[one][start:end] for one in ranks]).sum(0) for ranks in (inside, range(size))
        )
        got = tensor[start:end]
        known = {"whole": whole, "start": before[rank][start:end], "half": half}
        states.append(next((name for name, value in known.items() if torch.equal(got, value)), ""))
    if "" in states:
        return ""
    return "half" if "half" in states else "start" if "start" in states else ""


def _numbers(elements: int, rank: int) -> Tensor:
    """What rank `rank` holds. Whole numbers, small enough for float32: sums are exact in any order."""
    import torch

    return torch.arange(elements, dtype=torch.float32) % 1000 * (rank + 1) + rank**2


def _ring_integers(checks: Checks, sent: list[Traffic], n: int, size_bytes: int) -> None:
    from dtlab.collectives import in_steps

    checks.integer(
        "calls of torch's own collectives", sum(one.collectives for one in sent), 0, look="use isend, irecv"
    )
    look = "one message a step; size - 1 steps that add, then size - 1 steps that pass the sums on"
    _each(checks, "messages sent, 2(N-1)", [one.messages for one in sent], [2 * (n - 1)] * n, look)
    look = "each message is one chunk, not the whole tensor"
    expected = [2 * (n - 1) * size_bytes // n] * n
    _each(checks, "bytes sent, 2(N-1)/N x S", [one.bytes for one in sent], expected, look)
    receivers = {message.dst for message in sent[0].log}
    checks.integer("ranks that rank 0 sends to", len(receivers), 1, look="a ring: always the same neighbour")
    steps = max(message.step for message in in_steps(sent)) + 1
    checks.integer(
        "steps one after another, 2(N-1)", steps, 2 * (n - 1), look="send what arrived one step before"
    )


def _run_ring(answer: Any, sizes: tuple[int, ...]) -> list[dict[int, dict[str, Any]]]:
    from dtlab import RankError, launch

    limit = 6
    try:
        return launch(_ring_rank, RANKS, answer, sizes, timeout=limit, echo=False)
    except RankError as error:
        # gloo ends the process when a message is longer than the buffer that waits for it
        if "size doesn't match" in str(error):
            raise CheckFailed(
                f"with {' or '.join(f'{size:,}' for size in sizes)} elements a message met a buffer of "
                "another length.\nWhere to look: chunks differ in length; a rank must receive the chunk that "
                "its left neighbour sends in that step, into a buffer as long as that chunk."
            ) from None
        if error.exception_type != "TimeoutError":
            raise
        raise CheckFailed(_still(error, limit)) from None


def _still(error: Any, limit: float) -> str:
    """Why the ring did not end: messages that nobody waited for, or ranks that wait in the answer."""
    states = [report.state for report in error.reports if report.state is not None]
    if states and all(answer_line(state) is None for state in states):
        return (
            "your function returned on every rank, but messages of it are still on their way, and no rank "
            f"gets past the check's {states[0].operation}.\n"
            "Where to look: every isend and every irecv needs its .wait(), in the step that started it; "
            "until then the buffer may be empty."
        )
    return stuck(
        error,
        limit,
        "post isend and irecv before you wait for either. All ranks make 2(size - 1) steps: is there a rank "
        "that makes more, or a loop that never ends?",
    )


def _ring_rank(answer: Any, sizes: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    """Runs the answer in one rank for every size; the largest error travels back, not the tensors."""
    import torch

    from dtlab import traffic, world

    found = {}
    with world() as w:
        for elements in sizes:
            tensor = _numbers(elements, w.rank)
            true = torch.stack([_numbers(elements, rank) for rank in range(w.size)]).sum(0)
            with traffic() as counted:
                returned = answer(tensor, w.rank, w.size)
            w.barrier()  # a rank that is behind must not take the next size's messages for this one's
            found[elements] = {
                "traffic": counted,
                "error": float((tensor - true).abs().max()),
                "left_at": "" if torch.equal(tensor, true) else _left_at(tensor, w.rank, w.size),
                "same": isinstance(returned, torch.Tensor) and returned.data_ptr() == tensor.data_ptr(),
            }
    return found


@exercise(
    "02-seconds",
    todo="return the seconds of a ring, a tree and a parameter server for n ranks, as a dict",
    hints=(
        "Each algorithm is a number of steps times the time of one message. How many steps, and how many "
        "bytes are in a message?",
        "ring: 2(n-1) steps of size/n bytes; tree: 2 ceil(log2 n) steps of size bytes; parameter server: "
        "2(n-1) steps of size bytes. A message of M bytes takes latency + M / bandwidth.",
    ),
    references=("dtlab.cost.collectives.textbook_all_reduce_seconds",),
)
def seconds(checks: Checks, answer: Any) -> None:
    """Nanoseconds for several machines, also for ranks that are no power of two; then who wins where."""
    from dtlab.cost.collectives import textbook_all_reduce_seconds

    steps = {
        "ring": "2(n-1) steps, each with size / n bytes",
        "tree": "2 ceil(log2 n) steps, each with the whole tensor; 6 ranks need 3 levels",
        "parameter server": "2(n-1) steps, each with the whole tensor, all through one link",
    }
    for n, size, latency, bandwidth in ((6, 3e5, 2e-5, 1e9), (8, 1.28e9, 2e-5, 1.25e9)):
        got = answer(n, size, latency, bandwidth)
        if isinstance(got, dict) and set(got) != set(steps):
            raise CheckFailed(f"keys: got {sorted(map(str, got))}, expected {sorted(steps)}.")
        for name, look in steps.items():
            value = got[name] if isinstance(got, dict) else got
            checks.integer(
                f"nanoseconds of a {name}, {n} ranks, {size:,.0f} bytes",
                round(value * 1e9) if isinstance(value, int | float) else value,
                round(textbook_all_reduce_seconds(name, n, size, latency, bandwidth) * 1e9),
                look=look,
            )
    for size, fastest in ((1e3, "tree"), (1e9, "ring")):
        got = answer(64, size, 2e-5, 1.25e9)
        checks.equal(f"the fastest for {size:,.0f} bytes on 64 ranks", min(got, key=got.get), fastest)
