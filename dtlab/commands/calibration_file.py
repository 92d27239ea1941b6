"""The file of a calibration of your own: `dtlab cost fit` writes it, `dtlab plan` reads it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

from dtlab.cost.calibration import Format, ModelKind
from dtlab.cost.own_calibration import OwnCalibration, gpu_of
from dtlab.cost.run_steps import RunSteps
from dtlab.errors import UserError
from dtlab.files import appears_whole
from dtlab.settings_file import read_settings

FORMAT = "dtlab calibration 1"


def write_calibration(path: Path, found: OwnCalibration) -> None:
    """Write the file, which appears whole."""
    check_output(path)
    with appears_whole(path, "output") as beside:
        beside.write_text(json.dumps({"format": FORMAT, **asdict(found)}, indent=2) + "\n", encoding="utf-8")


def check_output(path: Path) -> None:
    """Refuse a name that `read_calibration` would not take."""
    if path.suffix.lower() != ".json":
        raise UserError(f"output = {str(path)!r}: the name must end in .json")
    if path.is_dir():
        raise UserError(f"output = {str(path)!r}: is a folder; name a file, such as calibration.json")


def read_calibration(path: Path) -> OwnCalibration:
    """Read such a file; what is in it is checked, as anybody may have changed it.

    Raises:
        UserError: no such file, no calibration, or a value that cannot be.
    """
    where = f"calibration = {str(path)!r}"
    if path.suffix.lower() != ".json":
        raise UserError(
            f"{where}: the name must end in .json; give a file that dtlab cost fit --output wrote"
        )
    body = read_settings(path, "calibration", "one that dtlab cost fit --output wrote", json_too=True)
    try:
        if body.get("format") != FORMAT:
            raise ValueError(f"is no {FORMAT!r}")
        return _checked(body)
    except (TypeError, ValueError) as error:  # a UserError is a ValueError
        said = " ".join(str(error).split())
        raise UserError(f"{where}: {said}; give a file that dtlab cost fit --output wrote") from None


def _checked(body: dict[str, Any]) -> OwnCalibration:
    runs = tuple(_run(one) for one in _kept(body, "runs", list))
    card, eta, fixed = (body.get(name) for name in ("card", "eta", "fixed_seconds"))
    if card is not None and not isinstance(card, str):
        raise ValueError(f"card = {card!r} is no name")
    name = None if card is None else gpu_of(card)
    if name is not None:
        eta = _number("eta", eta, 1.0, above=True)
        fixed = _number("fixed_seconds", fixed, 1e6)
    kind, form = _kept(body, "kind", str), _kept(body, "form", str)
    for field, value, known in (("kind", kind, get_args(ModelKind)), ("form", form, get_args(Format))):
        if value not in known:
            raise ValueError(f"{field} = {value!r}: one of {', '.join(known)} belongs there")
    parameters = int(_number("parameters", body.get("parameters"), 1e15))
    found = OwnCalibration(
        runs=runs, model=_kept(body, "model", str)[:200], parameters=parameters,
        kind=kind, form=form, card=card, gpu=name, eta=eta if name else None,
        fixed_seconds=fixed if name else None, error=_number("error", body.get("error"), 1e6),
        torch=str(body.get("torch", ""))[:40], date=str(body.get("date", ""))[:40],
    )  # fmt: skip
    found.fit()
    return found


def _run(values: Any) -> RunSteps:
    if not isinstance(values, dict):
        raise ValueError("runs hold something else than runs")
    known = {field.name for field in fields(RunSteps)}
    if unknown := values.keys() - known:
        raise ValueError(f"runs hold {sorted(unknown)[0]!r}, which no run has")
    for name in ("ranks", "global_batch", "nodes"):
        value = values.get(name, 1)
        if type(value) is not int or not 1 <= value <= 10**9:
            raise ValueError(f"runs: {name} = {value!r} is no whole number of 1 or more")
    for name in ("cores", "threads"):
        value = values.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= 10**6):
            raise ValueError(f"runs: {name} = {value!r} is no whole number of 1 or more")
    _number("step_seconds", values.get("step_seconds"), 1e6, above=True)
    for name in ("communication_seconds", "wait_seconds", "spread"):
        _number(name, values.get(name, 0.0), 1e6)
    return RunSteps(**{**values, "name": str(values.get("name", ""))[:80]})


def _number(name: str, value: Any, most: float, *, above: bool = False) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= most or (above and not value):
        raise ValueError(f"{name} = {value!r} is no number from 0 to {most:g}")
    return float(value)


def _kept(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or not value:
        raise ValueError(f"{name} = {value!r:.80} is not what belongs there")
    return value
