"""What Slurm and SageMaker say about a job's hosts: pure parsing of their variables (lesson 15)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtlab.errors import UserError


@dataclass(frozen=True)
class Cluster:
    """The hosts of a SageMaker training job and the ranks that belong on them.

    Attributes:
        hosts: host names, sorted as SageMaker sorts them (as text).
        num_nodes: number of hosts.
        node_rank: index of this host.
        ranks_per_host: one per GPU of this host, or one where there is no GPU.
        world_size: ranks of the whole job.
        master_addr: host that keeps the rendezvous store.
        master_port: its port.
        backend: ``"nccl"`` with GPUs, else ``"gloo"``.
        interface: network interface to use, if named.
    """

    hosts: tuple[str, ...]
    num_nodes: int
    node_rank: int
    ranks_per_host: int
    world_size: int
    master_addr: str
    master_port: int
    backend: str
    interface: str | None = None

    def torchrun(self, script: str = "SCRIPT") -> str:
        """The command that starts this host's ranks."""
        return (
            f"torchrun --nnodes={self.num_nodes} --node-rank={self.node_rank} "
            f"--nproc-per-node={self.ranks_per_host} --master-addr={self.master_addr} "
            f"--master-port={self.master_port} {script}"
        )


def sagemaker_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Read SM_HOSTS, SM_CURRENT_HOST and SM_NUM_GPUS; None outside a SageMaker training container.

    Raises:
        UserError: one line with everything that is missing or contradictory.

    Example:
        >>> c = sagemaker_cluster({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2",
        ...                        "SM_NUM_GPUS": "4"})
        >>> c.num_nodes, c.node_rank, c.world_size, c.master_addr
        (2, 1, 8, 'algo-1')
    """
    if not environ.get("SM_HOSTS") and not environ.get("SM_CURRENT_HOST"):
        return None
    problems = [f"{name} is missing" for name in ("SM_HOSTS", "SM_CURRENT_HOST") if not environ.get(name)]
    hosts: tuple[str, ...] = ()
    if environ.get("SM_HOSTS"):
        value: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(environ["SM_HOSTS"])
        if isinstance(value, list) and value and all(isinstance(host, str) for host in value):
            hosts = tuple(sorted(value))
            if len(set(hosts)) < len(hosts):
                problems.append(f"SM_HOSTS={','.join(hosts)} names a host twice")
        else:
            problems.append(f"SM_HOSTS={environ['SM_HOSTS'][:200]!r} is not a JSON list of host names")
    current = environ.get("SM_CURRENT_HOST", "")
    if hosts and current and current not in hosts:
        problems.append(f"SM_CURRENT_HOST={current} is not in SM_HOSTS={','.join(hosts)}")
    numbers = {"SM_NUM_GPUS": 0, "SM_MASTER_PORT": 7777, "SM_CURRENT_HOST_RANK": -1, "SM_HOST_COUNT": -1}
    for name in numbers:
        if environ.get(name):
            try:
                numbers[name] = int(environ[name])
            except ValueError:
                problems.append(f"{name}={environ[name]!r} is not a whole number")
    if numbers["SM_NUM_GPUS"] < 0:
        problems.append(f"SM_NUM_GPUS={numbers['SM_NUM_GPUS']} is below 0")
    if not 0 < numbers["SM_MASTER_PORT"] < 65536:
        problems.append(f"SM_MASTER_PORT={numbers['SM_MASTER_PORT']} is not a port (1 to 65535)")
    node_rank = hosts.index(current) if current in hosts else 0
    if hosts and numbers["SM_HOST_COUNT"] not in (-1, len(hosts)):
        problems.append(f"SM_HOST_COUNT={numbers['SM_HOST_COUNT']} but SM_HOSTS names {len(hosts)} hosts")
    if current in hosts and numbers["SM_CURRENT_HOST_RANK"] not in (-1, node_rank):
        problems.append(
            f"SM_CURRENT_HOST_RANK={numbers['SM_CURRENT_HOST_RANK']} but SM_CURRENT_HOST={current} "
            f"is host {node_rank} of SM_HOSTS"
        )
    if problems:
        raise UserError("SageMaker variables do not fit together: " + "; ".join(problems))
    per_host = max(1, numbers["SM_NUM_GPUS"])
    return Cluster(
        hosts=hosts,
        num_nodes=len(hosts),
        node_rank=node_rank,
        ranks_per_host=per_host,
        world_size=len(hosts) * per_host,
        master_addr=environ.get("SM_MASTER_ADDR") or hosts[0],
        master_port=numbers["SM_MASTER_PORT"],
        backend="nccl" if numbers["SM_NUM_GPUS"] > 0 else "gloo",
        interface=environ.get("SM_NETWORK_INTERFACE_NAME") or None,
    )


def slurm_first_host(nodelist: str) -> str:
    """First host of a Slurm node list.

    Example:
        >>> slurm_first_host("gpu[007-009,012],cpu3"), slurm_first_host("node4")
        ('gpu007', 'node4')
    """
    match = re.match(r"([^,\[]*)(?:\[([^\]]*)\]([^,]*))?", nodelist.strip())
    if match is None or not match.group(0):
        raise UserError(f"the Slurm node list {nodelist!r} names no host")
    prefix, inside, suffix = match.groups()
    if inside is None:
        return prefix
    return prefix + re.split(r"[,-]", inside)[0] + (suffix or "")


def slurm_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's tasks-per-node notation.

    Example:
        >>> slurm_tasks_per_node("4(x2),3")
        [4, 4, 3]
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise UserError(f"SLURM_TASKS_PER_NODE={text!r} is not of the form 4(x2),3")
        tasks += [int(match.group(1))] * int(match.group(2) or 1)
    return tasks
