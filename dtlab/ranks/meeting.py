"""Meeting the other ranks: who has come, whether all run the same versions (lesson 02).

- A rank that comes twice, a rank that never comes and a rank with other versions are named, by every rank.
- Three round trips to the store, so that joining costs about a millisecond.
- Nobody goes on before all are connected: a rank that ended at once would leave another in the middle of its
  handshake, and that one's error would be told in place of the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import replace
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks import versions
from dtlab.ranks.membership import Membership
from dtlab.ranks.stores import fault_key, join_key

_generations: dict[str, int] = {}
# Seconds of waiting for ranks after which a line says so.
_FIRST_WORD = 5.0
# Seconds that a host of the store stays for the others after a failed meeting.
_LAST_WORD = 3.0


class DoubledRankError(UserError):
    """This process has the rank of another one."""


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
    generation = _generations[m.job] = _generations.get(m.job, 0) + 1
    try:
        return _meet(store, m, generation, timeout), f"world/{generation}"
    except DoubledRankError as error:
        _part(store, m, generation, error)
        raise UserError(str(error)) from None  # alike on both, so that either run names the same rank
    except UserError as error:
        _part(store, m, generation, error)
        raise
    except RuntimeError as error:  # the store's own errors
        raise UserError(
            f"rank {m.rank} of {m.size} lost the store of rank 0 at {m.master_addr}:{m.master_port} while it "
            f"waited for the others ({str(error).splitlines()[0]}). Fix: look at the output of rank 0"
        ) from None


def _meet(store: Any, m: Membership, generation: int, timeout: float) -> list[dict[str, Any]]:
    own = {
        "rank": m.rank,
        "size": m.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time.time_ns(),
        "versions": versions.local_versions(),
    }
    text = json.dumps(own)
    keys = [join_key(generation, rank) for rank in range(m.size)]
    found = store.compare_set(keys[m.rank], "", text).decode()
    if found != text:
        first = json.loads(found)
        message = (
            f"rank {m.rank} was started twice: process {first['pid']} on {first['host']} and process "
            f"{own['pid']} on {own['host']} both have {m.origin.get('rank', 'RANK')}={m.rank} "
            f"(world size {m.size}). Fix: give each process its own rank"
        )
        raise DoubledRankError(message)
    _wait_for_all(store, m, keys, fault_key(generation), timeout)
    records = [json.loads(value) for value in store.multi_get(keys)]
    sizes = {record["size"] for record in records}
    if len(sizes) > 1:
        listed = ", ".join(f"rank {record['rank']}: {record['size']}" for record in records)
        raise UserError(f"the ranks were given different world sizes ({listed}). Fix: one value for all")
    unequal = versions.differences([record["versions"] for record in records])
    if unequal:
        raise UserError(f"the ranks run different versions: {unequal}. Fix: install the same on every host")
    return records


def wait_until_connected(store: Any, m: Membership, prefix: str, timeout: float) -> None:
    """Say that this rank has its connections, and wait until every rank has.

    Args:
        store, m, prefix: as ``meet`` took and returned them.
        timeout: seconds until the ranks that do not get through are named.

    Raises:
        UserError: a rank did not connect in time.
    """
    keys = [f"{prefix}/connected/{rank}" for rank in range(m.size)]
    store.set(keys[m.rank], b"1")
    deadline, pause = time.monotonic() + timeout, 0.0002
    while not store.check(keys):
        if time.monotonic() > deadline:
            late = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise UserError(
                f"rank {', '.join(map(str, late))} of {m.size} joined but was not connected with the others "
                f"after {timeout:g} s. Fix: look at its output; on several hosts open all ports between them"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _part(store: Any, m: Membership, generation: int, error: UserError) -> None:
    """Tell the others why the meeting failed; a rank that keeps the store stays until they have read it."""
    with contextlib.suppress(Exception):
        if not store.check([fault_key(generation)]):
            store.set(fault_key(generation), str(error))
        if isinstance(error, DoubledRankError):
            return  # the rank's first process speaks for it
        if m.rank != 0 or m.agent_store:
            store.set(f"part/{generation}/{m.rank}", b"1")
            return
        joined = [rank for rank in range(1, m.size) if store.check([join_key(generation, rank)])]
        keys = [f"part/{generation}/{rank}" for rank in joined]
        deadline = time.monotonic() + _LAST_WORD
        while keys and not store.check(keys) and time.monotonic() < deadline:
            time.sleep(0.01)


def _wait_for_all(store: Any, m: Membership, keys: list[str], fault: str, timeout: float) -> None:
    waiting = Waiting(m, timeout)
    # check, not wait: a wait that runs out prints C++ warnings and cannot hear of a fault meanwhile
    while not store.check(keys):
        if store.check([fault]):
            raise UserError(store.get(fault).decode())
        if not waiting.is_due:
            waiting.pause()
            continue
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if not missing:
            return
        waiting.on(missing)


class Waiting:
    """Waiting for ranks: longer and longer pauses, a line after a while, an error at the end."""

    def __init__(self, m: Membership, timeout: float) -> None:
        self._m, self._timeout = m, timeout
        self._begin, self._told, self._seconds = time.monotonic(), False, 0.0005

    @property
    def is_due(self) -> bool:
        """Whether something is to be said, so that it pays to ask who is missing."""
        waited = time.monotonic() - self._begin
        return waited > self._timeout or (waited > _FIRST_WORD and not self._told)

    def on(self, missing: list[int]) -> None:
        """Pause, for these ranks.

        Raises:
            UserError: the time is over.
        """
        m, waited = self._m, time.monotonic() - self._begin
        if waited > self._timeout:
            raise UserError(_missing(m, missing, self._timeout))
        if waited > _FIRST_WORD and not self._told:
            self._told = True
            name, joined = m.origin.get("size", "WORLD_SIZE"), m.size - len(missing)
            line = f"[Rank {m.rank}] waiting: {joined} of {m.size} ranks joined ({name}={m.size})"
            print(line, file=sys.stderr, flush=True)
        self.pause()

    def pause(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(self._seconds * 1.5, 0.02)


def _missing(m: Membership, missing: list[int], timeout: float) -> str:
    name = m.origin.get("size", "WORLD_SIZE")
    value = m.size if name != "SM_HOSTS" else f"{m.size} hosts"
    listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    start = "with srun " if m.launcher == "slurm" else ""
    return (
        f"{m.size - len(missing)} of {m.size} ranks joined within {timeout:g} s, missing rank {listed} "
        f"({name}={value}). Fix: start the missing ranks {start}(dtlab.launch and torchrun start all of "
        f"them), or set {name} to the number of processes you start; for slow ranks: "
        "DTLAB_JOIN_TIMEOUT=SECONDS"
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
