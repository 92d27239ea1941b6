"""What every benchmark shares: the machine, paired measurements, and one way to print.

A benchmark measures a few figures and calls :func:`report`. People read a small table; with ``--json`` on the
command line the same figures leave as one flat JSON object on stdout and nothing else is printed there.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Figure = float | int | bool | str | None


def machine() -> str:
    """One line about this machine: processor, cores, memory, Python and torch."""
    import torch

    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    try:
        import psutil

        memory = f", {psutil.virtual_memory().total / 2**30:.0f} GiB"
    except ImportError:
        memory = ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ""
    return (
        f"{name}, {cores} cores{memory}{device}; {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def seconds(call: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def paired_medians(
    a: Callable[[], Any], b: Callable[[], Any], repeats: int = 5, *, warmup: int = 1
) -> tuple[float, float, float]:
    """Seconds of ``a`` and of ``b`` measured in turn, so that a slow minute of the machine hits both.

    Returns ``(median of a, median of b, median of the ratios a/b of each pair)``. The order inside a pair
    alternates. When a call returns a float, that is taken as its seconds instead of the wall time, so that a
    benchmark can leave its own set-up out.

    >>> a, b, ratio = paired_medians(lambda: sum(range(1000)), lambda: sum(range(1000)), repeats=3)
    >>> ratio > 0
    True
    """

    def once(call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        value = call()
        wall = time.perf_counter() - started
        return value if isinstance(value, float) else wall

    for _ in range(warmup):
        once(a)
        once(b)
    times_a: list[float] = []
    times_b: list[float] = []
    for turn in range(repeats):
        if turn % 2 == 0:
            times_a.append(once(a))
            times_b.append(once(b))
        else:
            times_b.append(once(b))
            times_a.append(once(a))
    ratio = statistics.median(x / y for x, y in zip(times_a, times_b, strict=True))
    return statistics.median(times_a), statistics.median(times_b), ratio


def wants_json(argv: Sequence[str] | None = None) -> bool:
    """Whether ``--json`` is on the command line: then keep stdout free of anything else."""
    return "--json" in (sys.argv[1:] if argv is None else argv)


def say(line: str) -> None:
    """Progress for people: on stderr, so that it never mixes with the JSON."""
    print(line, file=sys.stderr, flush=True)


def report(title: str, figures: dict[str, Figure], notes: Sequence[str] = ()) -> None:
    """Print the figures: a table with the notes and the machine, or with ``--json`` one flat JSON object.

    ``notes`` say what was compared with what and which target the figures are held against.
    """
    if wants_json():
        print(json.dumps(figures))
        return
    width = max((len(name) for name in figures), default=0)
    print(title)
    print("-" * len(title))
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"  {name:<{width}}  {shown}")
    for note in notes:
        print(f"  {note}")
    print(f"  machine: {machine()}")
