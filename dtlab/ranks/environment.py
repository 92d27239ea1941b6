"""Who am I among the ranks: the variables of every launcher, read as a whole (lesson 02).

- ``detect(environ)`` is pure: a mapping in, a ``Membership`` out. Whatever is missing or contradictory comes
  in one error, not one variable per failed run.
- The innermost launcher wins: torchrun or dtlab started by a Slurm or MPI task sets its own variables, and
  the outer ones then speak of the task, not of the rank.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace

import psutil

from dtlab.errors import UserError
from dtlab.ranks.clusters import sagemaker_cluster
from dtlab.ranks.launchers import from_env, from_mpi, from_sagemaker, from_slurm
from dtlab.ranks.membership import Membership, Reader, is_loopback

__all__ = ["Membership", "detect", "is_loopback", "loopback_interface", "named_world_of_one"]

FOUR = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def loopback_interface() -> str | None:
    """Name of the network interface that holds 127.0.0.1 (``lo`` on Linux, ``lo0`` on macOS), or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return None


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
    mpi = "OMPI_COMM_WORLD_" if has & {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} else "PMI_"
    by_mpi = mpi == "OMPI_COMM_WORLD_" or ({"PMI_RANK", "PMI_SIZE"} <= has and "SLURM_PROCID" not in has)
    if {"RANK", "WORLD_SIZE"} <= has or (has & {"RANK", "WORLD_SIZE"} and not by_mpi):
        m = from_env(environ)
    elif by_mpi:
        m = from_mpi(environ, mpi)
    elif "SLURM_PROCID" in has and environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        # An interactive allocation is a shell that has a task number but is no task.
        m = from_slurm(environ)
    elif cluster is not None:
        m = from_sagemaker(environ)
    else:
        m = Membership(local_rank=0, local_size=1, node_rank=0, num_nodes=1)
        if distributed:
            reader = Reader(environ)
            for name in FOUR:
                reader.text(name, required=True)
            reader.check(m)
    if cluster is not None and cluster.backend == "nccl" and m.size < cluster.world_size:
        note = (
            f"SageMaker gives this job {cluster.world_size} GPUs on {cluster.num_nodes} hosts but only "
            f"{m.size} ranks run: {cluster.world_size - m.size} GPUs idle and are billed"
        )
        m = replace(m, notes=(*m.notes, note))
    return m


def named_world_of_one(environ: Mapping[str, str]) -> str | None:
    """What in ``environ`` says that this process is the only rank: it need not stop a launch of local ranks.

    Returns:
        The variable and its value; None where nothing speaks of ranks, or several processes are meant.

    Raises:
        UserError: as ``detect``.

    Example:
        >>> named_world_of_one({"RANK": "0", "WORLD_SIZE": "1"})
        'WORLD_SIZE=1'
        >>> named_world_of_one({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "4"})
        'SM_HOSTS=["algo-1"]'
    """
    try:
        m = detect(environ)
    except UserError:
        # One process on one host of several cards: detect wants a launcher, and that is what starts here.
        cluster = sagemaker_cluster(environ)
        if cluster is None or cluster.num_nodes > 1 or any(environ.get(name) for name in FOUR[:2]):
            raise
        return f"SM_HOSTS={environ['SM_HOSTS']}"
    name = m.origin.get("size", "")
    return f"{name}={environ.get(name, 1)}" if m.launcher != "none" and m.size == 1 else None
