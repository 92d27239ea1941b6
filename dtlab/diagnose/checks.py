"""The questions that ``dtlab doctor`` asks, each a small function that answers with lines.

A line is OK, WARN (works, but slower or less than it could) or FAIL (a run will break), and names the fix.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dtlab.errors import UserError
from dtlab.ranks.host_memory import container_limit

GiB = 2**30
OK, WARN, FAIL = "OK", "WARN", "FAIL"


@dataclass(frozen=True)
class Line:
    """One finding: its status, what was looked at, what was found, and the fix when it is not OK."""

    status: str
    name: str
    value: str
    fix: str = ""


def python() -> list[Line]:
    version = platform.python_version()
    if sys.platform == "win32":
        return [Line(FAIL, "Python", f"{version} on Windows", "use WSL, Linux or macOS")]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return [Line(FAIL, "Python", version, "use Python 3.11, 3.12 or 3.13 (make lab makes a .venv)")]
    return [Line(OK, "Python", f"{version} on {platform.system()} {platform.machine()}")]


def torch_build() -> list[Line]:
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        return [Line(FAIL, "torch", f"{type(error).__name__}: {error}", "pip install 'torch>=2.9'")]
    lines = []
    number = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    fix = "" if number >= (2, 9) else "pip install 'torch>=2.9'"
    lines.append(Line(FAIL if fix else OK, "torch", f"{torch.__version__}, {build}", fix))
    backends = [
        name
        for name, there in (
            ("gloo", dist.is_available() and dist.is_gloo_available()),
            ("nccl", dist.is_available() and dist.is_nccl_available()),
            ("mpi", dist.is_available() and dist.is_mpi_available()),
        )
        if there
    ]
    fix = "" if "gloo" in backends else "install torch from its own index: this build has no gloo"
    lines.append(Line(FAIL if fix else OK, "backends", ", ".join(backends) or "none", fix))
    return lines


def cuda() -> list[Line]:
    import torch

    if torch.version.cuda is None:
        if shutil.which("nvidia-smi"):
            fix = "install a CUDA build of torch to use the card: see pytorch.org/get-started"
            return [Line(WARN, "CUDA", "there is an NVIDIA driver, but torch is a CPU build", fix)]
        return [Line(OK, "CUDA", "none: ranks run on the CPU with gloo")]
    if not torch.cuda.is_available():
        fix = f"update the NVIDIA driver to one for CUDA {torch.version.cuda}, or use a CPU build of torch"
        return [Line(WARN, "CUDA", f"torch is built for {torch.version.cuda} but sees no card", fix)]
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = ", ".join(f"{card.name} {card.total_memory / GiB:.1f} GiB" for card in cards)
    return [Line(OK, "CUDA", f"{torch.version.cuda}, {len(cards)} card(s): {names}"), *_nccl()]


def _nccl() -> list[Line]:
    import torch

    try:
        built = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        return [Line(FAIL, "NCCL", f"{type(error).__name__}: {error}", "install a CUDA build with NCCL")]
    return nccl_match(built, torch.version.cuda or "", _installed("nvidia-nccl-"))


def nccl_match(used: str, cuda_version: str, installed: Mapping[str, str]) -> list[Line]:
    """Compare the NCCL that torch uses with the installed NCCL wheels.

    Args:
        used: what ``torch.cuda.nccl.version()`` says, as ``"2.27.3"``.
        cuda_version: CUDA version of the torch build, as ``"12.8"``.
        installed: name and version of every installed ``nvidia-nccl-*`` wheel.
    """
    wanted = f"nvidia-nccl-cu{cuda_version.split('.')[0]}"
    # A wheel of another CUDA writes the same file, so whichever was installed last is loaded.
    other = {name: version for name, version in installed.items() if name != wanted}
    if other:
        listed = ", ".join(f"{name} {version}" for name, version in other.items())
        fix = f"pip uninstall {' '.join(other)} and reinstall torch: it is built for CUDA {cuda_version}"
        return [Line(FAIL, "NCCL", f"torch uses {used}, but {listed} is installed as well", fix)]
    wheel = installed.get(wanted)
    if wheel is not None and wheel.split(".")[:3] != used.split(".")[:3]:
        fix = "reinstall torch with its own dependencies: pip install --force-reinstall torch"
        return [Line(FAIL, "NCCL", f"torch uses {used}, the wheel {wanted} is {wheel}", fix)]
    origin = "as installed by its wheel" if wheel else "linked into torch"
    return [Line(OK, "NCCL", f"{used}, {origin}")]


def _installed(prefix: str) -> dict[str, str]:
    found = {}
    for one in importlib.metadata.distributions():
        name = str(one.metadata["Name"] or "").lower()
        if name.startswith(prefix):
            found[name] = one.version
    return found


def cores() -> list[Line]:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count < 2:
        return [Line(WARN, "cores", str(count), "ranks share it: results are right, speed-ups cannot show")]
    return [Line(OK, "cores", f"{count} usable")]


def memory() -> list[Line]:
    system = psutil.virtual_memory()
    limit = container_limit()
    total = min(system.total, limit) if limit else system.total
    where = " (limit of the container)" if limit and limit < system.total else ""
    value = f"{total / GiB:.1f} GiB{where}, {min(system.available, total) / GiB:.1f} GiB free"
    if min(system.available, total) < 2 * GiB:
        return [Line(WARN, "memory", value, "close other programs: a lesson with 4 ranks needs about 2 GiB")]
    return [Line(OK, "memory", value)]


def shared_memory(path: str = "/dev/shm") -> list[Line]:
    """Loader workers hand batches over through shared memory; containers often have 64 MiB of it."""
    if not Path(path).is_dir():
        status = WARN if sys.platform == "linux" else OK
        return [Line(status, path, "not there", "mount a tmpfs there" if status == WARN else "")]
    if not os.access(path, os.W_OK):
        fix = "loader workers need it: mount a tmpfs there, or use none (num_workers=0); ranks do without"
        return [Line(WARN, path, "cannot be written", fix)]
    free = shutil.disk_usage(path).free
    if free < 256 * 2**20:
        fix = "start the container with --shm-size=1g or --ipc=host, or use no loader workers"
        return [Line(WARN, path, f"{free / 2**20:.0f} MiB free", fix)]
    return [Line(OK, path, f"{free / GiB:.1f} GiB free")]


def open_files() -> list[Line]:
    try:
        import resource
    except ImportError:
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < 1024:
        fix = f"ulimit -n 4096 (the hard limit is {'unlimited' if hard == resource.RLIM_INFINITY else hard})"
        return [Line(WARN, "open files", f"limit {shown}", fix)]
    return [Line(OK, "open files", f"limit {shown}")]


def network() -> list[Line]:
    from dtlab.ranks.environment import loopback_interface

    name = loopback_interface()
    if name is None:
        fix = "bring the loopback interface up: ip link set lo up"
        return [Line(FAIL, "loopback", "no interface holds 127.0.0.1", fix)]
    lines = [Line(OK, "loopback", f"127.0.0.1 on {name}")]
    held: list[socket.socket] = []
    try:
        for _ in range(8):
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            held.append(one)
        lines.append(Line(OK, "free ports", "the system hands out ports on 127.0.0.1"))
    except OSError as error:
        fix = "end programs that hold many ports (ss -ltn), or widen net.ipv4.ip_local_port_range"
        lines.append(Line(FAIL, "free ports", str(error), fix))
    finally:
        for one in held:
            one.close()
    if not _port_is_free(29500):
        fix = "torchrun jobs there need another --master-port; dtlab chooses a free port itself"
        lines.append(Line(WARN, "port 29500", "in use (torchrun's default)", fix))
    return lines


def _port_is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def notebook() -> list[Line]:
    """JupyterLab and the two halves of ipywidgets, which must be of one generation."""
    lines = []
    for name, least in (("jupyterlab", 4), ("ipykernel", 6), ("ipywidgets", 8), ("jupyterlab_widgets", 3)):
        version = _version(name)
        if version is None:
            lines.append(Line(WARN, name, "not installed", "pip install 'dtlab[lab]' (the lessons need it)"))
        elif int(version.split(".")[0]) < least:
            fix = (
                f"pip install --upgrade {name}: ipywidgets 8 goes with jupyterlab_widgets 3 and JupyterLab 4"
            )
            lines.append(Line(WARN, name, version, fix))
        else:
            lines.append(Line(OK, name, version))
    return lines


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def launcher(environ: Mapping[str, str]) -> list[Line]:
    """What the variables of torchrun, MPI, Slurm or SageMaker say together."""
    from dtlab.ranks.clusters import sagemaker_cluster
    from dtlab.ranks.environment import detect

    lines = []
    try:
        cluster = sagemaker_cluster(environ)
    except UserError as error:
        return [Line(FAIL, "SageMaker", str(error), "look at resourceconfig.json of the container")]
    if cluster is not None:
        lines.append(
            Line(
                OK,
                "SageMaker",
                f"{cluster.num_nodes} host(s) x {cluster.ranks_per_host} rank(s) = {cluster.world_size}, "
                f"this is host {cluster.node_rank}, master {cluster.master_addr}:{cluster.master_port}",
            )
        )
    else:
        lines.append(Line(OK, "SageMaker", "not in a training container"))
    try:
        m = detect(environ)
    except UserError as error:
        what, _, fix = str(error).partition(" Fix: ")
        return [*lines, Line(FAIL, "launcher", what.rstrip("."), fix or "unset the variables")]
    if m.launcher == "none":
        return [*lines, Line(OK, "launcher", "none: this process is a world of one")]
    value = f"{m.launcher}: rank {m.rank} of {m.size}"
    if m.notes:
        return [*lines, Line(WARN, "launcher", f"{value}; {'; '.join(m.notes)}", "start one rank per GPU")]
    return [*lines, Line(OK, "launcher", value)]


def disk(folder: str | Path = ".") -> list[Line]:
    """Room and rights for run records, here and in the temporary folder."""
    lines = []
    for name, path in (("this folder", Path(folder)), ("temporary folder", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(path).free / GiB
        if not os.access(path, os.W_OK):
            lines.append(Line(WARN, name, "not writable", f"not {path}: run where you may write"))
        elif free < 1:
            lines.append(Line(WARN, name, f"{free:.1f} GiB free", "data and runs need about 1 GiB"))
        else:
            lines.append(Line(OK, name, f"{free:.0f} GiB free"))
    return lines


def all_static(environ: Mapping[str, str]) -> list[Line]:
    """Every check that starts no process, in the order of the report."""
    lines = [*python(), *torch_build()]
    if not any(line.status == FAIL and line.name == "torch" for line in lines):
        lines += cuda()
    lines += [*cores(), *memory(), *shared_memory(), *open_files(), *disk(), *network(), *notebook()]
    return lines + launcher(environ)


def as_dict(line: Line) -> dict[str, Any]:
    return {"status": line.status, "name": line.name, "value": line.value, "fix": line.fix}
