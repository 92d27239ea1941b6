"""The fork server: a small process that has imported torch and forks one process per rank on request.

Importing torch takes a second; forking a process that has it takes milliseconds. Python's own fork server is
not used because it serves everything in the process at once (its imports and variables are those of its first
use) and runs the user's ``__main__`` again in each child.

- It is started by ``processes.py`` with one socket to the launcher's process and does nothing by itself.
- It has no threads and never touches CUDA, so that forking is safe; the launcher's process may have used
  both.
- It reports each child's process id and exit status on the pipe that came with the request.
- When the launcher's process is gone it kills every child's process group, and what ranks started in
  sessions of their own, and ends.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

from dtlab.ranks import channel, strays

STATUS = struct.Struct("!q")

# What ranks nearly always import.
_AT_START = ("torch", "torch.distributed", "torch.multiprocessing", "dtlab.ranks.worker",
             "dtlab.ranks.recorder", "dtlab.ranks.seeds", "dtlab.ranks.worlds")  # fmt: skip
# Torch imports _dynamo in the first optimizer step, which takes a second; torchmetrics takes half of one.
# They are loaded one at a time: at once when a rank had to import them itself, else while nobody waits, which
# may be before the first request (``ahead.py``).
_WHEN_IDLE = ("torch._dynamo", "torch.nn.parallel", "torch.utils.data", "torchmetrics")
# Fewer programs need these: loaded only when a rank had to import them itself. Without them each rank that
# trains imports for 0.4 s, and each of a lesson's check for 0.07 s, in every launch anew. Arrow loads
# pandas when it fills the first null, which takes 0.3 s.
_WHEN_WISHED = ("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining",
                "torch.distributed.checkpoint", "dtlab.collectives", "dtlab.parallel",
                "dtlab.train.job", "dtlab.course.interrupted",
                "dtlab.course.lessons.on_ranks", "pandas")  # fmt: skip
_LATER = _WHEN_IDLE + _WHEN_WISHED
_IDLE_SECONDS = 0.05
_TICK_SECONDS = 1.0


def main(fd: int, launcher: int) -> None:
    """Serve until the launcher's process is gone."""
    # Slurm and systemd signal every process of a job: this one stays, so that the ranks can save.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    strays.adopt_orphans()
    for name in _AT_START:
        _load(name)
    with socket.socket(fileno=fd) as requests:
        _Server(requests, launcher).serve()


def _load(name: str) -> None:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise


class _Server:
    def __init__(self, requests: socket.socket, launcher: int) -> None:
        self.requests = requests
        self.launcher = launcher
        self.status_of: dict[int, int] = {}  # process id -> pipe for its exit status
        self.later = list(_LATER)
        self.wanted: set[str] = set()
        self.wake_read, self.wake_write = os.pipe()
        self.wish_read, self.wish_write = os.pipe()  # one byte: the place in _LATER of what a rank imported
        for end in (self.wake_read, self.wake_write, self.wish_read, self.wish_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # pages that the collector never touches stay shared with the children

    def serve(self) -> None:
        waiting_for: list[Any] = [self.requests, self.wake_read, self.wish_read]
        try:
            while os.getppid() == self.launcher:
                at_leisure = [name for name in self.later if name in _WHEN_IDLE]
                idle = not self.status_of and bool(at_leisure)
                ready = select.select(waiting_for, [], [], _IDLE_SECONDS if idle else _TICK_SECONDS)[0]
                if self.wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
                    self.reap()
                if self.wish_read in ready:
                    self.wanted.update(_LATER[place] for place in os.read(self.wish_read, 4096))
                if not self.status_of:  # not while the launcher waits for a rank's end
                    while self.wanted:
                        self.load_now(self.wanted.pop())
                if self.requests in ready and not self.serve_one():
                    break
                if idle and not ready:
                    self.load_now(at_leisure[0])
        finally:
            for pid in self.status_of:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            strays.end_descendants()

    def load_now(self, name: str) -> None:
        if name in self.later:
            self.later.remove(name)
            with contextlib.suppress(Exception):  # the rank that needs it will say what is wrong
                _load(name)
            gc.freeze()

    def wish(self) -> None:
        """In a rank that leaves: what the next ranks should not have to import again."""
        places = [place for place, name in enumerate(_LATER) if name in sys.modules and name in self.later]
        with contextlib.suppress(OSError):
            os.write(self.wish_write, bytes(places))

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self.status_of.pop(pid, None)
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipe, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(pipe)

    def serve_one(self) -> bool:
        try:
            request = channel.receive_request(self.requests, 5)
        except (EOFError, ConnectionResetError):
            return False
        if request is None:
            return False
        body, fds = request
        *inherited, status = fds
        pid = os.fork()
        if pid == 0:
            self.become_rank(inherited, status, json.loads(body))
        for fd in inherited:
            os.close(fd)
        self.status_of[pid] = status
        with contextlib.suppress(BrokenPipeError):
            os.write(status, STATUS.pack(pid))
        return True

    def become_rank(self, inherited: list[int], status: int, rank_environ: dict[str, str]) -> None:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.requests.close()
            for fd in (self.wake_read, self.wake_write, self.wish_read, status, *self.status_of.values()):
                os.close(fd)
            gc.unfreeze()
            atexit._clear()  # what torch registered in the server; running it takes 60 ms and serves nobody
            atexit.register(self.wish)
            from dtlab.ranks.worker import Descriptors, run

            run(Descriptors(*inherited), rank_environ)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
