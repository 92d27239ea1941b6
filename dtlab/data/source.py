"""Rows that are ready to be turned into features: what flights, clicks and Parquet each give to
``load_dataset``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from dtlab.data.features import FeatureSpec

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Source:
    """``read(split)`` gives the rows of one of ``SPLITS``; ``version`` changes whenever their content
    does."""

    name: str
    version: str
    spec: FeatureSpec
    read: Callable[[str], pa.Table]
    best_auc: float | None = None
