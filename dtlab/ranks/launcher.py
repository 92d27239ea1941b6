"""``launch(fn, nproc)``: run a function on several ranks from a notebook cell or a script (lesson 02).

- The first call starts a fork server that imports torch (about a second); later calls take about 0.1 s.
- The rendezvous store is hosted here, on a socket bound to 127.0.0.1: nothing listens beyond this host, and
  no fixed port is shared with another job.
- The same function runs unchanged under ``torchrun``: it learns its rank from its environment.
"""

import contextlib
import itertools
import os
import socket
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtlab.errors import DtlabWarning, UserError
from dtlab.ranks import payload, processes, variables
from dtlab.ranks.log_folder import log_folder
from dtlab.ranks.output import say
from dtlab.ranks.plan import Plan, check, check_call, threads
from dtlab.ranks.report import RankError, RankStarterError
from dtlab.ranks.stop_requests import StopRequests
from dtlab.ranks.supervise import Run
from dtlab.ranks.verdict import give_up, rank_error, timeout_error, to_blame
from dtlab.ranks.worker import Descriptors

__all__ = ["RankError", "RankResults", "launch"]


class RankResults(list[Any]):
    """What the ranks returned, in rank order.

    Attributes:
        logs: output of each rank as text, bounded.
        log_files: the files that hold it.
        seconds: how long the function ran on each rank.
        restarts: how often the group was restarted.
    """

    def __init__(
        self,
        values: Sequence[Any],
        *,
        logs: list[str],
        log_files: list[str],
        seconds: list[float],
        restarts: int,
    ) -> None:
        super().__init__(values)
        self.logs = logs
        self.log_files = log_files
        self.seconds = seconds
        self.restarts = restarts


def launch(
    fn: Callable[..., Any],
    nproc: int,
    *args: Any,
    nnodes: int = 1,
    timeout: float | None = None,
    port: int | None = None,
    start_method: str | None = None,
    env: Mapping[str, str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    echo: bool = True,
    max_restarts: int = 0,
    seed: int = 0,
    grace: float | None = None,
    **kwargs: Any,
) -> RankResults:
    """Run ``fn(*args, **kwargs)`` on ``nproc * nnodes`` ranks of this machine and return their results.

    ``fn`` gets no rank argument. It joins with ``dtlab.world()`` or plain ``init_process_group("gloo")``; the
    variables that ``torchrun`` sets are set. Functions of a cell, lambdas and closures work.

    Args:
        fn: the function.
        nproc: processes per host, as in torchrun's ``--nproc-per-node``.
        nnodes: hosts to simulate: sets LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK.
        timeout: seconds for the function, restarts included, from the moment when all ranks have started it;
            then a RankError names the late rank and its operation.
        port: port of the store; default any free one.
        start_method: "forkserver" (default on Linux), "spawn" (default elsewhere; slow) or "fork".
        env: variables to set in the ranks, on top of this process's environment as it is now.
        log_dir: folder for ``rank0.log`` ...; default a temporary one, removed when this process ends.
        echo: print the ranks' output as ``[Rank r] ...`` lines while they run.
        max_restarts: how often to start all ranks again when one fails. Failures at start-up (an import
            error, a function that cannot be unpacked, a UserError) are not retried.
        seed: Python, NumPy and torch are seeded from (seed, rank) in every rank.
        grace: seconds that the ranks get to return by themselves after SIGTERM or Ctrl-C at this process,
            which hands the signal on to them. By default they are ended at once.

    Returns:
        The results in rank order. Tensors come back on the CPU as plain tensors.

    Raises:
        UserError: an argument is wrong or not one of ``fn``'s, the port is in use, CUDA is in use and
            start_method is "fork", or the function cannot be pickled.
        RankError: a rank failed, or the time was up.
        RankStarterError: the process that starts the ranks was killed.
        SystemExit: code 143, when SIGTERM came and the ranks did not return in their grace time, or did not
            listen for it.

    Example:
        >>> import dtlab
        >>> def add(x):
        ...     with dtlab.world() as w:
        ...         return x + w.rank
        >>> list(dtlab.launch(add, 2, 10))
        [10, 11]
    """
    plan = check(fn, nproc, nnodes, timeout, port, start_method, env, log_dir, echo, max_restarts, seed)
    call = payload.pack(fn, args, kwargs)
    check_call(fn, args, kwargs)
    left = timeout
    with (
        _listener(plan.port) as first_socket,
        log_folder(plan.log_dir) as folder,
        _starter(plan) as starter,
        StopRequests(grace) as requests,
    ):
        listener: socket.socket | None = first_socket
        launch_id = uuid.uuid4().hex[:12]
        for restart in itertools.count():
            listener = listener or _bind(plan.port or 0)
            identity = f"{launch_id}.{restart}"
            run = _attempt(plan, call, listener, folder, starter, identity, restart, left, requests)
            listener = None
            reports = run.reports()
            if requests.received is not None and any(report.outcome != "returned" for report in reports):
                give_up(requests.received, grace if run.grace_is_over else None, reports)
            if run.timed_out or run.joins_in_vain:
                raise timeout_error(timeout if run.timed_out else None, reports)
            if not any(report.failed for report in reports):
                return _results(run, restart)
            blamed = to_blame(reports)
            hopeless = blamed is not None and blamed.start_up
            error = rank_error(reports, _restarts_in_words(restart, plan.max_restarts, hopeless))
            if hopeless or restart >= plan.max_restarts:
                raise error
            left = None if left is None else max(0.0, left - run.seconds)
            say(f"dtlab: {str(error).splitlines()[0]}; restart {restart + 1} of {plan.max_restarts}")
    raise AssertionError("unreachable")


def _attempt(
    plan: Plan,
    call: bytes,
    listener: socket.socket,
    folder: Path,
    starter: "_Starter",
    identity: str,
    restart: int,
    timeout: float | None,
    requests: StopRequests,
) -> Run:
    port = listener.getsockname()[1]
    store = _host_store(listener)
    header = {
        "environ": plan.environ,
        "cwd": os.getcwd(),
        "sys_path": sys.path,
        "argv": sys.argv,
        "sources": payload.cell_sources(),
        "threads": threads(plan),
        "seed": plan.seed,
        "stacks": str(folder / "rank{rank}.stacks"),
        "crash": str(folder / "rank{rank}.crash"),
    }
    fd = payload.write(header, call)

    def start(rank: int, fds: Descriptors, not_for_child: Sequence[int]) -> processes.RankProcess:
        own = variables.of_rank(
            rank, plan.nproc, plan.nnodes, port=port, launch_id=identity, seed=plan.seed, restart=restart,
            max_restarts=plan.max_restarts,
        )  # fmt: skip
        return starter(fds, own, not_for_child)

    try:
        with Run(plan.world_size, folder, plan.echo, store, f"{identity}/{restart}", requests) as run:
            run.start(fd, start)
            run.wait(timeout)
        starter.check(run)
        return run
    finally:
        os.close(fd)
        run.store = None  # the store's port is free as soon as nobody refers to it
        del store


def _results(run: Run, restarts: int) -> RankResults:
    values = []
    for rank in run.ranks:
        code = rank.process.exit_code if rank.process is not None else None
        if code or rank.stopped:
            how = "had to be stopped" if rank.stopped else f"ended with exit code {code}"
            warnings.warn(
                f"rank {rank.rank} of {len(run.ranks)} returned its result, then {how} while it was leaving",
                DtlabWarning,
                stacklevel=3,
            )
        try:
            values.append(payload.unpack_result(rank.result or b""))
        except Exception as error:
            raise UserError(
                f"fn: the result of rank {rank.rank} cannot be read in this process "
                f"({type(error).__name__}: {error}); return plain values or tensors"
            ) from error
    return RankResults(
        values,
        logs=[rank.output.text() for rank in run.ranks],
        log_files=[str(rank.output.path) for rank in run.ranks],
        seconds=[rank.seconds for rank in run.ranks],
        restarts=restarts,
    )


def _restarts_in_words(used: int, allowed: int, hopeless: bool) -> str:
    if allowed == 0:
        return "restarts are off (max_restarts=0)"
    words = f"{used} of {allowed} restarts used"
    return f"{words}: a failure at start-up would come again" if hopeless and used < allowed else words


class _Starter:
    """Starts ranks in the way that the plan asks for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.server = None
        if plan.method == "forkserver":
            self.server = processes.take_server(variables.import_time(plan.environ), plan.environ)

    def __call__(
        self, fds: Descriptors, own: dict[str, str], not_for_child: Sequence[int]
    ) -> processes.RankProcess:
        if self.plan.method == "spawn":
            return processes.start_spawned(fds, self.plan.environ, own)
        if self.plan.method == "fork":
            return processes.start_forked(fds, own, not_for_child)
        assert self.server is not None
        try:
            return processes.start_served(self.server, fds, own)
        except OSError:
            raise self._server_died() from None

    def check(self, run: Run) -> None:
        """Raise when the server, not a rank, is what failed."""
        if self.server is not None and any(r.process is not None and r.process.lost for r in run.ranks):
            raise self._server_died()

    def _server_died(self) -> RankStarterError:
        assert self.server is not None
        with contextlib.suppress(Exception):
            self.server.process.wait(1.0)
        return RankStarterError(f"the process that starts the ranks ended: {self.server.last_words()}")

    def close(self) -> None:
        if self.server is not None:
            processes.give_back(self.server)


@contextlib.contextmanager
def _starter(plan: Plan) -> Iterator[_Starter]:
    starter = _Starter(plan)
    try:
        yield starter
    finally:
        starter.close()


def _bind(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(
            f"port: {port} cannot be used ({os.strerror(error.errno or 0)}); leave port out to get a free one"
        ) from None


@contextlib.contextmanager
def _listener(port: int) -> Iterator[socket.socket]:
    with _bind(port) as listener:
        yield listener


def _host_store(listener: socket.socket) -> Any:
    from datetime import timedelta

    import torch.distributed as dist

    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=60),
    )  # fmt: skip
