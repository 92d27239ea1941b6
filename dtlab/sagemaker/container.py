"""What a training container is told, as the SM_* variables that scripts read: pure functions (lesson 15).

SageMaker itself writes three JSON files under /opt/ml/input/config. The SM_* variables are made of them by
whoever starts the script: the SDK's driver, the image's toolkit, or dtlab's first process with ``variables``.

Standard library only: this runs before the job's packages are installed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks.clusters import Cluster, sagemaker_cluster

__all__ = ["cluster_of", "count_cards", "network_variables", "variables"]

CONFIG = ("resourceconfig.json", "hyperparameters.json", "inputdataconfig.json")


def variables(base: Path, environ: Mapping[str, str], cards: int) -> dict[str, str]:
    """The SM_* variables of a container; what ``environ`` says already wins, SM_NUM_GPUS above all.

    Args:
        base: /opt/ml.
        environ: variables of the job and the platform.
        cards: GPUs of this host.

    Raises:
        UserError: a file is missing or not JSON, or SM_NUM_GPUS is more than there are.
    """
    resources, parameters, channels = (_read(base / "input" / "config" / name) for name in CONFIG)
    hosts, current = resources.get("hosts", []), resources.get("current_host", "")
    if not isinstance(hosts, list) or not all(isinstance(name, str) for name in [*hosts, current]):
        raise UserError(
            f"{base / 'input' / 'config' / CONFIG[0]}: hosts is a list of names and current_host one of "
            f"them, not {hosts!r} and {current!r}"
        )
    hosts = sorted(hosts)
    data = base / "input" / "data"
    found = {
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": current,
        "SM_HOST_COUNT": str(len(hosts)),
        "SM_CURRENT_HOST_RANK": str(hosts.index(current) if current in hosts else 0),
        "SM_CURRENT_INSTANCE_TYPE": resources.get("current_instance_type", ""),
        "SM_NETWORK_INTERFACE_NAME": resources.get("network_interface_name", ""),
        "SM_RESOURCE_CONFIG": json.dumps(resources),
        "SM_NUM_GPUS": str(cards),
        "SM_NUM_CPUS": str(os.cpu_count() or 1),
        "SM_MODEL_DIR": str(base / "model"),
        "SM_INPUT_DIR": str(base / "input"),
        "SM_INPUT_DATA_DIR": str(data),
        "SM_INPUT_CONFIG_DIR": str(base / "input" / "config"),
        "SM_OUTPUT_DIR": str(base / "output"),
        "SM_OUTPUT_DATA_DIR": str(base / "output" / "data"),
        "SM_SOURCE_DIR": str(base / "code"),
        "SM_CHANNELS": json.dumps(sorted(channels)),
        "SM_HPS": json.dumps({name: _decoded(text) for name, text in parameters.items()}),
    }
    found |= {f"SM_CHANNEL_{name.upper().replace('-', '_')}": str(data / name) for name in channels}
    found |= {f"SM_HP_{name.upper().replace('-', '_')}": str(text) for name, text in parameters.items()}
    found |= {name: environ[name] for name in found if environ.get(name)}
    asked = found["SM_NUM_GPUS"]
    if cards and asked.isdecimal() and int(asked) > cards:
        raise UserError(
            f"SM_NUM_GPUS={asked}: this host has {cards} cards; give at most that, or leave it out"
        )
    return found


def cluster_of(environ: Mapping[str, str]) -> Cluster:
    """The hosts and ranks; DTLAB_RANKS_PER_HOST wins over one rank a card.

    Raises:
        UserError: variables that do not fit together.

    >>> one_host = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    >>> cluster_of({**one_host, "DTLAB_RANKS_PER_HOST": "2"}).world_size
    2
    """
    cluster = sagemaker_cluster(environ)
    if cluster is None:
        raise UserError("SM_HOSTS and SM_CURRENT_HOST are missing: this is no training container")
    asked = environ.get("DTLAB_RANKS_PER_HOST", "")
    if not asked:
        return cluster
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"DTLAB_RANKS_PER_HOST={asked!r}: give a whole number of 1 or more")
    ranks = int(asked)
    if cluster.backend == "nccl" and ranks > cluster.ranks_per_host:
        raise UserError(
            f"DTLAB_RANKS_PER_HOST={ranks}: this host may use {cluster.ranks_per_host} cards (SM_NUM_GPUS), "
            "and "
            "NCCL takes one rank a card"
        )
    return replace(cluster, ranks_per_host=ranks, world_size=ranks * cluster.num_nodes)


def network_variables(cluster: Cluster, environ: Mapping[str, str], *, has_efa: bool) -> dict[str, str]:
    """What NCCL and gloo need between hosts, where the job has not said it itself.

    >>> one = cluster_of({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "a", "SM_NETWORK_INTERFACE_NAME": "eth0"})
    >>> network_variables(one, {"GLOO_SOCKET_IFNAME": "eth1"}, has_efa=False)
    {'NCCL_SOCKET_IFNAME': 'eth0', 'NCCL_DEBUG': 'WARN'}
    """
    wanted = {"NCCL_DEBUG": "WARN"}
    if cluster.interface:
        wanted = {"NCCL_SOCKET_IFNAME": cluster.interface, "GLOO_SOCKET_IFNAME": cluster.interface, **wanted}
    if has_efa and cluster.backend == "nccl":
        wanted["FI_PROVIDER"] = "efa"
    return {name: value for name, value in wanted.items() if not environ.get(name)}


def count_cards() -> int:
    """GPUs of this host as ``nvidia-smi`` lists them; 0 where there is no such program."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(done.stdout.strip().splitlines()) if done.returncode == 0 else 0


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.name == CONFIG[0]:
            raise UserError(f"{path}: missing; SageMaker writes it into every training container") from None
        return {}  # a job without hyper-parameters or channels
    except ValueError as error:
        raise UserError(f"{path}: no JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds a {type(values).__name__}, not an object")
    return values


def _decoded(text: Any) -> Any:
    """As the SDK's driver decodes: JSON where it is JSON, else the text."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text
