"""The model of a plan: a preset by name, or a shape from a TOML file."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtlab.cost import builders
from dtlab.cost.presets import Preset, preset
from dtlab.errors import UserError

MOST_TOKENS = 10_000_000  # of a sequence


def shape_of(model: str) -> Preset:
    """A preset, or what the [transformer] or [recommender] of a TOML file builds.

    Raises:
        UserError: an unknown preset, a file that cannot be read, an unknown, missing or wrong key.
    """
    if not model.endswith(".toml"):
        return preset(model)
    from dtlab.settings_file import near_name, read_settings

    where = f"model = {model!r}"
    values = read_settings(model, "model", "examples/plans/s4-deepfm.toml")
    makers: dict[str, Any] = {"transformer": builders.transformer, "recommender": builders.recommender}
    if (
        len(values) != 1
        or next(iter(values)) not in makers
        or not isinstance(next(iter(values.values())), dict)
    ):
        raise UserError(f"{where}: write one table, [transformer] or [recommender]")
    kind, given = next(iter(values.items()))
    known = inspect.signature(makers[kind]).parameters
    for key in given:
        if key not in known:
            near = near_name(key, tuple(known))
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"{where}: unknown key {key!r} in [{kind}]; {hint}")
    missing = [name for name, one in known.items() if one.default is one.empty and name not in given]
    if missing:
        raise UserError(f"{where}: [{kind}] needs {', '.join(missing)}")
    try:
        return makers[kind](**{"name": Path(model).stem, **given})
    except TypeError as error:
        raise UserError(f"{where}: [{kind}]: {error}; give numbers") from None


def with_sequence(shape: Preset, seq_len: int) -> Preset:
    """The same model on sequences of another length."""
    if not shape.seq_len:
        raise UserError(f"seq_len = {seq_len}: {shape.name} has no sequence")
    if not 1 <= seq_len <= MOST_TOKENS:
        raise UserError(f"seq_len = {seq_len}: give a whole number from 1 to {MOST_TOKENS:,}")
    # Learned positions are parameters too, a row for each token.
    more = (seq_len - shape.seq_len) * shape.hidden if shape.family in ("bert", "gpt") else 0
    return replace(shape, seq_len=seq_len, parameters=shape.parameters + more)
