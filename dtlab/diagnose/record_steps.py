"""What run records say of the time of a step: the input of ``dtlab cost fit`` (lessons 01 and 10).

A record's readings are taken: the first is left out, because the first steps allocate and warm up, and the
median of the rest stands for the run, so that a slow moment of the machine does not move it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from dtlab.cost.run_fit import RunSteps
from dtlab.diagnose.record_file import Event, RunRecord
from dtlab.errors import UserError

__all__ = ["run_steps", "same_job"]

_SAME = ("model", "data", "precision")


def run_steps(record: RunRecord) -> RunSteps:
    """Seconds of a step of that run, of its communication and of its waiting for data.

    Raises:
        UserError: the record lacks batch or ranks, or has no readings and no finished epoch.
    """
    start, name = record.start, record.path.parent.name
    ranks = _whole(start, name, "world_size")
    layout = f" {start.text('layout') or ''}"
    if any(degree in layout for degree in (" pp ", " tp ", " dp_shard ")):
        raise UserError(
            f"record = {name!r}: its layout is{layout}; the fit is for data parallelism, give runs without "
            "the table [parallel]"
        )
    batch = _whole(start, name, "config", "optim", "global_batch")
    cores = start.number("environment", "cores")
    threads = start.number("environment", "threads")
    steps = _from_readings(record, batch) or _from_epochs(record, batch)
    if not steps:
        raise UserError(
            f"record = {name!r}: no reading of the speed in it; run it with a smaller run.log_every, for "
            "some dozens of steps"
        )
    seconds = median(each[0] for each in steps)
    return RunSteps(
        ranks=ranks,
        global_batch=batch,
        step_seconds=seconds,
        communication_seconds=median(each[1] for each in steps) if ranks > 1 else 0.0,
        wait_seconds=median(each[2] for each in steps),
        spread=_half_of_the_middle([each[0] for each in steps]) / seconds,
        cores=None if start.text("environment", "card") is not None or not cores else int(cores),
        nodes=int(start.number("num_nodes") or 1),
        threads=None if threads is None else int(threads),
        name=name,
    )


def same_job(records: Sequence[RunRecord]) -> None:
    """Refuse records of different models, data or precision: their steps have nothing in common.

    Raises:
        UserError: the first field that differs, with both values.
    """
    first = _settings(records[0])
    for record in records[1:]:
        other = _settings(record)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise UserError(
                    f"records: {key} = {first.get(key)!r} in {records[0].path.parent.name} and "
                    f"{other.get(key)!r} in {record.path.parent.name}; give runs that differ in ranks and "
                    "optim.global_batch only"
                )


def _settings(record: RunRecord) -> dict[str, Any]:
    config = record.start.value("config")
    parts = {part: config.get(part) for part in _SAME} if isinstance(config, dict) else {}
    found: dict[str, Any] = {"card": record.start.text("environment", "card")}
    for part, values in parts.items():
        for key, value in (values if isinstance(values, dict) else {"": values}).items():
            found[f"{part}.{key}"] = json.dumps(value, default=str)
    return found


def _whole(event: Event, name: str, *keys: str) -> int:
    value = event.number(*keys)
    if value is None or value < 1 or value != int(value):
        raise UserError(f"record = {name!r}: {'.'.join(keys)} is missing; give the record.jsonl of a run")
    return int(value)


def _from_readings(record: RunRecord, batch: int) -> list[tuple[float, float, float]]:
    readings = [event for event in record.attempts[-1] if event.kind == "reading"]
    found = [_parts(event, batch) for event in readings[1:]]
    return [each for each in found if each is not None]


def _from_epochs(record: RunRecord, batch: int) -> list[tuple[float, float, float]]:
    found = [_parts(event, batch) for event in record.attempts[-1] if event.kind == "epoch"]
    return [each for each in found if each is not None]


def _parts(event: Event, batch: int) -> tuple[float, float, float] | None:
    """Seconds of a step, of its communication and of its waiting."""
    speed = event.number("samples_per_second")
    if speed is None or speed <= 0:
        return None
    seconds = batch / speed
    shares = (event.number(f"{part}_share") or 0.0 for part in ("communication", "wait"))
    communication, wait = (seconds * min(1.0, max(0.0, share)) for share in shares)
    return seconds, communication, wait


def _half_of_the_middle(values: Sequence[float]) -> float:
    if len(values) < 3:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
