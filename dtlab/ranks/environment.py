"""Who am I among the ranks: variables of dtlab, torchrun, MPI, Slurm and SageMaker, read as a whole (lesson 02).

- ``detect(environ)`` is pure: a mapping in, a ``Membership`` out. Whatever is missing or contradictory comes in
  one error, not one variable per failed run.
- The innermost launcher wins: torchrun or dtlab started by a Slurm or MPI task sets its own variables and the
  outer ones then speak of the task, not of the rank.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from dtlab.errors import UserError
from dtlab.ranks.clusters import sagemaker_cluster, slurm_first_host, slurm_tasks_per_node

FOUR = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOW = "start it with dtlab.launch or torchrun, which set them all"


@dataclass(frozen=True)
class Membership:
    """What the environment says about this process.

    Attributes:
        rank, size: rank and world size.
        local_rank, local_size: rank among the ranks of this host and their number; None when nobody said
            (the join then counts host names).
        node_rank, num_nodes: this host's index and the number of hosts; None when nobody said.
        launcher: ``"dtlab"``, ``"torchrun"``, ``"mpi"``, ``"slurm"``, ``"sagemaker"``, ``"env"`` (RANK and
            WORLD_SIZE set by hand or by something else) or ``"none"``.
        master_addr, master_port: where the rendezvous store is, or None.
        agent_store: the launcher already keeps the store there; otherwise rank 0 does.
        job: names this launch and attempt; part of every key in the store.
        interface: network interface to use, when the platform names one.
        origin: the variable that each of ``rank`` and ``size`` was read from.
        notes: what deserves a warning but is no error.
    """

    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    local_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    launcher: str = "none"
    master_addr: str | None = None
    master_port: int | None = None
    agent_store: bool = False
    job: str = ""
    interface: str | None = None
    origin: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to run on this host."""
        return self.size == 1 or self.num_nodes == 1 or is_loopback(self.master_addr)


def loopback_interface() -> str | None:
    """Name of the network interface that holds 127.0.0.1 (``lo`` on Linux, ``lo0`` on macOS), or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return None


def is_loopback(address: str | None) -> bool:
    """Whether an address means this host and nothing else."""
    return address is not None and (address in ("localhost", "::1") or address.startswith("127."))


class _Reader:
    """Reads variables and collects every complaint instead of stopping at the first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def text(self, *names: str, required: bool = False) -> str | None:
        for name in names:
            if self.environ.get(name, "").strip():
                return self.environ[name].strip()
        if required:
            self.missing.append(names[0])
        return None

    def integer(self, *names: str, required: bool = False, least: int = 0) -> int | None:
        name = next((n for n in names if self.environ.get(n, "").strip()), None)
        if name is None:
            if required:
                self.missing.append(names[0])
            return None
        try:
            value = int(self.environ[name])
        except ValueError:
            self.wrong.append(f"{name}={self.environ[name]!r} is not a whole number")
            return None
        if value < least:
            self.wrong.append(f"{name}={value} is less than {least}")
            return None
        return value

    def same(self, pairs: Mapping[str, str]) -> None:
        """Two names for one thing must not contradict each other."""
        for name, other in pairs.items():
            mine, theirs = self.integer(name), self.integer(other)
            if mine is not None and theirs is not None and mine != theirs:
                self.wrong.append(f"{name}={mine} contradicts {other}={theirs}")

    def check(self, m: Membership) -> Membership:
        rank, size = m.origin.get("rank", "RANK"), m.origin.get("size", "WORLD_SIZE")
        readable = not {rank, size} & set(self.missing)
        if readable and not self.wrong and m.rank >= m.size:
            self.wrong.append(f"rank {m.rank} is not < world size {m.size} ({rank}={m.rank}, {size}={m.size})")
        if m.local_size is not None and readable and not self.wrong:
            if m.local_size > m.size:
                self.wrong.append(f"{m.local_size} ranks on this host are more than world size {m.size}")
            if m.local_rank is not None and m.local_rank >= m.local_size:
                self.wrong.append(f"local rank {m.local_rank} is not < local world size {m.local_size}")
        if m.node_rank is not None and m.num_nodes is not None and m.node_rank >= m.num_nodes:
            self.wrong.append(f"node rank {m.node_rank} is not < number of nodes {m.num_nodes}")
        if m.master_port is not None and m.master_port > 65535:
            self.wrong.append(f"MASTER_PORT={m.master_port} is not a port (1 to 65535)")
        problems = list(dict.fromkeys(self.wrong))  # a variable that is read twice complains once
        if self.missing:
            problems.insert(0, "missing: " + ", ".join(dict.fromkeys(self.missing)))
        if problems:
            raise UserError(f"cannot tell this process's rank: {'; '.join(problems)}. Fix: {_HOW}")
        return m


def detect(environ: Mapping[str, str], *, distributed: bool = False) -> Membership:
    """Find out which rank this process is.

    Args:
        environ: variables, usually ``os.environ``.
        distributed: insist on a launcher: with none, it is an error that lists the missing variables.

    Raises:
        UserError: one line that lists everything missing and every contradiction.

    Example:
        >>> detect({}).launcher
        'none'
        >>> m = detect({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
        ...             "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
        >>> m.rank, m.size, m.local_rank, m.launcher
        (3, 4, 1, 'mpi')
    """
    cluster = sagemaker_cluster(environ)
    has = {name for name, value in environ.items() if value.strip()}
    if has & {"RANK", "WORLD_SIZE"}:
        m = _from_env(environ, has)
    elif "OMPI_COMM_WORLD_RANK" in has or "OMPI_COMM_WORLD_SIZE" in has:
        m = _from_mpi(environ, "OMPI_COMM_WORLD_")
    elif {"PMI_RANK", "PMI_SIZE"} <= has and "SLURM_PROCID" not in has:
        m = _from_mpi(environ, "PMI_")
    elif "SLURM_PROCID" in has and environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        m = _from_slurm(environ)
    elif cluster is not None:
        m = _from_sagemaker(environ)
    else:
        m = Membership(local_rank=0, local_size=1, node_rank=0, num_nodes=1)
        if distributed:
            reader = _Reader(environ)
            for name in FOUR:
                reader.text(name, required=True)
            reader.check(m)
    if cluster is not None and m.launcher != "none" and m.size < cluster.world_size and cluster.backend == "nccl":
        note = (
            f"SageMaker gives this job {cluster.world_size} GPUs on {cluster.num_nodes} hosts but only "
            f"{m.size} ranks run: {cluster.world_size - m.size} GPUs idle and are billed"
        )
        m = _replace(m, notes=(*m.notes, note))
    return m


def _replace(m: Membership, **changes: object) -> Membership:
    from dataclasses import replace

    return replace(m, **changes)  # type: ignore[arg-type]


def _master(reader: _Reader, one_host: bool, job: str) -> tuple[str | None, int | None]:
    """Address and port of the store for launchers that set neither."""
    cluster = sagemaker_cluster(reader.environ)
    address = reader.text("MASTER_ADDR")
    port = reader.integer("MASTER_PORT", least=1)
    if address is None:
        if one_host:
            address = "127.0.0.1"
        elif cluster is not None:
            address = cluster.master_addr
    if port is None:
        # All ranks must find the same port without talking: take it from the job's name, below the range from
        # which systems hand out ports.
        port = cluster.master_port if cluster else 10000 + zlib.crc32(job.encode()) % 20000
    return address, port


def _interface(environ: Mapping[str, str]) -> str | None:
    return environ.get("SM_NETWORK_INTERFACE_NAME") or None


def _from_env(environ: Mapping[str, str], has: set[str]) -> Membership:
    reader = _Reader(environ)
    torchrun = "TORCHELASTIC_RUN_ID" in has
    launcher = "torchrun" if torchrun else "dtlab" if "DTLAB_LAUNCH" in has else "env"
    if launcher == "env":
        reader.same(
            {
                "RANK": "OMPI_COMM_WORLD_RANK",
                "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
                "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
            }
        )
        if "OMPI_COMM_WORLD_RANK" not in has and environ.get("SLURM_STEP_NUM_TASKS") == environ.get("WORLD_SIZE"):
            reader.same({"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"})
    rank = reader.integer("RANK", required=True)
    size = reader.integer("WORLD_SIZE", required=True, least=1)
    alone = launcher == "env" and size == 1  # a world of one needs no meeting place
    address = reader.text("MASTER_ADDR", required=not alone)
    port = reader.integer("MASTER_PORT", required=not alone, least=1)
    local_rank, local_size = reader.integer("LOCAL_RANK"), reader.integer("LOCAL_WORLD_SIZE", least=1)
    nodes = reader.integer("GROUP_WORLD_SIZE", least=1)
    node_rank = reader.integer("GROUP_RANK", "NODE_RANK")
    if local_size is None and nodes is None and (is_loopback(address) or size == 1):
        local_size, nodes, node_rank = size, 1, 0
        local_rank = rank if local_rank is None else local_rank
    elif nodes is None and local_size is not None and size is not None and size % local_size == 0:
        nodes = size // local_size
    if nodes == 1 and node_rank is None:
        node_rank = 0
    run = environ.get("TORCHELASTIC_RUN_ID") if torchrun else environ.get("DTLAB_LAUNCH")
    return reader.check(
        Membership(
            rank=rank or 0,
            size=size or 1,
            local_rank=local_rank,
            local_size=local_size,
            node_rank=node_rank,
            num_nodes=nodes,
            launcher=launcher,
            master_addr=address,
            master_port=port,
            agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            job=f"{run or 'env'}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            interface=_interface(environ),
            origin={"rank": "RANK", "size": "WORLD_SIZE"},
        )
    )


def _from_mpi(environ: Mapping[str, str], prefix: str) -> Membership:
    reader = _Reader(environ)
    rank = reader.integer(prefix + "RANK", required=True)
    size = reader.integer(prefix + "SIZE", required=True, least=1)
    local_rank = reader.integer("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    local_size = reader.integer("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", least=1)
    nodes = size // local_size if size and local_size and size % local_size == 0 else None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or "mpi"
    address, port = _master(reader, nodes == 1, job)
    return reader.check(
        Membership(
            rank=rank or 0,
            size=size or 1,
            local_rank=local_rank,
            local_size=local_size,
            node_rank=0 if nodes == 1 else None,
            num_nodes=nodes,
            launcher="mpi",
            master_addr=address,
            master_port=port,
            job=job,
            interface=_interface(environ),
            origin={"rank": prefix + "RANK", "size": prefix + "SIZE"},
        )
    )


def _from_slurm(environ: Mapping[str, str]) -> Membership:
    reader = _Reader(environ)
    size_name = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    rank = reader.integer("SLURM_PROCID", required=True)
    size = reader.integer(size_name, required=True, least=1)
    nodes = reader.integer("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", least=1)
    node_rank = reader.integer("SLURM_NODEID")
    local_size = None
    tasks = reader.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    if tasks is not None:
        counts = slurm_tasks_per_node(tasks)
        local_size = counts[node_rank or 0] if (node_rank or 0) < len(counts) else None
    job = f"{environ.get('SLURM_JOB_ID', 'slurm')}.{environ.get('SLURM_STEP_ID', '0')}"
    address, port = _master(reader, nodes == 1, job)
    hosts = reader.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if address is None and hosts is not None:
        address = slurm_first_host(hosts)
    return reader.check(
        Membership(
            rank=rank or 0,
            size=size or 1,
            local_rank=reader.integer("SLURM_LOCALID"),
            local_size=local_size,
            node_rank=node_rank,
            num_nodes=nodes,
            launcher="slurm",
            master_addr=address,
            master_port=port,
            job=job,
            origin={"rank": "SLURM_PROCID", "size": size_name},
        )
    )


def _from_sagemaker(environ: Mapping[str, str]) -> Membership:
    cluster = sagemaker_cluster(environ)
    assert cluster is not None
    if cluster.ranks_per_host > 1:
        raise UserError(
            f"SageMaker gives this job {cluster.world_size} ranks ({cluster.num_nodes} hosts x "
            f"{cluster.ranks_per_host} GPUs) but this is 1 process without a rank. Fix: {cluster.torchrun()} "
            "(or RANK=0 WORLD_SIZE=1 for a single process on purpose)"
        )
    return Membership(
        rank=cluster.node_rank,
        size=cluster.num_nodes,
        local_rank=0,
        local_size=1,
        node_rank=cluster.node_rank,
        num_nodes=cluster.num_nodes,
        launcher="sagemaker",
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        job=environ.get("TRAINING_JOB_NAME", "sagemaker"),
        interface=cluster.interface,
        origin={"rank": "SM_CURRENT_HOST", "size": "SM_HOSTS"},
    )
