"""Checks of lesson 01: bytes of one rank, the parts of a step, the speed-up; l01_bound has the fourth."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l01_bound  # noqa: F401  (registers its exercise)
from dtlab.course.lessons.l01_answers import PARTS, dict_of, list_of, same_integer, total_of
from dtlab.course.lessons.on_ranks import require_function


@exercise(
    "01-memory",
    todo="return the bytes of one rank by item: parameters, gradients, optimizer, activations, buckets",
    hints=(
        "Four bytes a number in FP32. Which items grow with the micro-batch, and which with the "
        "number of ranks? "
        "Data parallel keeps a whole replica on every rank.",
        "parameters and gradients are 4 * parameters each, optimizer is moments times that, activations are "
        "per_sample * micro_batch, buckets are 4 * parameters when ranks > 1 and 0 otherwise. "
        "Divide nothing.",
    ),
    references=(
        "dtlab.cost.memory.training_bytes",
        "dtlab.cost.memory.state_bytes",
        "dtlab.cost.memory.state_bytes_per_parameter",
    ),
)
def memory(checks: Checks, answer: Any) -> None:
    """Four trainings: one rank, eight ranks, another optimizer, none."""
    require_function(answer)
    look = {
        "parameters": (
            "4 bytes each, and a full copy on every rank: data parallel divides the data, not the model"
        ),
        "gradients": "one FP32 number for each parameter, on every rank",
        "optimizer": "`moments` FP32 numbers for each parameter: Adam 2, momentum 1, plain SGD 0",
        "activations": "bytes of one sample times the samples in one forward pass of this rank",
        "buckets": (
            "DDP copies the gradients into buckets before it sends them; one rank has nobody to send to"
        ),
    }
    cases: tuple[tuple[str, tuple[int, int, int], dict[str, int]], ...] = (
        ("BERT-large, 1 rank", (335_141_888, 2_264_924_160, 4), {}),
        ("BERT-large, 8 ranks", (335_141_888, 2_264_924_160, 4), {"ranks": 8}),
        ("ResNet-50 with momentum, 2 ranks", (25_557_032, 85_900_000, 32), {"moments": 1, "ranks": 2}),
        ("a table with plain SGD, 1 rank", (1_000_000, 4_096, 256), {"moments": 0}),
    )
    for name, arguments, named in cases:
        got = dict_of(answer(*arguments, **named), tuple(look))
        right = _right_memory(*arguments, **named)
        for item in look:
            if not same_integer(got[item], right[item]):
                checks.integer(f"{name}: bytes of {item}", got[item], right[item], look=look[item])
        checks.integer(f"{name}: bytes in all", sum(got.values()), sum(right.values()))


def _right_memory(
    parameters: int, per_sample: int, micro_batch: int, moments: int = 2, ranks: int = 1
) -> dict[str, int]:
    copies = {"parameters": 1, "gradients": 1, "optimizer": moments, "buckets": int(ranks > 1)}
    return {
        **{item: 4 * parameters * times for item, times in copies.items()},
        "activations": per_sample * micro_batch,
    }


class _Clock:
    """A clock that moves only when a part of the step works. Microseconds, as integers."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class _Part:
    """A part that takes a given time at each call and remembers what it was handed."""

    def __init__(self, clock: _Clock, name: str, takes: list[int]) -> None:
        self.clock, self.name, self.takes = clock, name, takes
        self.handed: list[Any] = []

    def __call__(self, *arguments: Any) -> str:
        step = len(self.handed)
        if step >= len(self.takes):
            raise CheckFailed(
                f"{self.name} was called more than {len(self.takes)} times.\nWhere to look: {_ONCE}."
            )
        self.handed.append(arguments[0] if arguments else None)
        self.clock.now += self.takes[step]
        return f"{self.name} of step {step}"


_ONCE = "each part is called once in each of `steps` steps"


@exercise(
    "01-split",
    todo="run the steps, read the clock between the parts, return one dict of data, compute and sync a step",
    hints=(
        "Read the clock four times in a step: before reading, after it, after computing, after "
        "syncing. The result "
        "of read() goes into compute, the result of compute into sync.",
        "began = clock(); batch = read(); have_data = clock(); gradient = compute(batch); "
        "computed = clock(); "
        "sync(gradient); done = clock(); then append the three differences, and return the list "
        "after the loop.",
    ),
)
def split(checks: Checks, answer: Any) -> None:
    """On a clock that only the parts move: calls, microseconds of every part, and what is handed on."""
    require_function(answer)
    takes: dict[str, list[int]] = {
        "data": [9_000, 310, 40_000, 270, 290],
        "compute": [2_100, 700, 650, 810, 5],
        "sync": [400, 12_000, 0, 33, 1_900],
    }
    look = {
        "data": "clock() before read() and after it",
        "compute": "from the moment when the batch is there to the moment when the gradient is there",
        "sync": "from the moment when the gradient is there to the end of sync",
    }
    for steps in (3, 5):
        clock = _Clock()
        read, compute, sync = (_Part(clock, name, takes[name][:steps]) for name in PARTS)
        trace = answer(read, compute, sync, steps, clock)
        for part in (read, compute, sync):
            if trace is not None and trace is not ...:
                checks.integer(f"{steps} steps: calls of {part.name}", len(part.handed), steps, look=_ONCE)
        rows = list_of(trace)
        checks.integer(f"{steps} steps: entries in the trace", len(rows), steps, look="one dict a step")
        for step, row in enumerate(rows):
            parts = dict_of(row, PARTS)
            for name in PARTS:
                right = takes[name][step]
                what = f"{steps} steps: microseconds of {name} in step {step}"
                if not same_integer(parts[name], right):
                    checks.integer(
                        what, parts[name], right, look=look[name] + "; use the clock that is handed in"
                    )
        checks.integer(f"{steps} steps: microseconds in the trace", total_of(rows), clock.now - 1_000_000)
        handed_on = {
            "compute gets what read gave": (compute.handed, read.name),
            "sync gets what compute gave": (sync.handed, compute.name),
        }
        for what, (handed, source) in handed_on.items():
            right_ones = [f"{source} of step {step}" for step in range(steps)]
            if handed != right_ones:
                raise CheckFailed(
                    f"{what}: got {describe(handed[0])} in the first step.\nWhere to look: pass it on."
                )
    checks.true("each part gets what the part before it gave", True)


@exercise(
    "01-speedup",
    todo="return rows per second on n ranks over rows per second on one",
    hints=(
        "Write down the seconds of one step on one rank, then on n ranks. In one step n ranks "
        "train on n times "
        "as many rows.",
        "one = data + compute; many = (n * data if shared else data) + compute + (sync if n > 1 else 0); the "
        "speed-up is n * one / many.",
    ),
    references=(
        "dtlab.cost.scaling.predict_speedup",
        "dtlab.cost.scaling.step_seconds",
        "dtlab.cost.scaling.amdahl",
    ),
)
def speedup(checks: Checks, answer: Any) -> None:
    """Four jobs on 1, 2, 4 and 8 ranks."""
    require_function(answer)
    from dtlab.cost.scaling import predict_speedup

    jobs = {
        "one disk for all": (0.010, 0.001, 0.0005, True),
        "a disk each": (0.010, 0.001, 0.0005, False),
        "much computing, slow network": (0.001, 0.040, 0.020, False),
        "half and half, one disk": (0.020, 0.020, 0.002, True),
    }
    for name, (data, compute, sync, shared) in jobs.items():
        for n in (1, 2, 4, 8):
            right = predict_speedup(data, compute, sync, n, shared)
            ranks = "1 rank" if n == 1 else f"{n} ranks"
            checks.equal(
                f"{name}, {ranks}: speed-up",
                answer(n, data, compute, sync, shared),
                round(right, 6),
                tolerance=1e-3,
                look=_speedup_look(n, shared),
            )
            if n < 8:
                checks.passed.pop()
            else:
                checks.passed[-1] += f" {right:.3f}"


def _speedup_look(n: int, shared: bool) -> str:
    if n == 1:
        return "one rank has nobody to synchronise with, and is exactly as fast as itself"
    disk = (
        "a shared disk serves the ranks one after another" if shared else "with a disk each all read at once"
    )
    return f"n ranks train on n times as many rows in one step; {disk}; sync is paid by more than one rank"
