"""Who am I among the ranks: the variables of dtlab, torchrun, MPI, Slurm and SageMaker read as a whole (lesson 02)."""

from __future__ import annotations

import socket

import psutil


def loopback_interface() -> str | None:
    """Name of the network interface that holds 127.0.0.1 (``lo`` on Linux, ``lo0`` on macOS), or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return name
    return None
