"""The server that forks ranks may be started before the first launch, which then uses it."""

import subprocess
import sys
import textwrap

_AHEAD = textwrap.dedent(
    """
    import psutil
    from dtlab.ranks import processes
    from dtlab.ranks.ahead import start_server

    start_server()
    (server,) = processes._servers.values()

    import torch, dtlab  # what they set in the environment must not ask for another server

    parents = dtlab.launch(lambda: __import__("os").getppid(), 2, timeout=60)
    assert list(parents) == [server.process.pid] * 2, (parents, server.process.pid)
    assert len(psutil.Process().children()) == 1
    """
)


def test_a_server_that_was_started_ahead_serves_the_first_launch():
    ended = subprocess.run([sys.executable, "-c", _AHEAD], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
