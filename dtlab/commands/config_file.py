"""The configuration file of a run: its tables and keys are those of ``TrainConfig``."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

from dtlab.errors import UserError
from dtlab.settings_file import near_name, read_settings
from dtlab.train.config import TrainConfig

_DEFAULTS = TrainConfig()
TABLES = tuple(entry.name for entry in fields(TrainConfig))


def read_config_file(name: str, besides: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tables of a configuration file; those named in ``besides`` as they are, for another to check.

    Raises:
        UserError: no such file, no right to read it, not TOML, a table or key that no run has, or a table
            where a value belongs.
    """
    where = f"config file = {name!r}"
    values = read_settings(name, "config file", "examples/flights.toml")
    for key, value in values.items():
        if key in besides:
            continue
        if key not in TABLES:
            near = near_name(key, TABLES)
            hint = f"did you mean [{near}]?" if near else f"there are {', '.join(f'[{t}]' for t in TABLES)}"
            raise UserError(f"{where}: unknown table or key {key!r}; {hint}")
        if not isinstance(value, dict):
            raise UserError(f"{where}: {key!r} must be a table; write [{key}] on a line of its own")
        _check_keys(where, key, value, getattr(_DEFAULTS, key))
    return values


def _check_keys(where: str, table: str, values: dict[str, Any], defaults: Any) -> None:
    known = [entry.name for entry in fields(defaults)]
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = near_name(name, known)
            hint = f"did you mean {table}.{near}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"{where}: unknown key {key!r} in [{table}]; {hint}")
        parts = value if isinstance(value, list) else [value]
        inner = getattr(defaults, name)
        if is_dataclass(inner) and isinstance(value, dict):
            _check_keys(where, f"{table}.{name}", value, inner)
        elif any(isinstance(part, str) for part in parts) and (wanted := _number_wanted(defaults, name)):
            raise UserError(f"{where}: {table}.{name} = {value!r} is text: give {wanted}, without quotes")
        elif any(isinstance(part, dict | list) for part in parts):
            raise UserError(f"{where}: {table}.{name} holds a table or a list of lists; give plain values")


def _number_wanted(defaults: Any, name: str) -> str | None:
    """What a field holds that holds no text: "a number", "a whole number", "true or false"; else None."""
    hint = get_type_hints(type(defaults))[name]
    inner = set(get_args(hint) or (hint,)) - {NoneType, Ellipsis}
    return next((said for kinds, said in _NO_TEXT if inner and inner <= kinds), None)


_NO_TEXT = (({bool}, "true or false"), ({int}, "a whole number"), ({int, float}, "a number"))
