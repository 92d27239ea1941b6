"""``with dtlab.world() as w``: join whatever launched this process (lesson 02).

The same function runs under dtlab.launch, torchrun, MPI, Slurm and SageMaker, and alone. Joining checks the
variables as a whole, builds the store, picks device and backend, seeds, compares versions over ranks and
starts the recorder; leaving ends the process group together, so that no rank closes a connection that another
still uses.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtlab.errors import DtlabWarning, UserError
from dtlab.ranks import (
    agreement,
    allocator,
    attempts,
    joining,
    late,
    leaving,
    logs,
    meeting,
    recorder,
    seeds,
    stores,
)
from dtlab.ranks.devices import choose_backend, choose_device
from dtlab.ranks.environment import Membership, detect

T = TypeVar("T")

# Seconds. A collective may wait for a slow peer (evaluation, a checkpoint) but not for ever.
COLLECTIVE_TIMEOUT = 600.0

_current: World | None = None
_ended_group: Any = None


class World:
    """The ranks of this run as seen by one of them. Made by ``world()``.

    Attributes:
        rank, size: rank and world size.
        local_rank, local_size: rank among the ranks of this host, and their number.
        node_rank, num_nodes: index of this host, and number of hosts.
        device: where this rank's tensors belong.
        backend: ``"nccl"``, ``"gloo"`` or ``"none"``.
        launcher: ``"dtlab"``, ``"torchrun"``, ``"mpi"``, ``"slurm"``, ``"sagemaker"``, ``"env"`` or
            ``"none"``.
        log: logger that prefixes ``[Rank r]``.
    """

    def __init__(
        self,
        membership: Membership,
        device: torch.device,
        backend: str,
        *,
        log: logging.Logger,
        timeout: float,
        store: Any = None,
        prefix: str = "",
        owns_group: bool = False,
        owns_recorder: bool = False,
        restore: Mapping[str, str | None] | None = None,
    ) -> None:
        self.rank, self.size = membership.rank, membership.size
        self.local_rank, self.local_size = membership.local_rank or 0, membership.local_size or 1
        self.node_rank, self.num_nodes = membership.node_rank or 0, membership.num_nodes or 1
        self.launcher = membership.launcher
        self.device, self.backend, self.log = device, backend, log
        self._timeout, self._store, self._prefix = timeout, store, prefix
        self._hosts_store = not membership.agent_store
        self._owns_group, self._owns_recorder = owns_group, owns_recorder
        self._restore = dict(restore or {})
        self._left = False
        if device.type == "cpu":
            allocator.keep_freed_memory()

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        agreement.barrier()

    def mean(self, x: Any, weight: float | None = None) -> Any:
        """Mean over ranks; see ``dtlab.mean``."""
        return agreement.mean(x, weight)

    def gather(self, x: Any, dst: int | None = 0) -> list[Any] | None:
        """One value of every rank, in rank order, on ``dst`` (None: everywhere); see ``dtlab.gather``."""
        return agreement.gather(x, dst)

    def broadcast(self, x: T, src: int = 0) -> T:
        """The value of rank ``src``; see ``dtlab.broadcast``."""
        return agreement.broadcast(x, src)

    def all_agree(self, flag: Any, rule: str = "all") -> Any:
        """One decision for all ranks; see ``dtlab.all_agree``."""
        return agreement.all_agree(flag, rule)

    def __repr__(self) -> str:
        return (
            f"World(rank={self.rank}, size={self.size}, local_rank={self.local_rank}, "
            f"device={str(self.device)!r}, backend={self.backend!r}, launcher={self.launcher!r})"
        )

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = None
        # Under dtlab.launch the launcher asks the ranks and tells the story of all of them.
        if error is not None and self._owns_group and (self.launcher != "dtlab" or late.timed_out(error)):
            asking = recorder.current()
            told = late.explained(error, asking) if asking is not None else None
        self.leave(failed=error is not None)
        if told is not None:
            raise told from error

    def leave(self, *, failed: bool = False) -> None:
        """End the process group. All ranks call it; ``with`` does so by itself.

        Args:
            failed: this rank has an error: leave at once, so that peers stop waiting for it.

        Raises:
            LateRankError: other ranks wait in a collective that this rank never called.
        """
        global _current
        if self._left:
            return
        self._left = True
        if _current is self:
            _current = None
        try:
            if self._owns_group and failed:
                leaving.say_failed(self._store, self._prefix, self.rank)
            elif self._owns_group and self.size > 1 and dist.is_initialized():
                well = leaving.wait_for_all(self._store, self._prefix, self.rank, self.size, self._timeout)
                if self._owns_recorder:
                    recorder.stop()
                if well and self._hosts_store:
                    # Rank 0 keeps the store in its own process: nobody may be asking it when it goes.
                    agreement.barrier()
        finally:
            if self._owns_recorder:
                recorder.stop()
            if self._owns_group and dist.is_initialized():
                self._end_group(failed)
            for name, value in self._restore.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if self._owns_group or self.backend == "none":
                logs.close(self.log)

    def _end_group(self, failed: bool) -> None:
        global _ended_group
        if failed and self.backend == "nccl":
            return  # destroying can wait for the peers for ever, and this process ends anyway
        if self.launcher == "dtlab" and not failed:
            # Closing gloo's connections takes 20 ms, a fifth of a whole launch. A launched rank ends right
            # after its function, so the connections may as well end with it: keep the group's object.
            _ended_group = dist.group.WORLD
        dist.destroy_process_group()


def world(
    backend: str | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    log_file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    join_timeout: float | None = None,
    distributed: bool = False,
) -> World:
    """Join the ranks of this run; alone, be a world of one.

    Args:
        backend: ``"gloo"`` or ``"nccl"``; default: NCCL on CUDA, gloo on the CPU.
        device: ``"cpu"`` or ``"cuda"``; default: DTLAB_DEVICE, else this rank's CUDA card if there is one.
        seed: seed Python, NumPy and torch from (seed, rank). Default: DTLAB_SEED or 0; a process that was
            seeded by dtlab before, or that nobody launched, is left as it is.
        timeout: seconds until a collective gives up (default 600).
        log_file: file for this rank's log; ``{rank}`` in the name is replaced.
        environ: variables to read instead of ``os.environ``.
        join_timeout: seconds until missing ranks are named. Default: DTLAB_JOIN_TIMEOUT, else 10 when the
            variables were set by hand, 60 under a launcher, 300 over several hosts, never above ``timeout``.
        distributed: insist on a launcher; without one list the missing variables.

    Returns:
        A ``World``, usable in ``with``. Inside a process that has joined already, the same group again;
        leaving that inner world leaves the group alone.

    Raises:
        UserError: one line that lists all missing or contradictory variables, or names the ranks that did
            not come, came twice or run other versions.

    Example:
        >>> with world() as w:
        ...     print(w.rank, w.size, w.mean(2.0))
        0 1 2.0
    """
    global _current
    for name, value in (("timeout", timeout), ("join_timeout", join_timeout)):
        if value is not None and not value > 0:
            raise UserError(f"{name}={value} must be a positive number of seconds")
    if dist.is_available() and dist.is_initialized():
        return _again(backend, device, log_file, environ)
    variables = os.environ if environ is None else environ
    m = detect(variables, distributed=distributed)
    if m.launcher == "none" or (m.master_addr is None and m.size == 1):
        chosen = choose_device(device, m, variables)
        if seed is not None:
            seeds.seed_everything(seed, 0)
        _warn(m)
        log = logs.get_logger(0, 1, log_file=log_file)
        return World(m, chosen, "none", log=log, timeout=timeout or COLLECTIVE_TIMEOUT)
    joined = _join(m, variables, backend, device, seed, timeout, join_timeout, log_file)
    _current = joined
    return joined


def _join(
    m: Membership,
    variables: Mapping[str, str],
    backend: str | None,
    device: str | torch.device | None,
    seed: int | None,
    timeout: float | None,
    join_timeout: float | None,
    log_file: str | Path | None,
) -> World:
    patience = joining.join_patience(m, variables, timeout, join_timeout)
    timeout = timeout or COLLECTIVE_TIMEOUT
    # Lets the recorder see collectives; where torch reads it at import it was too late, and the stacks must
    # do.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    store = attempts.of_this_start(stores.open_store(m, patience), m, patience)
    records, prefix = meeting.meet(store, m, patience)
    m = meeting.fill_from_hosts(m, records)
    chosen = choose_device(device, m, variables)
    name = choose_backend(backend, chosen)
    restore = joining.bind_to_interface(m)
    owns_recorder = recorder.current() is None
    recorder.start(store, m.rank, m.size)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group(
        # CPU tensors (flags, objects, metrics) travel by gloo, without touching the card
        "cpu:gloo,cuda:nccl" if name == "nccl" else name,
        store=dist.PrefixStore(f"{prefix}/group", store),
        rank=m.rank,
        world_size=m.size,
        timeout=timedelta(seconds=timeout),
    )
    meeting.wait_until_connected(store, m, prefix, patience)
    if seed is not None or seeds.base_seed() is None:
        seeds.seed_everything(joining.default_seed(variables) if seed is None else seed, m.rank)
    if m.rank == 0:
        _warn(m)
    return World(
        m,
        chosen,
        name,
        log=logs.get_logger(m.rank, m.size, log_file=log_file),
        timeout=timeout,
        store=store,
        prefix=prefix,
        owns_group=True,
        owns_recorder=owns_recorder,
        restore=restore,
    )


def _again(
    backend: str | None,
    device: str | torch.device | None,
    log_file: str | Path | None,
    environ: Mapping[str, str] | None,
) -> World:
    """A world over the group that exists already, made by us or by plain torch."""
    from dataclasses import replace

    variables = os.environ if environ is None else environ
    try:
        m = detect(variables)
    except UserError:
        m = Membership(launcher="env")  # init_process_group was given everything by hand
    m = replace(m, rank=dist.get_rank(), size=dist.get_world_size())
    if m.local_rank is None or m.launcher == "none":
        m = replace(m, local_rank=m.rank, local_size=m.size, node_rank=0, num_nodes=1)
    name = "nccl" if "nccl" in dist.get_backend_config() else dist.get_backend()
    if backend is not None and backend != name:
        raise UserError(
            f"backend={backend!r}, but this process has joined with {name}: leave that world first"
        )
    chosen = choose_device(device if device is not None or name == "nccl" else "cpu", m, variables)
    log = _current.log if _current is not None and log_file is None else None
    if log is None:
        log = logs.get_logger(m.rank, m.size, log_file=log_file)
    return World(m, chosen, name, log=log, timeout=COLLECTIVE_TIMEOUT)


def _warn(m: Membership) -> None:
    for note in m.notes:
        warnings.warn(note, DtlabWarning, stacklevel=4)


@atexit.register
def _leave_at_exit() -> None:
    """A script that never left its world still ends the group with the others."""
    if _current is not None:
        failed = getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
        with contextlib.suppress(Exception):
            _current.leave(failed=failed)
