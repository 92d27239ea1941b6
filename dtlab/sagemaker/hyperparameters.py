"""Hyper-parameters to the strings that SageMaker carries, and back to values (lesson 15).

SageMaker hands every value to the container as text. Python's ``bool("False")`` is True, so a script that
says ``type=bool`` trains with what was switched off. ``read`` knows the kind of each field and refuses what
does not fit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtlab.errors import UserError

__all__ = ["encode", "from_environment", "read"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def encode(values: Mapping[str, Any]) -> dict[str, str]:
    """``values`` as text: numbers, words, and JSON for lists, tables and booleans.

    Raises:
        UserError: a name or value that SageMaker or its SDK cannot carry: an apostrophe (the SDK writes it
            into a shell file as it is, and the job dies before training), ``sagemaker_...`` names, too long.

    >>> encode({"lr": 1e-3, "amp": False, "layers": [1, 2], "note": "some text"})
    {'lr': '0.001', 'amp': 'false', 'layers': '[1, 2]', 'note': 'some text'}
    """
    encoded = {}
    for name, value in values.items():
        where = f"hyperparameters.{name}"
        if not isinstance(name, str):
            raise UserError(f"{where}: the name is a {type(name).__name__}; give text")
        if value is None:
            raise UserError(f"{where} = None: would arrive as the text 'null'; leave it out")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{where} = {value!r}: give a finite number")
        try:
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise UserError(f"{where} = {value!r}: give text, a number, true or false, or a list") from None
        if not name or _CONTROL.search(name + text):
            raise UserError(
                f"{where} = {text!r}: SageMaker takes names and values of one line; put others into a file "
                "of the source folder"
            )
        if name.startswith("sagemaker_"):
            raise UserError(f"{where}: names with sagemaker_ belong to SageMaker; choose another")
        if "'" in name or "'" in text:
            raise UserError(f"{where} = {text!r}: an apostrophe breaks the SDK's start script; leave it out")
        if len(name) > 256 or len(text) > 2500:
            raise UserError(
                f"{where}: SageMaker takes names of 256 and values of 2500 characters; put long "
                "values into a file of the source folder"
            )
        encoded[name] = text
    if len(encoded) > 100:
        raise UserError(f"hyperparameters: {len(encoded)} of them, SageMaker takes 100; put them into a file")
    return encoded


def read(texts: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``texts``, each as the kind that its field has.

    Args:
        texts: as SageMaker hands them over; values that some driver has parsed already are fine.
        kinds: name -> ``bool``, ``int``, ``float``, ``str`` or ``list``; names that are not in it are read
            as JSON, or as text where they are none.

    Raises:
        UserError: a value that is not of its kind, with the words allowed.

    >>> read({"amp": "False", "epochs": "3", "lr": "1e-3", "layers": "[1, 2]", "note": "10"},
    ...      {"amp": bool, "epochs": int, "lr": float, "layers": list, "note": str})
    {'amp': False, 'epochs': 3, 'lr': 0.001, 'layers': [1, 2], 'note': '10'}
    """
    return {name: _value(name, text, kinds.get(name)) for name, text in texts.items()}


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The job's hyper-parameters, without those that SageMaker keeps for itself; {} outside a container.

    The file that SageMaker wrote counts, since it holds each text as it was given; SM_HPS, where there is no
    file, holds "2.10" as 2.1.

    Raises:
        UserError: SM_HPS is no JSON object.

    >>> from_environment({"SM_HPS": '{"lr": "0.1", "sagemaker_program": "train.py"}'})
    {'lr': '0.1'}
    """
    file = Path(environ.get("SM_INPUT_CONFIG_DIR") or "/opt/ml/input/config") / "hyperparameters.json"
    text, source = environ.get("SM_HPS") or "{}", "SM_HPS"
    if file.is_file():
        text, source = file.read_text(encoding="utf-8"), str(file)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f"{source} = {text[:80]!r}: is no JSON object of hyper-parameters")
    return {name: value for name, value in values.items() if not name.startswith("sagemaker_")}


def _value(name: str, given: Any, kind: Any) -> Any:
    text = given.strip() if isinstance(given, str) else json.dumps(given)
    parsed = _json(text)
    if kind is None:
        return parsed if parsed is not _NO_JSON else text
    if kind is str:
        if given is None:
            raise UserError(f"{name} = None: give text, or leave it out")
        if isinstance(parsed, str):
            return parsed
        return text
    if kind is bool:
        word = str(parsed).lower() if isinstance(parsed, str) else text.lower()
        if word in _YES or word in _NO:
            return word in _YES
        raise UserError(f"{name} = {given!r}: give one of {', '.join((*_YES, *_NO))}")
    if isinstance(parsed, str):  # "3" with quotes of its own
        parsed = _json(parsed.strip())
    if kind in (int, float):
        return _number(name, given, parsed, kind, text)
    if kind is list:
        if isinstance(parsed, list):
            return parsed
        raise UserError(f"{name} = {given!r}: give a list such as [64, 32]")
    return parsed if parsed is not _NO_JSON else text


def _number(name: str, given: Any, parsed: Any, kind: type, text: str) -> Any:
    if parsed is _NO_JSON:
        try:
            parsed = float(text)  # 1.e-3 and 1_000 are no JSON
        except ValueError:
            parsed = None
    try:
        fits = isinstance(parsed, int | float) and not isinstance(parsed, bool) and math.isfinite(parsed)
    except OverflowError:  # hundreds of digits
        fits = False
    if fits and kind is float:
        return float(parsed)
    if fits and float(parsed).is_integer():
        return int(parsed)
    raise UserError(f"{name} = {given!r}: give a {'whole ' if kind is int else ''}number")


_NO_JSON: Any = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON
