"""Read a file of settings that a user named, with one line for every way in which it can be wrong."""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from dtlab.errors import UserError

__all__ = ["near_name", "read_settings"]

_MOST_BYTES = 2**20
_MOST_FILES = 1000
_MOST_DEPTH = 16
_MOST_DIGITS = 4000  # Python converts no more than 4,300 of them
_LONG_NUMBER = re.compile(rf"\d[\d_]{{{_MOST_DIGITS},}}")
_TOO_LONG = "9" * 30


def read_settings(name: str | Path, field: str, example: str, *, json_too: bool = False) -> dict[str, Any]:
    """The values of a TOML file.

    Args:
        name: the file.
        field: what the user calls it.
        example: a file to look at, for the error.
        json_too: a name that ends in .json is read as JSON.

    Raises:
        UserError: there is no such file, it cannot be read, it is not in that format, a key stands in it
            twice, or a whole number has more than 64 bits.

    >>> read_settings("examples/flights.toml", "config file", "")["run"]  # doctest: +SKIP
    {'output': 'runs'}
    """
    path = Path(name)
    where = f"{field} = {str(path)!r}"
    is_json = json_too and path.suffix.lower() == ".json"
    way = f"name a TOML{' or JSON' if json_too else ''} file, for example {example}"
    text = _text(path, where, way)
    try:
        try:
            values = _parsed(text, is_json)
        except (UserError, tomllib.TOMLDecodeError, json.JSONDecodeError):
            raise
        except ValueError:  # a number of more digits than Python converts: find its key
            values = _parsed(_LONG_NUMBER.sub(_TOO_LONG, text), is_json)
        if not isinstance(values, dict):
            raise UserError(f"holds a {type(values).__name__}; give one object of settings")
        for key, value in _leaves(values):
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise UserError(f"{key} is a whole number of more than 64 bits; give a smaller one")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deep; settings are plain values") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid {'JSON' if is_json else 'TOML'} ({error})") from None
    return values


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``; None where none is.

    >>> near_name("lrr", ["lr", "clip"])
    'lr'
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def _text(path: Path, where: str, way: str) -> str:
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size <= _MOST_BYTES:
            return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        near = _near_file(path) if isinstance(error, FileNotFoundError) else None
        way = way if near is None else f"did you mean {near!r}?"
        raise UserError(f"{where}: {error.strerror}; {way}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not text ({error})") from None
    except ValueError as error:  # a name with a null byte
        raise UserError(f"{where}: {error}; {way}") from None
    if stat.S_ISDIR(about.st_mode):
        raise UserError(f"{where}: Is a directory; {way}")
    if stat.S_ISREG(about.st_mode):
        raise UserError(f"{where}: more than 1 MiB; {way}")
    # Reading a named pipe would wait for somebody who may never write.
    raise UserError(f"{where}: no regular file; {way}")


def _near_file(path: Path) -> str | None:
    """A settings file of a similar name: beside ``path``, or in the examples."""
    places = (path.parent, Path("examples"), Path("examples/ladder"))
    found: dict[str, str] = {}
    for folder in places:
        try:
            for each in islice(folder.iterdir(), _MOST_FILES):
                if each.suffix.lower() in (".toml", ".json") and each.is_file():
                    found.setdefault(each.stem, str(each))
        except OSError:
            continue
    near = near_name(path.stem, found)
    return None if near is None else found[near]


def _parsed(text: str, is_json: bool) -> Any:
    return json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"the key {key!r} stands in it twice; keep one")
        found[key] = value
    return found


def _leaves(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, with its dotted key; without recursion.

    Raises:
        RecursionError: one lies too deep.
    """
    left: list[tuple[int, str, Any]] = [(1, key, value) for key, value in values.items()]
    while left:
        depth, key, value = left.pop()
        if depth > _MOST_DEPTH:
            raise RecursionError
        if isinstance(value, dict):
            left += [(depth + 1, f"{key}.{inner}", each) for inner, each in value.items()]
        elif isinstance(value, list):
            left += [(depth + 1, key, each) for each in value]
        else:
            yield key, value
