"""What joining takes from the variables: patience, seed and network interface (lesson 02)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dtlab.errors import UserError
from dtlab.ranks.environment import Membership, loopback_interface

# Ranks of one launch start together; hosts of a cluster may be minutes apart.
_JOIN_TIMEOUT = {"env": 10.0, "dtlab": 60.0, "torchrun": 60.0}
_JOIN_TIMEOUT_HOSTS = 300.0


def join_patience(
    m: Membership, variables: Mapping[str, str], timeout: float | None, join_timeout: float | None
) -> float:
    """Seconds until missing ranks are named: as asked, as DTLAB_JOIN_TIMEOUT says, or by the launcher's kind.

    Raises:
        UserError: DTLAB_JOIN_TIMEOUT is no positive number.
    """
    if join_timeout is not None:
        return join_timeout
    text = variables.get("DTLAB_JOIN_TIMEOUT", "")
    if text:
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise UserError(f"DTLAB_JOIN_TIMEOUT={text!r} must be a positive number of seconds")
        return seconds
    usual = _JOIN_TIMEOUT.get(m.launcher, _JOIN_TIMEOUT_HOSTS) if m.one_host else _JOIN_TIMEOUT_HOSTS
    return min(usual, timeout) if timeout else usual


def default_seed(variables: Mapping[str, str]) -> int:
    """The seed that DTLAB_SEED names, or 0."""
    text = variables.get("DTLAB_SEED", "") or "0"
    try:
        return int(text)
    except ValueError:
        raise UserError(f"DTLAB_SEED={text!r} is not a whole number") from None


def bind_to_interface(m: Membership) -> dict[str, str | None]:
    """Tell gloo and NCCL which interface to listen on; returns what to restore when leaving."""
    interface = loopback_interface() if m.one_host else m.interface
    before: dict[str, str | None] = {}
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if not os.environ.get(name):
                before[name] = os.environ.get(name)
                os.environ[name] = interface
    return before
