"""A job on this machine, without docker and without AWS: what would happen in the containers (lesson 15).

Three attempts of the same job on small data, on hosts that are folders and processes here:

1. from beginning to end;
2. stopped, as when spot hosts are taken away, after the first checkpoint;
3. gone on with from what S3 would hold: new hosts, the checkpoints of the old ones.

The weights of 1 and 3 must be equal to the bit. The folders are those of /opt/ml, the files under
input/config those of SageMaker, the code is unpacked from the archive that would be uploaded, and the
command is the request's. Not rehearsed: the image with its packages, pip, NCCL, the network between hosts,
and AWS.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dtlab.errors import UserError
from dtlab.files import require_writable_folder
from dtlab.sagemaker import drivers
from dtlab.sagemaker.hosts import Container, make_container, stop_all, variables_of_host, wait_for
from dtlab.sagemaker.hyperparameters import encode
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.request import environment
from dtlab.sagemaker.small_data import write_clicks
from dtlab.sagemaker.source import check_source, pack

__all__ = ["Rehearsed", "rehearse"]

Driver = Literal["dtlab", "sdk"]
_RECORDS = ("record.jsonl", "job.json")
_WEIGHTS = (".safetensors",)


@dataclass(frozen=True)
class Rehearsed:
    """What came out.

    Attributes:
        job, driver: what was rehearsed, and who started the ranks: dtlab's first process or the SDK's driver.
        world_size, hosts, ranks_per_host: of the rehearsal.
        model_files: found in /opt/ml/model of the first host, which SageMaker packs.
        resumed_bit_equal: weights of the attempt that was stopped and went on equal those of the whole one.
        seconds_to_checkpoint: from SIGTERM until a checkpoint was whole; None: none was written after it.
        seconds_to_end: from SIGTERM until all hosts had ended; SageMaker waits for 120.
        exit_codes: of the stopped hosts; 143 says that they ended by SIGTERM.
        seconds: of the whole rehearsal.
    """

    job: str
    driver: Driver
    world_size: int
    hosts: int
    ranks_per_host: int
    model_files: tuple[str, ...]
    resumed_bit_equal: bool
    seconds_to_checkpoint: float | None
    seconds_to_end: float
    exit_codes: tuple[int, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the job may be sent: it left a model, and a stop cost nothing."""
        saved = self.seconds_to_checkpoint is not None or self.driver == "sdk"
        return bool(self.model_files) and self.resumed_bit_equal and saved

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "model_files": list(self.model_files), "passed": self.passed}


def rehearse(
    job: TrainingJob,
    *,
    driver: Driver = "dtlab",
    folder: Path | None = None,
    timeout: float = 300.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Rehearsed:
    """Run the job three times on this machine, and compare.

    Args:
        job: as read from its file; its table ``rehearsal`` makes it small.
        driver: "dtlab": the first process that the request names. "sdk": the SageMaker SDK's torchrun driver,
            which needs the SDK; its hosts are killed, since it passes no SIGTERM on.
        folder: where the hosts' folders are made and stay; default: a temporary one that goes.
        timeout: seconds for each attempt.
        tell: called with a line as each attempt begins.

    Raises:
        UserError: the entry script is missing, an attempt failed (with what its rank said), it ended before
            it could be stopped, it takes longer than ``timeout``.
    """
    check_source(job.source.folder, job.source.entry_script)
    for name, place in job.rehearsal.channels.items():
        if name not in job.channels:
            raise UserError(f"rehearsal.channels.{name}: the job has no such channel; name it in [channels]")
        if not place.is_dir():
            raise UserError(
                f"rehearsal.channels.{name} = {str(place)!r}: no such folder ({place.absolute()})"
            )
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="dtlab-rehearsal-") as scratch:
            return _Stage(job, driver, Path(scratch), timeout, tell).play()
    require_writable_folder(folder, "folder")
    folder.mkdir(parents=True, exist_ok=True)
    return _Stage(job, driver, folder.resolve(), timeout, tell).play()


class _Stage:
    """The hosts of all three attempts, and what lies ready for them."""

    def __init__(
        self, job: TrainingJob, driver: Driver, root: Path, timeout: float, tell: Callable[[str], None]
    ) -> None:
        self.job = modern(job)[0]
        self.driver, self.root, self.timeout, self.tell = driver, root, timeout, tell
        plan = job.rehearsal
        many = min(2, job.compute.instance_count)
        self.hosts = [f"algo-{number + 1}" for number in range(plan.hosts or many)]
        self.ranks = plan.ranks_per_host
        stages = self.job.layout.stages
        if (self.ranks * len(self.hosts)) % stages:
            raise UserError(
                f"rehearsal.ranks_per_host = {self.ranks}: {len(self.hosts)} hosts x {self.ranks} ranks "
                "cannot be "
                f"cut into {stages} stages; choose a multiple"
            )
        self.s3 = root / "s3"

    def play(self) -> Rehearsed:
        began = time.monotonic()
        if self.job.layout.launcher == "mpi":
            self.tell("the job starts its ranks by mpirun; here torchrun does")
        channels = self._channels()
        self.tell(f"{len(self.hosts)} hosts x {self.ranks} ranks, from beginning to end")
        whole = self._attempt("whole", channels)
        self.tell("again, stopped after its first checkpoint")
        stopped, seconds, saved, codes = self._stopped_attempt(channels)
        self._sync(stopped)
        self.tell("gone on with from the checkpoints")
        resumed = self._attempt("resumed", channels)
        return Rehearsed(
            job=self.job.name,
            driver=self.driver,
            world_size=self.ranks * len(self.hosts),
            hosts=len(self.hosts),
            ranks_per_host=self.ranks,
            model_files=tuple(_files(whole[0].base / "model")),
            resumed_bit_equal=_same_weights(whole[0].base / "model", resumed[0].base / "model"),
            seconds_to_checkpoint=saved,
            seconds_to_end=round(seconds, 2),
            exit_codes=tuple(codes),
            seconds=round(time.monotonic() - began, 1),
        )

    def _attempt(self, name: str, channels: Mapping[str, Path]) -> list[Container]:
        """Run to the end; every host must end well."""
        containers = self._start(name, channels)
        try:
            codes = wait_for(containers, self.timeout)
        finally:
            stop_all(containers)
        if any(codes):
            raise UserError(f"{name} attempt: {_failure(containers, codes)}")
        return containers

    def _stopped_attempt(
        self, channels: Mapping[str, Path]
    ) -> tuple[list[Container], float, float | None, list[int]]:
        containers = self._start("stopped", channels)
        first = containers[0].base / "checkpoints"
        try:
            codes = wait_for(containers, self.timeout, lambda: bool(_saves(first)))
            if codes:
                code = any(codes)
                if code and len(codes) == len(containers):
                    raise UserError(f"stopped attempt: {_failure(containers, codes)}")
                raise UserError(
                    "stopped attempt: the job ended before its first checkpoint could be seen; let it save "
                    "earlier, "
                    "or give rehearsal.hyperparameters that make it longer"
                )
            before, at, clock = _saves(first), time.monotonic(), time.time()
            for container in containers:
                if self.driver == "sdk":
                    container.kill()
                else:
                    container.signal(signal.SIGTERM)
            codes = wait_for(containers, self.timeout)
            seconds = time.monotonic() - at
        finally:
            stop_all(containers)
        if not any(codes):
            raise UserError(
                "stopped attempt: the job ended before it could be stopped; give rehearsal.hyperparameters "
                "that "
                "make it longer"
            )
        new = [(first / name).stat().st_mtime for name in _saves(first) - before]
        return containers, seconds, round(max(new) - clock, 2) if new else None, codes

    def _start(self, name: str, channels: Mapping[str, Path]) -> list[Container]:
        parameters = encode({**self.job.hyperparameters, **self.job.rehearsal.hyperparameters})
        kind, place = self.job.compute.instance_type, self.root / name
        if place.exists():
            shutil.rmtree(place)
        port = free_port()
        containers = []
        for host in self.hosts:
            container = make_container(
                place / host,
                host,
                self.hosts,
                instance_type=kind,
                hyperparameters=parameters,
                channels=channels,
            )
            if name == "resumed":  # what SageMaker restores before it starts the container
                shutil.copytree(self.s3, container.base / "checkpoints", dirs_exist_ok=True)
            containers.append(container)
        given = {**environment(self.job), "DTLAB_RANKS_PER_HOST": str(self.ranks)}
        try:
            for container in containers:
                environ = variables_of_host(container, given, job=f"{self.job.name}-rehearsal", port=port)
                command, environ = drivers.command(
                    self.driver, container.base, environ, self.job.source.entry_script
                )
                container.start(command, environ)
        except BaseException:
            stop_all(containers)
            raise
        return containers

    def _channels(self) -> dict[str, Path]:
        """The code as it would be uploaded, and small data for each of the job's channels."""
        code = self.root / "code"
        code.mkdir(parents=True, exist_ok=True)
        pack(self.job.source.folder, code / "source.tar.gz")
        shutil.copyfile(Path(__file__).with_name("bootstrap.py"), code / "bootstrap.py")
        found = {"code": code}
        for name in self.job.channels:
            own = self.job.rehearsal.channels.get(name)
            if own is not None:
                found[name] = own
                continue
            found[name] = self.root / "data" / name
            write_clicks(found[name], self.job.rehearsal.rows)
        return found

    def _sync(self, containers: list[Container]) -> None:
        """What S3 holds after the hosts are gone: the checkpoint folders of all of them in one."""
        for container in containers:
            shutil.copytree(container.base / "checkpoints", self.s3, dirs_exist_ok=True)


def _saves(folder: Path) -> set[str]:
    """The complete checkpoints: entries without a leading dot, records aside, in the folder or one or two
    below."""
    found = set()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and path.name not in _RECORDS and not any(part.startswith(".") for part in parts):
            found.add(str(path.parent.relative_to(folder)))
    return found


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _same_weights(one: Path, other: Path) -> bool:
    """Whether both hold the same weights, bit for bit; without safetensors all files count."""
    names = _files(one)
    weights = [name for name in names if name.endswith(_WEIGHTS)] or names
    return bool(weights) and all(
        (other / name).is_file() and _digest(one / name) == _digest(other / name) for name in weights
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _failure(containers: list[Container], codes: list[int]) -> str:
    """The words of the rank that failed, as SageMaker would show them; else the end of a host's output."""
    told = []
    for container, code in zip(containers, codes, strict=False):
        file = container.base / "output" / "failure"
        if file.is_file():
            told.append(file.read_text("utf-8").splitlines()[0])
        elif code:
            told.append(f"{container.name} ended with {code}: {container.last_lines(4)}")
    # A rank that only lost its peer has nothing to say.
    lost = ("Connection", "connection", "LateRank", "torchrun ended")
    own = [line for line in told if not any(word in line for word in lost)]
    return (own or told or ["no host said why"])[0]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
