"""What decides a run's result, by dotted names, as the first line of its record tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["settings_of"]


def settings_of(start: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting, and what else decides a result: data, ranks, commit, versions.

    >>> settings_of({"config": {"optim": {"lr": 0.1}}, "world_size": 2})["optim.lr"]
    0.1
    """
    found = _flat(start.get("config"), "")
    for name in ("world_size", "layout", "commit", "dirty"):
        found[name] = start.get(name)
    data = start.get("data")
    found["data version"] = data.get("version") if isinstance(data, dict) else None
    return found | _flat(start.get("environment"), "environment.")


def _flat(values: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
