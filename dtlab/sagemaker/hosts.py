"""Containers played on this machine: a folder like /opt/ml for each host, and its first process (lesson
15)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dtlab.errors import UserError
from dtlab.ranks.environment import loopback_interface
from dtlab.ranks.variables import common

__all__ = ["Container", "make_container", "python", "stop_all", "variables_of_host", "wait_for"]


@dataclass
class Container:
    """One host: ``base`` stands for /opt/ml; ``process`` is its process 1 once it runs."""

    name: str
    base: Path
    log: Path
    process: subprocess.Popen | None = None

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start process 1; it leads a group of its own, so that all of the host can be ended."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(command),
                env=dict(environ),
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """To process 1 alone, as SageMaker does."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the host at once, with all of its processes, as when its machine is taken away."""
        if self.process is None:
            return
        family: list[psutil.Process] = []
        with suppress(
            psutil.Error
        ):  # the ranks have sessions of their own: a signal to the group misses them
            first = psutil.Process(self.process.pid)
            first.suspend()  # it starts no more while it is counted
            family = [*first.children(recursive=True), first]
        for process in reversed(family):
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()  # before psutil waits: it would take the exit code
        psutil.wait_procs(family, timeout=10)

    def last_lines(self, count: int = 12) -> str:
        """The end of what the host wrote."""
        with suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-count:])
        return ""


def make_container(
    base: Path,
    name: str,
    hosts: Sequence[str],
    *,
    instance_type: str,
    hyperparameters: Mapping[str, str],
    channels: Mapping[str, Path],
) -> Container:
    """Lay out a container's folders and the files that SageMaker writes into them.

    Args:
        base: stands for /opt/ml; made.
        name: of this host, such as ``"algo-1"``.
        hosts: all of the job's.
        instance_type: that the container is told.
        hyperparameters: texts.
        channels: name -> folder whose content is found under input/data/<name>.
    """
    for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    group = {
        "instance_group_name": "homogeneousCluster",
        "instance_type": instance_type,
        "hosts": list(hosts),
    }
    resources = {
        "current_host": name,
        "current_instance_type": instance_type,
        "current_group_name": "homogeneousCluster",
        "hosts": list(hosts),
        "instance_groups": [group],
        "network_interface_name": loopback_interface() or "lo",
    }
    about = {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    files: dict[str, Any] = {
        "resourceconfig": resources,
        "hyperparameters": dict(hyperparameters),
        "inputdataconfig": dict.fromkeys(channels, about),
    }
    for file, content in files.items():
        (base / "input/config" / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    for channel, content_folder in channels.items():
        shutil.copytree(content_folder, base / "input/data" / channel, copy_function=_link)
    return Container(name, base, base.parent / f"{name}.log")


def variables_of_host(
    container: Container, given: Mapping[str, str], *, job: str, port: int
) -> dict[str, str]:
    """What the platform and the job set in a container, for hosts that are all this machine without a
    card."""
    here = {
        "SAGEMAKER_BASE_DIR": str(container.base),
        "TRAINING_JOB_NAME": job,
        "SM_MASTER_ADDR": "127.0.0.1",
        "SM_MASTER_PORT": str(port),
        "SM_NUM_GPUS": "0",
        "DTLAB_INSTALL": "0",
        "DTLAB_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    kept = {name: value for name, value in common(None, None).items() if name != "PYTHONPATH"}
    return {**kept, **given, **here}


def wait_for(containers: Sequence[Container], timeout: float, done: Any = None) -> list[int]:
    """Wait until all hosts have ended, or ``done()`` is true; their exit codes, as far as they have any.

    Raises:
        UserError: the time is over; the last lines of the hosts come with it.
    """
    until = time.monotonic() + timeout
    while True:
        codes = [container.process.poll() for container in containers if container.process is not None]
        if all(code is not None for code in codes) or (done is not None and done()):
            return [code for code in codes if code is not None]
        if time.monotonic() > until:
            tails = " | ".join(f"{one.name}: {one.last_lines(3)}" for one in containers)
            raise UserError(f"timeout = {timeout:g}: the hosts have not ended ({tails}); give more seconds")
        time.sleep(0.05)


def stop_all(containers: Sequence[Container]) -> None:
    """End what still runs."""
    for container in containers:
        container.kill()


def python(command: Sequence[str]) -> list[str]:
    """``command`` with this Python in the place of the image's ``python3``."""
    return [sys.executable if word == "python3" else word for word in command]


def _link(source: str, target: str) -> None:
    """A hard link where the disk allows one: every host has the whole channel."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
