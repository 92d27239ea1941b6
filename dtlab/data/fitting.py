"""Learn what ``Features`` holds from a table that comes in pieces, keeping none of them (lesson 11).

- Vocabularies are counts that add up. Means and deviations of pieces are merged by the update of Chan, Golub
  and LeVeque (1983), which loses no digits however many rows there are.
- Bucket edges are quantiles of all values: a bucketed column keeps 8 bytes a row until the end.
- One piece gives the same bits as ever; many give the same vocabularies and edges, and scales that agree to
  about 1e-14.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dtlab.data import columns, kinds
from dtlab.errors import DtlabWarning, UserError

if TYPE_CHECKING:
    from dtlab.data.features import FeatureSpec

Fitted = tuple[dict[str, list[str]], dict[str, list[float]], dict[str, list[float]], dict[str, str]]


class Moments:
    """Mean and deviation of numbers that come in pieces; NaN is a missing value.

    >>> moments = Moments()
    >>> moments.add(np.array([1.0, 2.0]))
    >>> moments.add(np.array([6.0, np.nan]))
    >>> moments.mean, round(moments.deviation**2, 6), moments.missing
    (3.0, 4.666667, True)
    """

    def __init__(self) -> None:
        self.count = self._pieces = 0
        self.deviation = 0.0
        self.missing = False
        # The mean is kept as a distance from the first piece's: near 1e9 a float has no digits left for 1e-2.
        self._first = self._from_first = 0.0

    @property
    def mean(self) -> float:
        """0 before any number came."""
        return self._first + self._from_first if self._pieces > 1 else self._first

    def add(self, x: np.ndarray) -> None:
        """Take [N] float64 values."""
        known = x[~np.isnan(x)]
        self.missing = self.missing or len(known) < len(x)
        if not len(known):
            return
        self._pieces += 1
        if self._pieces == 1:
            self.count, self._first, self.deviation = len(known), float(known.mean()), float(np.std(known))
            self._from_first = float((known - self._first).mean())  # what rounding took from it
            return
        known = known - self._first
        total = self.count + len(known)
        mine, other = self.count / total, len(known) / total
        apart = float(known.mean()) - self._from_first
        variance = mine * self.deviation**2 + other * float(np.var(known)) + mine * apart * other * apart
        self.count, self._from_first = total, self._from_first + other * apart
        self.deviation = math.sqrt(variance)


class Fitting:
    """Give it the pieces of the training rows, then ask for the ``result``.

    Raises:
        UserError: a column that is not there or of an unsuitable type; at the end, no rows at all.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        self.rows = 0
        self._types: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in spec.categorical}
        self._moments = {name: Moments() for name in spec.numeric}
        self._values: dict[str, list[np.ndarray]] = {name: [] for name in spec.bucketed}

    def add(self, table: pa.Table) -> None:
        """Take some training rows."""
        spec = self.spec
        columns.require(table, spec.inputs())
        self.rows += table.num_rows
        crossed = [name for names in spec.crosses for name in names]
        for name in (*spec.categorical, *spec.hashed, *crossed):
            text = kinds.written(columns.plain(table.slice(0, 1), name).type)
            if text is not None:
                self._types.setdefault(name, text)
        for name, counts in self._counts.items():
            codes, values = columns.encode(table, name, strict=True, like=self._types.get(name))
            found = np.bincount(codes[codes >= 0], minlength=len(values))
            for value, number in zip(values, found.tolist(), strict=True):
                counts[value] += number
        for name in (*spec.hashed, *crossed):
            columns.encode(table.slice(0, 1), name)  # raises for a type that cannot be a category
        for name in dict.fromkeys((*spec.bucketed, *spec.numeric)):
            x = columns.numbers(table, name)
            if name in self._values:
                self._values[name].append(x[~np.isnan(x)])
            if name in self._moments:
                self._moments[name].add(x)

    def result(self) -> Fitted:
        """Vocabularies, bucket edges, scales and types, as ``Features`` takes them."""
        spec = self.spec
        if self.rows == 0:
            raise UserError("there are no training rows to fit the features on: the table is empty")
        vocabularies = {}
        for name, counts in self._counts.items():
            kept = [(-n, value) for value, n in counts.items() if n >= spec.min_count]
            vocabularies[name] = [value for _, value in sorted(kept)]
            _warn_of_one_off_values(name, len(counts), counts.total())
        inner = np.linspace(0, 1, spec.num_buckets + 1)[1:-1]
        edges: dict[str, list[float]] = {}
        for name, parts in self._values.items():
            known = np.concatenate(parts)
            edges[name] = np.unique(np.quantile(known, inner)).tolist() if len(known) else []
        scales = {name: _scale(name, m) for name, m in self._moments.items()}
        return vocabularies, edges, scales, self._types


def _warn_of_one_off_values(name: str, different: int, known: int) -> None:
    """Say that a vocabulary is of no use: later rows will hold other values."""
    if known >= 500 and different > 0.95 * known:
        warnings.warn(
            f"column {name!r} has {different:,} different values in {known:,} training rows: as a category "
            "it says nothing about other rows; leave it out, name it under numeric or hashed, or make "
            "columns of it first (of a time: hour, weekday)",
            DtlabWarning,
            stacklevel=2,
        )


def _scale(name: str, moments: Moments) -> list[float]:
    mean, deviation = moments.mean, moments.deviation
    if not np.isfinite(deviation):
        raise UserError(f"column {name!r} holds numbers too large to scale: take their logarithm")
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        deviation = 1.0  # a constant column
    return [mean, deviation, float(moments.missing)]
