"""The life of one rank, from its first instruction to its exit (lesson 02).

It takes its environment, joins the launcher's store, starts the recorder, seeds itself, runs the function and
reports. Whatever started the process (fork server, spawn, fork) calls :func:`run`.

- A rank that has returned stays until the launcher releases it, so that no peer sees a closed connection
  while it still finishes its last collective; then it destroys the process group that the function left.
- A rank that failed leaves at once: its peers stop waiting within milliseconds.
- When the launcher's process is gone, however it ended, the rank kills its whole process group.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from dtlab.ranks import channel, payload, stop_requests
from dtlab.ranks.report import describe_exception

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_crash_file: IO[str] | None = None


@dataclass(frozen=True)
class Descriptors:
    """What a rank inherits. ``lifeline`` is the pipe that ends with the launcher."""

    call: int
    control: int
    output: int
    lifeline: int

    def all(self) -> list[int]:
        return [self.call, self.control, self.output, self.lifeline]


def run(fds: Descriptors, rank_environ: dict[str, str]) -> NoReturn:
    """Be a rank. Never returns: the process ends here."""
    code = EXIT_FAILED
    try:
        _watch_launcher(fds.lifeline)
        _take_output(fds.output)
        header, call = payload.read(fds.call)
        os.close(fds.call)
        with socket.socket(fileno=fds.control) as control:
            code = _live(control, header, call, rank_environ)
    except BaseException:
        import traceback

        traceback.print_exc()
    leave(code)


def _live(
    control: socket.socket, header: dict[str, Any], call: memoryview, rank_environ: dict[str, str]
) -> int:
    started = False
    try:
        _set_up(header, rank_environ)
        _join(header)
        fn, args, kwargs = payload.unpack(call)
        stop_requests.hold_for(fn)
        control.sendall(channel.pack(channel.STARTED))
        started = True
        begin = time.perf_counter()
        result = _call(fn, args, kwargs)
        _done_with_signals()
        seconds = time.perf_counter() - begin
        control.sendall(channel.pack_result(seconds, _packed(result)))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            code = EXIT_INTERRUPTED
        else:
            code = _exit_code(error.code) if isinstance(error, SystemExit) else EXIT_FAILED
        report = describe_exception(error, start_up=not started)
        with contextlib.suppress(OSError):
            control.sendall(channel.pack(channel.FAILED, json.dumps(report).encode()))
        return code
    _wait_for_release(control)
    _end_group()
    return 0


def _call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except SystemExit as error:
        if _exit_code(error.code) != 0:
            raise
        return None


def _done_with_signals() -> None:
    """A stop that is handed on too late takes no result away: from here on the launcher says when to go."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _packed(result: Any) -> bytes:
    try:
        return payload.pack_result(result)
    except Exception as error:
        raise TypeError(
            f"the result ({type(result).__name__}) cannot be sent back: {' '.join(str(error).split())}"
        ) from error


def _exit_code(code: object) -> int:
    """What the interpreter makes of ``SystemExit.code``."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else EXIT_FAILED


def _set_up(header: dict[str, Any], rank_environ: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(header["environ"])
    os.environ.update(rank_environ)
    os.chdir(header["cwd"])
    sys.path[:] = header["sys_path"]
    sys.argv = list(header["argv"])
    payload.add_sources(header["sources"])


def _join(header: dict[str, Any]) -> None:
    """Make torch see this rank's environment, connect the recorder, seed."""
    import torch
    import torch.distributed as dist

    from dtlab.ranks import recorder, seeds

    # The server's torch was imported under another environment, and all ranks share its generator state.
    dist.set_debug_level_from_env()
    torch.set_num_threads(header["threads"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    recorder.start(store, rank, world_size)
    recorder.dump_on_signal(header["stacks"].format(rank=rank))
    _dump_crash_to(header["crash"].format(rank=rank))
    if header["seed"] is not None:
        seeds.seed_everything(header["seed"], rank)
    else:
        random.seed()


def _take_output(fd: int) -> None:
    """Descriptors 1 and 2 become the pipe to the launcher, with Python's own streams made anew on top."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    if fd > 2:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 2:
        os.close(null)
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Line by line, so that what is printed just before a crash arrives.
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    faulthandler.enable(file=sys.stderr, all_threads=False)


def _dump_crash_to(path: str) -> None:
    """Stacks of all threads at a crash, into a file: when a thread of gloo crashes, the main one tells."""
    global _crash_file
    _crash_file = open(path, "w")  # noqa: SIM115  faulthandler keeps the descriptor
    faulthandler.enable(file=_crash_file, all_threads=True)


def _watch_launcher(lifeline: int) -> None:
    """Kill this process group when the launcher's end of the pipe is closed."""
    launcher = os.getppid()

    def watch() -> None:
        import select

        while True:
            ready, _, _ = select.select([lifeline], [], [], 1.0)
            if ready or os.getppid() != launcher:
                os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="dtlab-lifeline", daemon=True).start()
    if hasattr(fcntl, "F_SETSIG"):
        # Linux: the kernel itself sends the signal, also while C code holds the interpreter lock.
        with contextlib.suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _wait_for_release(control: socket.socket) -> None:
    """Until the launcher says that all have returned (or that waiting longer makes no sense)."""
    with contextlib.suppress(OSError):
        control.recv(1)


def _end_group() -> None:
    import torch.distributed as dist

    from dtlab.ranks import recorder

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    recorder.stop()


def leave(code: int) -> NoReturn:
    """End the process without tearing the interpreter down.

    With torch loaded that takes 0.4 s, and a thread of torch that is still there may abort the process.
    """
    if code == 0:
        with contextlib.suppress(BaseException):
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
            for child in multiprocessing.active_children():
                if child.daemon:
                    child.terminate()
                child.join()
            atexit._run_exitfuncs()
            logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    with contextlib.suppress(BaseException):
        ctypes.CDLL(None).fflush(None)
    os._exit(code)


def main() -> None:
    """Entry of a spawned rank: ``python -c ... CALL CONTROL OUTPUT LIFELINE RANK_ENVIRON``."""
    numbers = [int(text) for text in sys.argv[1:5]]
    run(Descriptors(*numbers), json.loads(sys.argv[5]))
