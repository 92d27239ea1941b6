"""Reading a run's TOML file, with one line for every way in which it can be wrong."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.train.config import TrainConfig

TABLES = tuple(entry.name for entry in fields(TrainConfig))


def read_config_file(name: str) -> dict[str, Any]:
    """The tables of a configuration file.

    Raises:
        UserError: no such file, no right to read it, not TOML, or a table that no run has.
    """
    path = Path(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(
            f"config file = {name!r}: {error.strerror}; name a TOML file, for example examples/flights.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"config file = {name!r}: not valid TOML ({error})") from None
    for key, value in values.items():
        if key not in TABLES:
            near = difflib.get_close_matches(key, TABLES, n=1)
            hint = (
                f"did you mean [{near[0]}]?" if near else f"there are {', '.join(f'[{t}]' for t in TABLES)}"
            )
            raise UserError(f"config file = {name!r}: unknown table or key {key!r}; {hint}")
        if not isinstance(value, dict):
            raise UserError(
                f"config file = {name!r}: {key!r} must be a table; write [{key}] on a line of its own"
            )
    return values
