"""A job as a TOML file: the tables and keys are the fields of ``TrainingJob`` (lesson 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dtlab.errors import UserError, one_line
from dtlab.sagemaker.job import TrainingJob
from dtlab.settings_file import near_name, read_settings

__all__ = ["read_job"]

_DEFAULTS = TrainingJob()


def read_job(path: str | Path) -> TrainingJob:
    """The job in a file; ``source.folder`` and ``rehearsal.channels`` are looked for beside it.

    Raises:
        UserError: no such file, not TOML, an unknown key, or what the job's tables refuse.

    >>> read_job("examples/jobs/s0.toml").compute.instance_count  # doctest: +SKIP
    2
    """
    values = read_settings(path, "job file", "examples/jobs/s0.toml")
    where = f"job file = {str(path)!r}"
    try:
        given = _of("", _DEFAULTS, values)
        source = given.get("source", _DEFAULTS.source)
        given["source"] = replace(source, folder=Path(path).parent / source.folder)
        small = given.get("rehearsal", _DEFAULTS.rehearsal)
        folders = {name: Path(path).parent / str(folder) for name, folder in small.channels.items()}
        given["rehearsal"] = replace(small, channels=folders)
        return TrainingJob(**given)
    except UserError as error:
        raise UserError(one_line(f"{where}: {error}", most=600)) from None


def _of(table: str, defaults: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    known = {entry.name: str(entry.type) for entry in fields(defaults)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        name, shown = key.replace("-", "_"), f"{table}.{key}" if table else key
        if name not in known:
            near = near_name(name, known)
            raise UserError(
                f"{shown}: no such key; "
                + (f"did you mean {near}?" if near else f"there are {', '.join(known)}")
            )
        default = getattr(defaults, name)
        if is_dataclass(default):
            found[name] = _built(name, default, value)
        elif isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                raise UserError(f"{shown} = {value!r}: give a table")
            found[name] = _flat(value) if name == "hyperparameters" else value
        else:
            found[name] = _plain(shown, known[name], value)
    return found


def _built(name: str, default: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise UserError(f"{name} = {value!r}: give a table; write [{name}] on a line of its own")
    return type(default)(**_of(name, default, value))


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """``optim.lr = 1`` without quotes is a table in TOML; it means the name "optim.lr"."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found


def _plain(shown: str, kind: str, value: Any) -> Any:
    """``value`` if it is of the annotated ``kind``; fields of the tables are text, numbers, booleans or
    tuples."""
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UserError(f"{shown} = {value!r}: give a list of texts")
        return tuple(value)
    if kind == "bool" and not isinstance(value, bool):
        raise UserError(f"{shown} = {value!r}: give true or false")
    if kind.startswith(("str", "Literal", "Path")) and not isinstance(value, str | Path):
        raise UserError(f"{shown} = {value!r}: give text")
    if kind.startswith(("int", "float")) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise UserError(f"{shown} = {value!r}: give a number")
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return int(value)
    return Path(value) if kind == "Path" else value
