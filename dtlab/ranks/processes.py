"""Starting the processes of ranks in one of three ways, watching them, and ending them with everything they
started.

- ``forkserver``: the default on Linux; see ``forkserver.py``. One server per set of import-time variables.
- ``spawn``: a new interpreter per rank; the default elsewhere.
- ``fork``: a copy of this process. Only on request: it must not have used CUDA, and threads do not survive.

Every rank leads its own session and process group, so that Ctrl-C in a terminal reaches only the launcher,
and one signal reaches a rank together with its loader workers.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from typing import IO, Any, NoReturn

from dtlab.ranks import channel, strays, worker
from dtlab.ranks.rank_process import Child, RankProcess, Served
from dtlab.ranks.report import signal_name

METHODS = ("forkserver", "spawn", "fork")
_MOST_SERVERS = 2


def default_method() -> str:
    """``DTLAB_START_METHOD`` if set, else forkserver on Linux and spawn elsewhere."""
    return os.environ.get("DTLAB_START_METHOD") or (
        "forkserver" if sys.platform.startswith("linux") else "spawn"
    )


class _Server:
    """This side of one fork server."""

    def __init__(self, environ: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the server
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from dtlab.ranks.forkserver import main; "
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
            )

    def alive(self) -> bool:
        import psutil

        if self.process.poll() is not None:
            return False
        try:  # killed, but not yet to be waited for: its main thread has ended, others are about to
            return psutil.Process(self.process.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def last_words(self) -> str:
        """What the server wrote before it died: its last line that names an error."""
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        named = [line for line in lines if "Error" in line] or lines
        if named:
            return named[-1]
        code = self.process.poll()
        if code is None or code >= 0:
            return f"exit code {code}"
        why = " (the system sends SIGKILL when memory runs out)" if code == -signal.SIGKILL else ""
        return f"killed by {signal_name(-code)}{why}"

    def request(self, fds: list[int], rank_environ: dict[str, str]) -> Served:
        read, write = os.pipe()
        try:
            channel.send_request(self.channel, json.dumps(rank_environ).encode(), [*fds, write])
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        return Served(read)

    def close(self) -> None:
        """The server ends by itself when the socket does; ranks that it still has are killed."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


_lock = threading.Lock()
_servers: dict[tuple[tuple[str, str], ...], _Server] = {}
_in_use: dict[int, int] = {}  # id of a server -> launches that use it
# Ends of pipes and sockets whose closing means "the launcher is gone": a forked copy must not hold them.
_held: set[int] = set()


def take_server(key: tuple[tuple[str, str], ...], environ: dict[str, str]) -> _Server:
    """The running server for these import-time variables, started if needed. Does not wait for it."""
    with _lock:
        server = _servers.pop(key, None)
        if server is not None and not server.alive():
            _held.discard(server.channel.fileno())
            server.close()
            server = None
        if server is None:
            for old_key, old in list(_servers.items()):
                if len(_servers) >= _MOST_SERVERS and not _in_use.get(id(old)):
                    del _servers[old_key]
                    _held.discard(old.channel.fileno())
                    old.close()
            server = _Server(environ)
            _held.add(server.channel.fileno())
        _servers[key] = server  # last used is last
        _in_use[id(server)] = _in_use.get(id(server), 0) + 1
        return server


def give_back(server: _Server) -> None:
    with _lock:
        _in_use[id(server)] -= 1


def start_served(server: _Server, fds: worker.Descriptors, rank_environ: dict[str, str]) -> RankProcess:
    with _lock:
        return server.request(fds.all(), rank_environ)


def start_spawned(
    fds: worker.Descriptors, environ: dict[str, str], rank_environ: dict[str, str]
) -> RankProcess:
    _start_guard()
    code = f"import sys; sys.path[:] = {sys.path!r}; from dtlab.ranks.worker import main; main()"
    numbers = [str(fd) for fd in fds.all()]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *numbers, json.dumps(rank_environ)],
        env={**environ, **rank_environ},
        pass_fds=fds.all(),
        stdin=subprocess.DEVNULL,
        stdout=fds.output,
        stderr=fds.output,
        start_new_session=True,
    )
    return Child(process.pid, process)


def start_forked(
    fds: worker.Descriptors, rank_environ: dict[str, str], not_for_child: Iterable[int]
) -> RankProcess:
    _start_guard()
    pid = os.fork()
    if pid == 0:
        _become_rank(fds, rank_environ, not_for_child)
    return Child(pid)


def _become_rank(
    fds: worker.Descriptors, rank_environ: dict[str, str], not_for_child: Iterable[int]
) -> NoReturn:
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for fd in not_for_child:
            with contextlib.suppress(OSError):
                os.close(fd)
        atexit._clear()  # the parent's, not ours
        worker.run(fds, rank_environ)
    finally:
        os._exit(1)


def _start_guard() -> None:
    """Ranks that are children of this process: what they start must end with it too."""
    with _lock:
        line = strays.guard()
        if line is not None:
            hold(line)


def hold(fd: int) -> None:
    """Remember a descriptor that copies of this process must close."""
    _held.add(fd)


def release(fd: int) -> None:
    if fd in _held:
        _held.discard(fd)
        os.close(fd)


def descendants(processes: Iterable[RankProcess]) -> list[Any]:
    """Processes below the ranks now, also those that left the rank's process group."""
    import psutil

    found: list[Any] = []
    for process in processes:
        if process.pid is not None and process.exit_code is None:
            with contextlib.suppress(psutil.Error):
                found += psutil.Process(process.pid).children(recursive=True)
    return found


def _in_forked_copy() -> None:
    global _lock
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    for server in _servers.values():
        server.channel.detach()
        server.process.returncode = 0  # not ours to wait for
    _held.clear()
    _servers.clear()
    _in_use.clear()
    _lock = threading.Lock()


def _at_exit() -> None:
    for server in list(_servers.values()):
        server.close()
    _servers.clear()


os.register_at_fork(after_in_child=_in_forked_copy)
atexit.register(_at_exit)
