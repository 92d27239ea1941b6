"""Start ranks as a user would without dtlab.launch: torchrun, or processes with variables set by hand."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import socket
import subprocess
import sys
import textwrap
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

LAUNCHERS = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TORCHELASTIC_|OMPI_|PMI|SLURM_|SM_|DTLAB_|GLOO_|NCCL_)"
)


def clean_environ(**variables: str) -> dict[str, str]:
    """This process's environment without any launcher's variables, one thread per rank."""
    environ = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
    return {**environ, "OMP_NUM_THREADS": "1", **variables}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def by_hand(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }


@dataclass
class Ended:
    code: int | None
    out: str
    err: str


def write(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    return path


def _run(script: str, environ: dict[str, str], out: str, err: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    for path, number in ((out, 1), (err, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def run_ranks(
    script: Path, environs: list[dict[str, str]], limit: float = 60.0, wait_for: int | None = None
) -> list[Ended]:
    """One process per environment, all at once; one that outlives ``limit`` seconds fails the test.

    The processes come from a server that has loaded torch, which saves seconds of import each. With
    ``wait_for`` only that many are waited for; the rest, which sleep, are killed then.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "dtlab.ranks.worlds"])
    files = [(f"{script}.{i}.out", f"{script}.{i}.err") for i in range(len(environs))]
    running = [
        context.Process(target=_run, args=(str(script), clean_environ(**environ), *names))
        for environ, names in zip(environs, files, strict=True)
    ]
    for process in running:
        process.start()
    deadline = time.monotonic() + limit
    try:
        for process in running[:wait_for]:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        codes = [process.exitcode for process in running]
        for process in running:
            process.kill()
            process.join()
    ended = [
        Ended(code, Path(out).read_text(), Path(err).read_text())
        for code, (out, err) in zip(codes, files, strict=True)
    ][:wait_for]
    for one in ended:
        assert one.code is not None, f"still running after {limit} s:\n{one.out}\n{one.err}"
    return ended


def torchrun(script: Path, nproc: int = 2, limit: float = 90.0, **variables: str) -> Ended:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nproc}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(script)]
    done = subprocess.run(
        command, env=clean_environ(**variables), capture_output=True, text=True, timeout=limit, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)
