"""Starts the fork server before the first launch: it imports torch while the caller does other things."""

from dtlab.ranks import processes, variables
from dtlab.ranks.environment import loopback_interface


def start_server() -> None:
    """Start what the next :func:`dtlab.launch` of this process needs; returns at once.

    The server is that of the environment as it is now. It needs torch for a second of processor time, on
    another core if there is one. Nothing happens where ranks are not forked from a server.

    Raises:
        UserError: the environment is one that launch refuses.

    >>> start_server()
    """
    if processes.default_method() != "forkserver":
        return
    environ = variables.common(None, loopback_interface())
    processes.give_back(processes.take_server(variables.import_time(environ), environ))
