"""Start ranks as a user would without dtlab.launch: torchrun, or processes with variables set by hand."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
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
    code: int
    out: str
    err: str


def write(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    return path


def run_ranks(
    script: Path, environs: list[dict[str, str]], limit: float = 60.0, wait_for: int | None = None
) -> list[Ended]:
    """One process per environment, all at once; one that outlives ``limit`` seconds fails the test.

    With ``wait_for`` only that many are waited for; the rest, which sleep, are killed then.
    """
    running = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=clean_environ(**environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environ in environs
    ]
    ended = []
    try:
        for process in running[:wait_for]:
            out, err = process.communicate(timeout=limit)
            ended.append(Ended(process.returncode, out, err))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return ended


def torchrun(script: Path, nproc: int = 2, limit: float = 90.0, **variables: str) -> Ended:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nproc}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(script)]
    done = subprocess.run(
        command, env=clean_environ(**variables), capture_output=True, text=True, timeout=limit, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)
