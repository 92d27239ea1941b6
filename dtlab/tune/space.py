"""What is searched: ``[tune.space]`` of a configuration file, setting by setting.

::

    [tune.space]
    "optim.lr" = {low = 1e-4, high = 1e-2, log = true}
    "optim.global_batch" = [1024, 2048, 4096]
    "model.dropout" = {low = 0.0, high = 0.5}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtlab.errors import UserError
from dtlab.train.config import TrainConfig

__all__ = ["Choice", "Range", "Space", "changed", "read_space"]

_WHERE_KEPT = ("run.folder", "run.output", "run.resume", "run.refit", "run.mlflow")
_SHAPE = "give a list of choices, or {low = 1e-4, high = 1e-2, log = true}"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole ones where both are; with ``log`` even in the logarithm."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]


Space = dict[str, Range | Choice]


def read_space(values: Any, config: TrainConfig) -> Space:
    """Check ``[tune.space]``; every setting must exist in ``config`` and take both ends or every choice.

    Raises:
        UserError: nothing to search, an unknown setting or one that says where a run is kept, a range that
            is empty or has no logarithm.

    >>> read_space({"optim.lr": {"low": 1e-4, "high": 1e-2, "log": True}}, TrainConfig())
    {'optim.lr': Range(low=0.0001, high=0.01, log=True)}
    """
    if not isinstance(values, dict) or not values:
        raise UserError(f"tune.space = {values!r}: name one setting or more; {_SHAPE}")
    space: Space = {}
    for name, given in values.items():
        if name in _WHERE_KEPT:
            raise UserError(
                f"tune.space.{name}: says where a run is kept, not how it is trained; leave it out"
            )
        found = _read(f"tune.space.{name}", given)
        ends = found.values if isinstance(found, Choice) else (found.low, found.high)
        for value in ends:
            changed(config, {name: value})  # an unknown name, or a value that the setting refuses
        space[name] = found
    return space


def changed(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """``config`` with other values for settings named with a dot.

    Raises:
        UserError: no such setting, or it does not take the value.

    >>> changed(TrainConfig(), {"optim.lr": 0.01}).optim.lr
    0.01
    """
    tables = config.to_dict()
    for name, value in values.items():
        table, _, key = name.partition(".")
        if table not in tables or key not in tables[table]:
            raise UserError(
                f'tune.space.{name}: no such setting; write table and field in quotes, for example "optim.lr"'
            )
        tables[table][key] = value
    return TrainConfig.from_dict(tables)


def _read(where: str, given: Any) -> Range | Choice:
    if isinstance(given, dict) and set(given) == {"choices"}:
        given = given["choices"]
    if isinstance(given, list):
        fine = given and all(isinstance(value, bool | int | float | str) for value in given)
        if not fine or len({repr(value) for value in given}) < len(given):
            raise UserError(f"{where} = {given!r}: give plain values, each once")
        return Choice(tuple(given))
    if not isinstance(given, dict) or not {"low", "high"} <= set(given) <= {"low", "high", "log"}:
        raise UserError(f"{where} = {given!r}: {_SHAPE}")
    low, high, log = given["low"], given["high"], given.get("log", False)
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    if not numbers or not math.isfinite(low) or not math.isfinite(high) or not low < high:
        raise UserError(f"{where} = {given!r}: low must be a number below high")
    if not isinstance(log, bool) or (log and low <= 0):
        raise UserError(f"{where} = {given!r}: log = true needs low above 0")
    return Range(low, high, log)
