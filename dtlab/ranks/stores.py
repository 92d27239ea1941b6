"""The store through which ranks find each other (lesson 02).

- On one host it listens on a socket bound to 127.0.0.1; torch's own default listens on every address.
- Under torchrun and dtlab the launcher keeps it and every rank is a client; otherwise rank 0 keeps it.
- A port that another program has, and a rank 0 that was started twice, are named.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from datetime import timedelta
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks import recorder
from dtlab.ranks.environment import Membership, is_loopback

# A rank that hosts the store keeps it until the process ends: the port stays ours, late peers still find it.
_stores: dict[tuple[str, int], Any] = {}
_RANK_0_SAYS_SO = 5.0  # seconds between listening and joining, on a busy machine


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
    # The other rank 0 may have the port and not have said yet that it is there.
    deadline = time.monotonic() + _RANK_0_SAYS_SO
    while time.monotonic() < deadline:
        store = _client(m, 2, 2)
        if store is None:
            return None
        with contextlib.suppress(Exception):
            prefixed = dist.PrefixStore(f"dtlab/{m.job}", store)
            if prefixed.check([join_key(1, 0)]):
                prefixed.set(fault_key(1), message)
                return message
        time.sleep(0.1)
    return None


def join_key(generation: int, rank: int) -> str:
    """Where a rank says that it has come. A process may join, leave and join again: hence the generation."""
    return f"join/{generation}/{rank}"


def fault_key(generation: int) -> str:
    """Where the reason is kept for which this meeting failed."""
    return f"fault/{generation}"


def say_ended(store: Any, job: str, rank: int, message: str) -> None:
    """Tell those who meet now, or will, that ``rank`` has ended and cannot come: they raise ``message``.

    ``store`` is the launcher's, ``job`` names the launch in it, as ``Membership.job`` does.
    """
    import torch.distributed as dist

    with contextlib.suppress(Exception):  # the store may be gone with its host
        prefixed = dist.PrefixStore(f"dtlab/{job}", store)
        generation = 1
        while prefixed.check([join_key(generation, rank)]):
            generation += 1
        if not prefixed.check([fault_key(generation)]):
            prefixed.set(fault_key(generation), message)
