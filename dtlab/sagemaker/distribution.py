"""How a job's ranks are started: dtlab's own words, or a v2 ``distribution={...}`` (lesson 15).

Version 2 of the SageMaker SDK took a dictionary for each way to distribute. Most of what it could name is
frozen or gone, so ``translate`` turns it into torchrun on every host, one rank a card, and gives a line for
each change.

=============================================  ==============================================
v2                                             here
=============================================  ==============================================
``{"mpi": {...}}``                             torchrun; ``-x NAME=VALUE`` becomes a variable
``{"torch_distributed": {...}}``               torchrun
``{"pytorchddp": {...}}``                      torchrun
``{"smdistributed": {"dataparallel": ...}}``   torchrun with NCCL
``{"smdistributed": {"modelparallel": ...}}``  torchrun and ``dtlab.parallel.pipeline``
=============================================  ==============================================

Own words: ``launcher`` ("torchrun" or "mpi"), ``ranks_per_host``, ``stages``, ``schedule`` and
``micro_batches``; for MPI also ``mpi_options``. Beside a v2 ``mpi`` table ``launcher = "mpi"`` keeps MPI.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from dtlab.cost.pipeline import bubble_share
from dtlab.errors import UserError
from dtlab.settings_file import near_name

__all__ = ["Layout", "translate"]

Launcher = Literal["torchrun", "mpi"]
_OWN = ("launcher", "ranks_per_host", "stages", "schedule", "micro_batches", "mpi_options")
_V2 = ("mpi", "smdistributed", "torch_distributed", "pytorchddp")
_OTHERS = {
    "parameter_server": "TensorFlow's parameter server has no counterpart in PyTorch",
    "multi_worker_mirrored_strategy": "it is TensorFlow's",
    "torchxla": "it is for Trainium cards",
}
# What smdistributed calls its schedules: "interleaved" alternates forwards and backwards, which is 1F1B.
_SCHEDULES = {"interleaved": "1f1b", "simple": "gpipe", "_only_forward": "gpipe"}
_MICRO_BATCHES_PER_STAGE = 4


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a host starts its ranks.

    Attributes:
        launcher: torchrun on every host, or SageMaker's MPI.
        ranks_per_host: None: one for each card, or one where there is none.
        environment: variables that the dictionary asked for.
        mpi_options: for mpirun, with ``launcher="mpi"``.
        stages, schedule, micro_batches: of a pipeline; ``stages`` = 1: none.
        changes: one line for each thing that is not as the dictionary says, and why.
    """

    launcher: Launcher = "torchrun"
    ranks_per_host: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mpi_options: str = ""
    stages: int = 1
    schedule: str = "1f1b"
    micro_batches: int = 1
    changes: tuple[str, ...] = ()


def translate(distribution: Mapping[str, Any]) -> Layout:
    """What ``distribution`` means today.

    Raises:
        UserError: a key that neither dtlab nor v2 knows, a value of the wrong kind, or a strategy that
            PyTorch has no counterpart for.

    >>> layout = translate({"mpi": {"enabled": True, "processes_per_host": 4,
    ...                             "custom_mpi_options": "-x NCCL_DEBUG=WARN"}})
    >>> layout.launcher, layout.ranks_per_host, dict(layout.environment)
    ('torchrun', 4, {'NCCL_DEBUG': 'WARN'})
    """
    for key in distribution:
        if key in _OTHERS:
            raise UserError(f"distribution.{key}: {_OTHERS[key]}; use launcher = 'torchrun'")
        if key not in _OWN and key not in _V2:
            near = near_name(key, (*_OWN, *_V2))
            raise UserError(
                f"distribution.{key}: no such key; "
                + (f"did you mean {near}?" if near else f"there are {', '.join((*_OWN, *_V2))}")
            )
    layout = _own(distribution)
    given = [key for key in _V2 if key in distribution and _is_enabled(key, distribution[key])]
    if "smdistributed" in given and "mpi" in given:
        given.remove("mpi")  # v2 demanded it beside model parallelism: it only says how many processes
        layout = _mpi(layout, _table("mpi", distribution["mpi"]), beside=True)
    if len(given) > 1:
        raise UserError(f"distribution: {' and '.join(given)} are both enabled; enable one")
    if not given:
        off = [key for key in _V2 if key in distribution]
        return (
            _changed(
                layout,
                f"{', '.join(off)} is not enabled, which starts one process a host and leaves the "
                "other cards idle: torchrun starts one rank for each card",
            )
            if off
            else layout
        )
    name = given[0]
    table = _table(name, distribution[name])
    if name == "mpi":
        return _mpi(layout, table)
    if name == "smdistributed":
        return _smdistributed(layout, table)
    _known(name, table, ("enabled",))
    line = f"{name} -> torchrun on every host, started by dtlab's first process, which passes SIGTERM on to"
    return _changed(layout, line + " the ranks; the SDK's own drivers do not")


def _own(values: Mapping[str, Any]) -> Layout:
    launcher = values.get("launcher", "torchrun")
    if launcher not in get_args(Launcher):
        raise UserError(f"distribution.launcher = {launcher!r}: choose 'torchrun' or 'mpi'")
    options = values.get("mpi_options", "")
    if not isinstance(options, str):
        raise UserError(f"distribution.mpi_options = {options!r}: give text, as for mpirun")
    if options and launcher != "mpi":
        raise UserError(f"distribution.mpi_options = {options!r}: goes with launcher = 'mpi'")
    ranks = values.get("ranks_per_host")
    layout = Layout(
        launcher=launcher,
        ranks_per_host=None if ranks is None else _count("ranks_per_host", ranks),
        mpi_options=options,
    )
    stages = _count("stages", values.get("stages", 1))
    if stages == 1:
        for name in ("schedule", "micro_batches"):
            if name in values:
                raise UserError(f"distribution.{name} = {values[name]!r}: goes with stages of 2 or more")
        return layout
    return _pipeline(layout, stages, values.get("schedule", "1f1b"), values.get("micro_batches"), "stages")


def _mpi(layout: Layout, table: Mapping[str, Any], *, beside: bool = False) -> Layout:
    _known("mpi", table, ("enabled", "processes_per_host", "custom_mpi_options"))
    ranks = table.get("processes_per_host")
    ranks = None if ranks is None else _count("mpi.processes_per_host", ranks)
    options = table.get("custom_mpi_options", "")
    if not isinstance(options, str):
        raise UserError(f"distribution.mpi.custom_mpi_options = {options!r}: give text, as for mpirun")
    layout = replace(layout, ranks_per_host=layout.ranks_per_host or ranks)
    if layout.launcher == "mpi":
        return replace(layout, mpi_options=options or layout.mpi_options)
    if not beside:
        count = "one rank a card" if ranks is None else f"{ranks} ranks a host"
        layout = _changed(
            layout,
            f"mpi -> torchrun with {count}: NCCL needs no MPI, version 3 of the SDK starts too "
            "few MPI ranks on more than one host, and mpirun passes no SIGTERM on; launcher = 'mpi' "
            "keeps it",
        )
    return _mpirun_options(layout, options)


def _mpirun_options(layout: Layout, options: str) -> Layout:
    """``-x NAME=VALUE`` as variables of the job; what only mpirun understands is dropped with a line."""
    variables, dropped = dict(layout.environment), []
    words = iter(shlex.split(options))
    for word in words:
        if word != "-x":
            dropped.append(word)
            continue
        name, has_value, value = next(words, "").partition("=")
        if not name:
            raise UserError("distribution.mpi.custom_mpi_options: -x without a variable; write -x NAME=VALUE")
        if has_value:
            variables[name] = value
            layout = _changed(layout, f"-x {name}={value} -> a variable of the job")
        else:
            layout = _changed(layout, f"-x {name} is dropped: torchrun hands every variable to its ranks")
    if dropped:
        layout = _changed(layout, f"{' '.join(dropped)} is dropped: only mpirun understands it")
    return replace(layout, environment=variables)


def _smdistributed(layout: Layout, table: Mapping[str, Any]) -> Layout:
    _known("smdistributed", table, ("dataparallel", "modelparallel"))
    on = [key for key in table if _is_enabled(f"smdistributed.{key}", table[key])]
    if len(on) > 1:
        raise UserError(
            "distribution.smdistributed: dataparallel and modelparallel are both enabled; enable one"
        )
    name = on[0]
    inner = _table(f"smdistributed.{name}", table[name])
    if name == "dataparallel":
        _known("smdistributed.dataparallel", inner, ("enabled", "custom_mpi_options"))
        layout = _changed(
            layout,
            "smdistributed.dataparallel -> DDP or FSDP with NCCL under torchrun: the library's "
            "last release (2.5.0, 2024-10) is for PyTorch 2.4.1",
        )
        return _mpirun_options(layout, inner.get("custom_mpi_options", ""))
    _known("smdistributed.modelparallel", inner, ("enabled", "parameters"))
    return _model_parallel(
        layout, _table("smdistributed.modelparallel.parameters", inner.get("parameters", {}))
    )


def _model_parallel(layout: Layout, given: Mapping[str, Any]) -> Layout:
    where = "smdistributed.modelparallel.parameters"
    layout = _changed(
        layout,
        "smdistributed.modelparallel -> dtlab.parallel.pipeline under torchrun: version 1 of "
        "the library is archived, and without an mpi table v2 started one process",
    )
    stages = given.get("partitions", given.get("pipeline_parallel_degree"))
    if stages is None:
        raise UserError(f"distribution.{where}.partitions: missing; give the number of pipeline stages")
    tensor = given.get("tensor_parallel_degree", 1)
    if tensor != 1:
        raise UserError(
            f"distribution.{where}.tensor_parallel_degree = {tensor!r}: cut matrices in your script, with "
            "dtlab.parallel.parallelize; leave it out here"
        )
    for name in given:
        if name not in (
            "partitions",
            "pipeline_parallel_degree",
            "pipeline",
            "microbatches",
            "ddp",
            "tensor_parallel_degree",
        ):
            layout = _changed(layout, f"{name} is dropped: it steers smdistributed alone")
    kind = given.get("pipeline", "interleaved")
    if kind not in _SCHEDULES:
        raise UserError(f"distribution.{where}.pipeline = {kind!r}: choose 'interleaved' or 'simple'")
    stages = _count(f"{where}.partitions", stages)
    layout = _changed(
        layout, f"partitions = {stages} -> {stages} stages; the ranks that are left are replicas"
    )
    if stages == 1:
        return layout
    schedule = _SCHEDULES[kind]
    layout = _changed(
        layout,
        f"pipeline = {kind!r} -> schedule {schedule!r}"
        + (
            ": forwards and backwards alternate; it is not what papers call interleaved"
            if kind == "interleaved"
            else ""
        ),
    )
    return _pipeline(layout, stages, schedule, given.get("microbatches"), "microbatches")


def _pipeline(layout: Layout, stages: int, schedule: Any, micro_batches: Any, name: str) -> Layout:
    if schedule not in ("1f1b", "gpipe"):
        raise UserError(f"distribution.schedule = {schedule!r}: choose '1f1b' or 'gpipe'")
    if micro_batches is None:
        micro_batches = _MICRO_BATCHES_PER_STAGE * stages
        idle, better = bubble_share(stages, 1), bubble_share(stages, micro_batches)
        missing = "microbatches" if name == "microbatches" else "micro_batches"
        layout = _changed(
            layout,
            f"{missing} is not given: with 1, smdistributed's default, {idle:.0%} of the ranks' "
            f"time would be idle; {micro_batches} are taken ({better:.0%})",
        )
    return replace(
        layout, stages=stages, schedule=schedule, micro_batches=_count("micro_batches", micro_batches)
    )


def _changed(layout: Layout, line: str) -> Layout:
    return replace(layout, changes=(*layout.changes, line))


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"distribution.{name} = {value!r}: give a table")
    return value


def _is_enabled(name: str, value: Any) -> bool:
    table = _table(name, value)
    if name == "smdistributed":
        _known(name, table, ("dataparallel", "modelparallel"))
        return any(_is_enabled(f"{name}.{key}", inner) for key, inner in table.items())
    enabled = table.get("enabled", False)
    if not isinstance(enabled, bool):
        raise UserError(f"distribution.{name}.enabled = {enabled!r}: give true or false")
    return enabled


def _known(name: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            near = near_name(key, keys)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(keys)}"
            raise UserError(f"distribution.{name}.{key}: no such key; {hint}")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"distribution.{name} = {value!r}: give a whole number of 1 or more")
    return value
