"""Process 1 of a training container: start the ranks of this host, pass signals on, say why a rank failed.

When a job is stopped, or its spot host taken away, SageMaker sends SIGTERM to process 1 and SIGKILL 120
seconds later. The SDK's process 1 is a shell, which keeps the signal to itself: the ranks train on and die
without a checkpoint. This one passes it to torchrun, which passes it to the ranks (lesson 15).

``python -m dtlab.sagemaker.first_process ENTRY_SCRIPT`` in the unpacked source folder. Standard library only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtlab.errors import UserError
from dtlab.ranks.clusters import Cluster
from dtlab.sagemaker.container import cluster_of, count_cards, network_variables, variables
from dtlab.sagemaker.failure import reason, write_failure

__all__ = ["install_command", "main", "torchrun"]

GRACE_SECONDS = 100  # of the 120 that SageMaker gives; the rest is for the upload
_HOST_PATIENCE = 900.0
_TAIL = 200


class Signals:
    """SIGTERM and the like, noted and passed to the process that runs at the moment."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._child: subprocess.Popen | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._pass_on)

    def run(self, command: Sequence[str], environ: Mapping[str, str], tail: deque[str]) -> int:
        """Run a command to its end; its stderr goes on to ours, and the last lines into ``tail``."""
        if self.received is not None:
            return 128 + self.received
        self._child = child = subprocess.Popen(
            command, env=dict(environ), stderr=subprocess.PIPE, text=True, errors="replace"
        )
        if self.received is not None:  # it came while the child was being started
            child.send_signal(self.received)
        reader = threading.Thread(target=_forward, args=(child, tail), daemon=True)
        reader.start()
        code = child.wait()
        reader.join(timeout=5)
        self._child = None
        return 128 - code if code < 0 else code

    def _pass_on(self, number: int, _frame: object) -> None:
        if number != signal.SIGUSR1:  # which asks for a checkpoint, not for the end
            self.received = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def main(words: Sequence[str]) -> int:
    """Run the job of this host; the exit code of the container."""
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    signals, tail = Signals(), deque[str](maxlen=_TAIL)
    with tempfile.TemporaryDirectory() as scratch:
        error_file = Path(scratch) / "error.json"
        try:
            environ = {**os.environ, **variables(base, os.environ, count_cards())}
            cluster = cluster_of(environ)
            environ |= network_variables(cluster, environ, has_efa=_has_efa())
            environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
            code = _install(signals, environ, tail)
            if code == 0:
                _wait_for_host(cluster.master_addr, signals)
                code = signals.run(torchrun(cluster, words[0], environ), environ, tail)
        except UserError as error:
            print(f"dtlab: {error}", file=sys.stderr, flush=True)
            write_failure(base / "output", str(error))
            return 2
        if signals.received is not None:
            name = signal.Signals(signals.received).name
            print(f"dtlab: stopped by {name}; the ranks have ended", file=sys.stderr, flush=True)
            return 128 + signals.received
        if code:
            where = f"host {cluster.hosts[cluster.node_rank]}: "
            write_failure(base / "output", where + reason(error_file, tail, code))
        return code


def torchrun(cluster: Cluster, entry_script: str, environ: Mapping[str, str]) -> list[str]:
    """The command that starts this host's ranks; hyper-parameters follow as ``--name value``, as SageMaker
    does.

    >>> one = cluster_of({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "b", "SM_NUM_GPUS": "4"})
    >>> torchrun(one, "train.py", {"SM_HPS": '{"lr": 0.1}'})[3:6]
    ['--nnodes=2', '--node-rank=1', '--nproc-per-node=4']
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={cluster.num_nodes}",
        f"--node-rank={cluster.node_rank}",
        f"--nproc-per-node={cluster.ranks_per_host}",
        f"--master-addr={cluster.master_addr}",
        f"--master-port={cluster.master_port}",
        f"--rdzv-id={environ.get('TRAINING_JOB_NAME', 'job')}",
    ]
    if _has_shutdown_timeout():
        command.append(f"--shutdown-timeout={GRACE_SECONDS}")
    command += ["-m", "dtlab.sagemaker.rank_script", entry_script]
    for name, value in json.loads(environ.get("SM_HPS", "{}")).items():
        command += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return command


def _install(signals: Signals, environ: Mapping[str, str], tail: deque[str]) -> int:
    command = install_command(environ)
    return 0 if command is None else signals.run(command, environ, tail)


def install_command(environ: Mapping[str, str]) -> list[str] | None:
    """Install what requirements.txt names; None where it names nothing, or DTLAB_INSTALL=0 forbids it."""
    if environ.get("DTLAB_INSTALL") == "0" or not Path("requirements.txt").is_file():
        return None
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    return [*pip, "-r", "requirements.txt"]


def _wait_for_host(address: str, signals: Signals) -> None:
    """Until the first host has a name: containers of one job start minutes apart.

    Raises:
        UserError: it did not get one.
    """
    until = time.monotonic() + _HOST_PATIENCE
    while signals.received is None:
        try:
            socket.gethostbyname(address)
            return
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(f"host {address}: no address within {_HOST_PATIENCE:g} s ({error})") from None
        time.sleep(1)


def _has_efa() -> bool:
    """Whether this host has an EFA device, which Linux lists as an InfiniBand one."""
    return any(Path("/sys/class/infiniband").glob("rdmap*")) or any(
        Path("/sys/class/infiniband").glob("efa*")
    )


def _has_shutdown_timeout() -> bool:
    """Whether the image's torchrun can be told how long ranks may take to save; asked without importing
    torch."""
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return False
    places = (found.submodule_search_locations or []) if found is not None else []
    files = (Path(place) / "distributed" / "run.py" for place in places)
    return any(file.is_file() and "--shutdown-timeout" in file.read_text("utf-8") for file in files)


def _forward(child: subprocess.Popen, tail: deque[str]) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        sys.stderr.write(line)
        sys.stderr.flush()
        tail.append(line.rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
