"""Runs a command without network, loopback up: in its own network namespace, or behind a socket guard.

- `unshare -rn` gives the command a network that holds nothing but loopback: nothing of any language gets out.
- Where that is not allowed (containers, macOS), a guard refuses Python's sockets everything but loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMESPACE = "network namespace (unshare -rn), loopback up"
GUARD = "socket guard: Python's sockets reach loopback only (unshare is not allowed here)"


def offline_command(command: Sequence[str], scratch: Path) -> tuple[list[str], dict[str, str], str]:
    """The command that runs `command` offline, variables to add to its environment, and the way used."""
    wrapped = ["unshare", "-rn", sys.executable, "-m", "dtlab.course.offline", *command]
    if shutil.which("unshare"):
        probe = [*wrapped[:5], sys.executable, "-c", ""]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return wrapped, {}, NAMESPACE
    (scratch / "sitecustomize.py").write_text(
        "from dtlab.course.offline import guard_sockets\n\nguard_sockets()\n", encoding="utf-8"
    )
    path = os.pathsep.join(filter(None, [str(scratch), os.environ.get("PYTHONPATH", "")]))
    return list(command), {"PYTHONPATH": path}, GUARD


def raise_loopback() -> None:
    """Bring the interface `lo` of this network namespace up (Linux)."""
    import fcntl

    get_flags, set_flags, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of linux/if.h
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(control, get_flags, request))[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sH14s", b"lo", flags | up, b""))


def guard_sockets() -> None:
    """Make every Python socket of this process refuse an address that is not loopback."""
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, _original: Any = original) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
                raise OSError(f"network is cut: refused {address[0]}")
            return _original(self, address)

        setattr(socket.socket, name, guarded)
    resolve = socket.getaddrinfo

    def guarded_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_loopback(host):
            raise socket.gaierror(f"network is cut: refused to look up {host}")
        return resolve(host, *args, **kwargs)

    socket.getaddrinfo = guarded_resolve


def _is_loopback(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "", "localhost", "::1", "0.0.0.0", "::", socket.gethostname()) or str(
        name
    ).startswith("127.")


if __name__ == "__main__":
    raise_loopback()
    os.execvp(sys.argv[1], sys.argv[1:])
