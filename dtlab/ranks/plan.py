"""The checked arguments of launch: a refusal is one line that names the field, the value and the way out."""

import inspect
import math
import operator
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks import processes, variables
from dtlab.ranks.host_memory import available_bytes

_FILES_PER_RANK = 8  # descriptors that this process holds for each
_MEMORY_PER_RANK = 10 * 2**20  # bytes of its own that a rank has before it does anything (11 MiB on Linux)


@dataclass(frozen=True)
class Plan:
    """A checked call of launch."""

    nproc: int
    nnodes: int
    timeout: float | None
    port: int
    method: str
    environ: dict[str, str]
    log_dir: Path | None
    echo: bool
    max_restarts: int
    seed: int

    @property
    def world_size(self) -> int:
        return self.nproc * self.nnodes


def check(
    fn: Any, nproc: Any, nnodes: Any, timeout: Any, port: Any, start_method: Any, env: Any, log_dir: Any,
    echo: bool, max_restarts: Any, seed: Any,
) -> Plan:  # fmt: skip
    if sys.platform == "win32":
        raise UserError("launch: native Windows is not supported; run in WSL 2")
    if not callable(fn):
        raise UserError(f"fn: {fn!r} is not a function")
    if inspect.iscoroutinefunction(fn):
        raise UserError(f"fn: {fn.__name__} is a coroutine function; wrap it in one that calls asyncio.run")
    nproc = _whole("nproc", nproc, 1)
    nnodes = _whole("nnodes", nnodes, 1)
    max_restarts = _whole("max_restarts", max_restarts, 0)
    _refuse_too_many(nproc, nnodes)
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf
    ):
        raise UserError(f"timeout: {timeout!r} is not a number of seconds above 0; leave it out for no limit")
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536):
        raise UserError(f"port: {port!r} is not a port number from 0 to 65535; leave it out for a free one")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed: {seed!r} is not a whole number")
    method = start_method or processes.default_method()
    if method not in processes.METHODS:
        raise UserError(f"start_method: {method!r} is not one of {', '.join(processes.METHODS)}")
    if method == "fork":
        _refuse_fork_after_cuda()
    from dtlab.ranks.environment import loopback_interface

    return Plan(
        nproc=nproc,
        nnodes=nnodes,
        timeout=timeout,
        port=port or 0,
        method=method,
        environ=variables.common(env, loopback_interface()),
        log_dir=None if log_dir is None else Path(log_dir),
        echo=echo,
        max_restarts=max_restarts,
        seed=seed,
    )


def check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that ``fn`` does not take: every rank would fail with them, at every restart."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise UserError(
            f"fn: {name}{signature} does not take the arguments given ({error}); they follow nproc, as in "
            "launch(fn, 2, x, name=y)"
        ) from None


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number, NumPy's included."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UserError(f"{name}: {value!r} is not a whole number of {least} or more")
    return number


def _refuse_too_many(nproc: int, nnodes: int) -> None:
    """Each rank takes memory, and pipes, sockets and a log of this process: without, it fails half-way."""
    import resource  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limit // _FILES_PER_RANK
    if limit != resource.RLIM_INFINITY and nproc * nnodes > most:
        ranks = f"{nproc}" if nnodes == 1 else f"{nproc} on each of {nnodes} nodes"
        raise UserError(
            f"nproc: {ranks} needs about {_FILES_PER_RANK * nproc * nnodes} open files, but this process may "
            f"have {limit} (ulimit -n); start {most} ranks at most or raise ulimit -n"
        )
    fit = max(1, available_bytes() // _MEMORY_PER_RANK)
    if nproc * nnodes > fit:
        megabytes = nproc * nnodes * _MEMORY_PER_RANK // 2**20
        raise UserError(
            f"nproc: {nproc * nnodes} ranks need {megabytes:,} MiB of memory and more; "
            f"what is free here is enough for {fit} at most"
        )


def _refuse_fork_after_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UserError(
            "start_method: 'fork' cannot be used because CUDA is already initialised in this process "
            "(torch.cuda.is_initialized() is True) and a forked rank could not use it; restart the kernel "
            "and move all CUDA calls into the function, or use start_method='spawn' or 'forkserver'"
        )


def threads(plan: Plan) -> int:
    """Threads for torch in each rank: the cores shared out, unless the user says otherwise."""
    if plan.method == "fork":
        return 1  # OpenMP's threads do not survive a fork, and a parallel region would wait for them
    asked = plan.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // plan.world_size)
