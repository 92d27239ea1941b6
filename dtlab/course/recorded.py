"""Validation curves of 27 real runs, recorded once by ``python -m benchmarks.curves`` (lesson 15).

Each is a run of ``dtlab train`` on two ranks, validated 27 times in 9 epochs. ``data/curves.json`` says with
which configuration, when, and on which machine.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

LOOKS_PER_EPOCH = 3


class Trial(NamedTuple):
    """One recorded run: validation AUC by look, and what the weights of its best epoch scored."""

    name: str
    lr: float
    global_batch: int
    samples: tuple[int, ...]
    auc: tuple[float, ...]
    kept_validation: float
    kept_test: float


@lru_cache(maxsize=1)
def trials() -> tuple[Trial, ...]:
    """The 27 runs: three global batches, nine rates each.

    >>> first = trials()[0]
    >>> first.name, len(first.auc), len(trials())
    ('lr 0.001, batch 128', 27, 27)
    """
    return tuple(
        Trial(
            f"lr {one['lr']:g}, batch {one['global_batch']}",
            one["lr"],
            one["global_batch"],
            tuple(one["samples"]),
            tuple(one["auc"]),
            one["kept"]["validation"],
            one["kept"]["test"],
        )
        for one in _file()["trials"]
    )


def provenance() -> dict[str, Any]:
    """How the curves were made: command, date, commit, machine, configuration."""
    return dict(_file()["about"])


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    text = files("dtlab.course").joinpath("data/curves.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
