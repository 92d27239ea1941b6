"""How fast is launching two ranks from a running process, beside ``torchrun`` and spawn?

Each way does the same work: two gloo ranks, a process group, one all-reduce, and the result in the hands of
the caller. ``python -m benchmarks.launch`` prints a table, ``--json`` one object with the figures
``warm_seconds, cold_seconds, torchrun_over_warm, spawn_over_warm, error_seconds``.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import report, say, seconds

WARM = 15
SLOW = 3

# What a new process pays from its first line to its first result, torch's import included.
_COLD = """
import time
start = time.perf_counter()
import dtlab
from benchmarks.launch import add_up
assert list(dtlab.launch(add_up, 2, echo=False)) == [1.0, 1.0]
print(time.perf_counter() - start)
"""


def add_up() -> float:
    """The work: rank 0 + rank 1 by an all-reduce. Plain torch, so that every launcher can run it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()


def fail() -> None:
    """Rank 1 raises while rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("bad learning rate")
    dist.all_reduce(torch.ones(1))


def launched() -> None:
    import dtlab

    assert list(dtlab.launch(add_up, 2, echo=False)) == [1.0, 1.0]


def torchrun() -> None:
    """``torchrun`` of this file; rank 0 leaves the result in a file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result"
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "-m", "benchmarks.launch", "--worker", str(out)],
            check=True, capture_output=True,
        )  # fmt: skip
        assert float(out.read_text()) == 1.0


def _spawned(rank: int, port: int, out: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    value = add_up()
    if rank == 0:
        Path(out).write_text(str(value))


def torch_spawn() -> None:
    """``torch.multiprocessing.spawn``, the usual way from Python."""
    import socket

    import torch.multiprocessing as mp

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result"
        mp.spawn(_spawned, (port, str(out)), nprocs=2)
        assert float(out.read_text()) == 1.0


def error_seconds() -> float:
    """Seconds from the call to the RankError of a rank that raises at once."""
    import dtlab

    start = time.perf_counter()
    try:
        dtlab.launch(fail, 2, echo=False)
    except dtlab.RankError as error:
        if error.rank != 1:
            raise
        return time.perf_counter() - start
    raise AssertionError("the failing rank was not noticed")


def cold_seconds() -> float:
    """A fresh interpreter's first launch."""
    done = subprocess.run([sys.executable, "-c", _COLD], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    say("cold starts ...")
    cold = statistics.median(cold_seconds() for _ in range(SLOW))
    launched()  # starts the server
    time.sleep(3)  # it loads the rest of torch once nobody waits
    say("warm, torchrun and spawn in turn ...")
    warm: list[float] = []
    runs: list[float] = []
    spawns: list[float] = []
    for _ in range(SLOW):
        warm += [seconds(launched) for _ in range(WARM // SLOW)]
        runs.append(seconds(torchrun))
        spawns.append(seconds(torch_spawn))
    errors = statistics.median(error_seconds() for _ in range(5))
    middle = statistics.median(warm)
    report(
        "Two ranks, one all-reduce, the result back",
        {
            "warm_seconds": middle,
            "cold_seconds": cold,
            "torchrun_over_warm": statistics.median(runs) / middle,
            "spawn_over_warm": statistics.median(spawns) / middle,
            "error_seconds": errors,
        },
        [
            f"warm: median of {len(warm)} calls of dtlab.launch from one process (target 0.15 s)",
            f"cold: first call in a new interpreter, imports included, median of {SLOW} (target 3 s)",
            f"torchrun: {statistics.median(runs):.2f} s, torch.multiprocessing.spawn: "
            f"{statistics.median(spawns):.2f} s, in turn with the warm calls (target 10 times)",
            "error: from the call to a RankError that names the rank (target 1.5 s)",
        ],
    )


if __name__ == "__main__":
    if "--worker" in sys.argv:
        result = add_up()
        if os.environ["RANK"] == "0":
            Path(sys.argv[-1]).write_text(str(result))
    else:
        main()
