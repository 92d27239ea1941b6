"""A rank's process as the launcher holds it: is it alive, how did it end, signal it with what it started."""

import contextlib
import os
import signal
import subprocess

from dtlab.ranks.forkserver import STATUS


class RankProcess:
    """One rank's process. ``exit_code`` is None while it lives, negative for a signal."""

    pid: int | None = None
    exit_code: int | None = None
    lost = False  # the fork server died, so the exit code is not known

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when something changes; None: call :meth:`poll` now and then."""
        raise NotImplementedError

    def poll(self) -> int | None:
        raise NotImplementedError

    def send(self, number: int) -> None:
        """Signal the rank and what it started."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                if self.exit_code is None:  # forked, but not yet the leader of its group
                    os.kill(self.pid, number)

    def close(self) -> None:
        pass


class Served(RankProcess):
    """A child of the fork server, which writes its pid and later its exit code to ``status``."""

    def __init__(self, status: int) -> None:
        os.set_blocking(status, False)
        self._status = status
        self._data = b""

    def fileno(self) -> int | None:
        return self._status if self._status >= 0 else None

    def poll(self) -> int | None:
        while self._status >= 0 and self.exit_code is None:
            try:
                piece = os.read(self._status, 64)
            except BlockingIOError:
                break
            if not piece:
                self.lost, self.exit_code = True, -signal.SIGKILL
                break
            self._data += piece
            size = STATUS.size
            if self.pid is None and len(self._data) >= size:
                (self.pid,) = STATUS.unpack_from(self._data)
            if len(self._data) >= 2 * size:
                (self.exit_code,) = STATUS.unpack_from(self._data, size)
        return self.exit_code

    def close(self) -> None:
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


class Child(RankProcess):
    """A direct child of this process."""

    def __init__(self, pid: int, spawned: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self._spawned = spawned
        self._fd: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._fd = os.pidfd_open(pid)

    def fileno(self) -> int | None:
        return self._fd

    def poll(self) -> int | None:
        if self.exit_code is None and self.pid is not None:
            if self._spawned is not None:
                self.exit_code = self._spawned.poll()
            else:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else in this process collected it
                    self.lost, self.exit_code = True, -signal.SIGKILL
                else:
                    if pid:
                        self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
