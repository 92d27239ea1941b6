"""The variables of torchrun, MPI, Slurm and SageMaker, each turned into a ``Membership`` (lesson 15)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from dtlab.errors import UserError
from dtlab.ranks.clusters import sagemaker_cluster, slurm_first_host, slurm_tasks_per_node
from dtlab.ranks.membership import Membership, Reader, is_loopback


def _master(reader: Reader, one_host: bool, job: str) -> tuple[str | None, int | None]:
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


# One thing under two names: what a person or a script set, and what MPI or Slurm set.
_MPI_TWINS = {
    "OMPI_COMM_WORLD_": {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    "PMI_": {"RANK": "PMI_RANK", "WORLD_SIZE": "PMI_SIZE", "LOCAL_RANK": "MPI_LOCALRANKID"},
}
_SLURM_TWINS = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"}


def from_env(environ: Mapping[str, str]) -> Membership:
    """RANK and WORLD_SIZE: set by dtlab, by torchrun, or by hand."""
    reader = Reader(environ)
    torchrun = bool(environ.get("TORCHELASTIC_RUN_ID"))
    launcher = "torchrun" if torchrun else "dtlab" if environ.get("DTLAB_LAUNCH") else "env"
    if launcher == "env":
        reader.same(_MPI_TWINS["OMPI_COMM_WORLD_"])
        # A task of PMI or Slurm may start several ranks; only equal numbers of tasks and ranks must match.
        if environ.get("PMI_SIZE") == environ.get("WORLD_SIZE"):
            reader.same(_MPI_TWINS["PMI_"])
        if environ.get("SLURM_STEP_NUM_TASKS") == environ.get("WORLD_SIZE"):
            reader.same(_SLURM_TWINS)
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
    count = "" if torchrun else f"/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
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
            job=f"{run or 'env'}{count}",
            counts_apart=torchrun,
            interface=_interface(environ),
            origin={"rank": "RANK", "size": "WORLD_SIZE"},
        )
    )


def from_mpi(environ: Mapping[str, str], prefix: str) -> Membership:
    """Open MPI (``OMPI_COMM_WORLD_``) or MPICH and Intel MPI (``PMI_``)."""
    reader = Reader(environ)
    reader.same(_MPI_TWINS[prefix])
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


def from_slurm(environ: Mapping[str, str]) -> Membership:
    """A task started by srun."""
    reader = Reader(environ)
    reader.same(_SLURM_TWINS)
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


def from_sagemaker(environ: Mapping[str, str]) -> Membership:
    """A SageMaker container that started one process per host and set no rank."""
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
