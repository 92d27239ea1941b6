"""What a process knows about its place among the ranks, and a reader that collects every complaint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dtlab.errors import UserError

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
        counts_apart: launchers of several hosts may start the ranks again, each with a counter of its own.
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
    counts_apart: bool = False
    job: str = ""
    interface: str | None = None
    origin: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to run on this host."""
        return self.size == 1 or self.num_nodes == 1 or is_loopback(self.master_addr)


def is_loopback(address: str | None) -> bool:
    """Whether an address means this host and nothing else."""
    return address is not None and (address in ("localhost", "::1") or address.startswith("127."))


class Reader:
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
        quiet = Reader(self.environ)  # who reads a variable for its value says what is wrong with it
        for name, other in pairs.items():
            mine, theirs = quiet.integer(name), quiet.integer(other)
            if mine is not None and theirs is not None and mine != theirs:
                self.wrong.append(f"{name}={mine} contradicts {other}={theirs}")

    def check(self, m: Membership) -> Membership:
        rank, size = m.origin.get("rank", "RANK"), m.origin.get("size", "WORLD_SIZE")
        readable = not {rank, size} & set(self.missing)
        if readable and not self.wrong and m.rank >= m.size:
            self.wrong.append(
                f"rank {m.rank} is not < world size {m.size} ({rank}={m.rank}, {size}={m.size})"
            )
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
