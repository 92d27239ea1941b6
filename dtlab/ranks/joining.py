"""Meeting the other ranks: the store, who has come, whether all run the same versions (lesson 02).

- On one host the store listens on a socket bound to 127.0.0.1; torch's own default listens on every address.
- A rank that comes twice, a rank that never comes and a rank with other versions are named.
- Three round trips to the store, so that joining costs about a millisecond.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks import recorder, versions
from dtlab.ranks.environment import Membership, is_loopback

# A rank that hosts the store keeps it until the process ends: the port stays ours, late peers still find it.
_stores: dict[tuple[str, int], Any] = {}
_generations: dict[str, int] = {}
# Seconds of waiting for ranks after which a line says so.
_FIRST_WORD = 5.0


def open_store(m: Membership, timeout: float) -> Any:
    """The store of this launch, its keys prefixed with the launch's name.

    Raises:
        UserError: MASTER_ADDR is unknown, the port is taken, rank 0 was started twice, or nobody listens
        there.
    """
    import torch.distributed as dist

    if m.master_addr is None or m.master_port is None:
        raise UserError(
            f"cannot find rank 0's host: {m.origin.get('size', 'WORLD_SIZE')}={m.size} but MASTER_ADDR is "
            "missing. Fix: pass it to every rank (mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500 ...)"
        )
    key = (m.master_addr, m.master_port)
    running = recorder.current()
    if m.launcher == "dtlab" and running is not None:
        store = running.store  # the worker has connected already
    elif key in _stores:
        store = _stores[key]
    elif m.agent_store or m.rank != 0:
        store = _stores[key] = _connect(m, timeout)
    else:
        store = _stores[key] = _host(m, timeout)
    return dist.PrefixStore(f"dtlab/{m.job}", store)


def _connect(m: Membership, timeout: float) -> Any:
    assert m.master_addr is not None
    assert m.master_port is not None
    # Waiting for the port ourselves: torch's retries print C++ warnings and then name no rank.
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((m.master_addr, m.master_port), timeout=2).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {m.rank} of {m.size} found nobody at MASTER_ADDR={m.master_addr} "
                    f"MASTER_PORT={m.master_port} within {timeout:g} s ({error.strerror or error}). "
                    "Fix: start rank 0 there, or give all ranks the same address and port"
                ) from None
            time.sleep(0.05)
    store = _client(m, max(timeout, 30), deadline + 5 - time.monotonic())
    if store is None:
        raise UserError(
            f"what listens on MASTER_ADDR={m.master_addr} MASTER_PORT={m.master_port} is not the store of "
            "rank 0. Fix: choose a port that no other program has"
        )
    return store


def _client(m: Membership, timeout: float, patience: float) -> Any | None:
    """Connect to a store; None when what listens there does not answer like one."""
    import torch.distributed as dist

    found: list[Any] = []

    def connect() -> None:
        with contextlib.suppress(Exception):
            found.append(
                dist.TCPStore(
                    m.master_addr,  # type: ignore[arg-type]
                    m.master_port,  # type: ignore[arg-type]
                    is_master=False,
                    timeout=timedelta(seconds=timeout),
                    wait_for_workers=False,
                )
            )

    # In a thread: torch waits without limit for the first answer of whatever listens there.
    thread = threading.Thread(target=connect, name="dtlab-connect", daemon=True)
    thread.start()
    thread.join(patience)
    return found[0] if found else None


def _host(m: Membership, timeout: float) -> Any:
    import torch.distributed as dist

    assert m.master_addr is not None
    assert m.master_port is not None
    listener = _listen(m)
    return dist.TCPStore(
        "127.0.0.1" if m.one_host else m.master_addr,
        m.master_port,
        is_master=True,
        timeout=timedelta(seconds=max(timeout, 30)),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _listen(m: Membership) -> socket.socket:
    """A listening socket on the narrowest address that the other ranks can reach."""
    address = "127.0.0.1"
    if not m.one_host and not is_loopback(m.master_addr):
        try:
            found = socket.getaddrinfo(m.master_addr, None, socket.AF_INET, socket.SOCK_STREAM)
            address = str(found[0][4][0])
        except OSError:
            raise UserError(
                f"MASTER_ADDR={m.master_addr} is not a known host name on rank 0's host"
            ) from None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, m.master_port or 0))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise UserError(
            _rank_0_runs_already(m)
            or f"rank 0 cannot listen on MASTER_PORT={m.master_port} of {address} ({error.strerror}). "
            "Fix: choose another port, or end the program that has it"
        ) from None
    return listener


def _rank_0_runs_already(m: Membership) -> str | None:
    """If the port belongs to a rank 0 of the same job, tell it too, and say so."""
    import torch.distributed as dist

    assert m.master_port is not None
    message = (
        f"rank 0 was started twice: two processes have {m.origin.get('rank', 'RANK')}=0 "
        f"(world size {m.size}). Fix: give each process its own rank"
    )
    store = _client(m, 2, 2)
    if store is None:
        return None
    with contextlib.suppress(Exception):
        prefixed = dist.PrefixStore(f"dtlab/{m.job}", store)
        if prefixed.check([f"join/{_next_generation(m)}/0"]):
            prefixed.set("fault", message)
            return message
    return None


def _next_generation(m: Membership) -> int:
    return _generations.get(m.job, 0) + 1


def meet(store: Any, m: Membership, timeout: float) -> tuple[list[dict[str, Any]], str]:
    """Wait for all ranks and compare their versions.

    Args:
        store: from ``open_store``.
        m: who this process is.
        timeout: seconds until missing ranks are named.

    Returns:
        What each rank said about itself, in rank order, and the key prefix of this meeting.

    Raises:
        UserError: ranks are missing or doubled, or run different versions of torch, CUDA or NCCL.
    """
    # A process may join, leave and join again: every meeting has its own keys.
    generation = _generations[m.job] = _next_generation(m)
    own = {
        "rank": m.rank,
        "size": m.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time.time_ns(),
        "versions": versions.local_versions(),
    }
    text = json.dumps(own)
    keys = [f"join/{generation}/{rank}" for rank in range(m.size)]
    found = store.compare_set(keys[m.rank], "", text).decode()
    if found != text:
        first = json.loads(found)
        message = (
            f"rank {m.rank} was started twice: process {first['pid']} on {first['host']} and process "
            f"{own['pid']} on {own['host']} both have {m.origin.get('rank', 'RANK')}={m.rank} "
            f"(world size {m.size}). Fix: give each process its own rank"
        )
        store.set("fault", message)
        raise UserError(message)
    _wait_for_all(store, m, keys, timeout)
    records = [json.loads(value) for value in store.multi_get(keys)]
    sizes = {record["size"] for record in records}
    if len(sizes) > 1:
        listed = ", ".join(f"rank {record['rank']}: {record['size']}" for record in records)
        raise UserError(f"the ranks were given different world sizes ({listed}). Fix: one value for all")
    unequal = versions.differences([record["versions"] for record in records])
    if unequal:
        raise UserError(f"the ranks run different versions: {unequal}. Fix: install the same on every host")
    return records, f"world/{generation}"


def _wait_for_all(store: Any, m: Membership, keys: list[str], timeout: float) -> None:
    begin = time.monotonic()
    deadline, told = begin + timeout, False
    pause = 0.0005
    # check, not wait: a wait that runs out prints C++ warnings and cannot hear of a fault meanwhile
    while not store.check(keys):
        if store.check(["fault"]):
            raise UserError(store.get("fault").decode())
        if time.monotonic() > deadline:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            if not missing:
                return
            raise UserError(_missing(m, missing, timeout))
        if not told and time.monotonic() > begin + _FIRST_WORD:
            told = True
            joined = sum(store.check([key]) for key in keys)
            name = m.origin.get("size", "WORLD_SIZE")
            line = f"[Rank {m.rank}] waiting: {joined} of {m.size} ranks joined ({name}={m.size})"
            print(line, file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _missing(m: Membership, missing: list[int], timeout: float) -> str:
    name = m.origin.get("size", "WORLD_SIZE")
    value = m.size if name != "SM_HOSTS" else f"{m.size} hosts"
    listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    start = "with srun " if m.launcher == "slurm" else ""
    return (
        f"{m.size - len(missing)} of {m.size} ranks joined within {timeout:g} s, missing rank {listed} "
        f"({name}={value}). Fix: start the missing ranks {start}(dtlab.launch and torchrun start all of "
        f"them), or set {name} to the number of processes you start; for slow ranks: join_timeout=SECONDS"
    )


def fill_from_hosts(m: Membership, records: list[dict[str, Any]]) -> Membership:
    """Local ranks and nodes for launchers that did not tell them: count the ranks of each host name."""
    hosts: dict[str, list[int]] = {}
    for record in records:
        hosts.setdefault(record["host"], []).append(record["rank"])
    mine = hosts[records[m.rank]["host"]]
    changes: dict[str, int] = {}
    if m.local_rank is None:
        changes["local_rank"] = mine.index(m.rank)
    if m.local_size is None:
        changes["local_size"] = len(mine)
    if m.num_nodes is None:
        changes["num_nodes"] = len(hosts)
    if m.node_rank is None:
        changes["node_rank"] = list(hosts).index(records[m.rank]["host"])
    return replace(m, **changes)  # type: ignore[arg-type]
