"""Turn table columns into model inputs, with everything fitted on training rows and carried as JSON.

The contract, per kind of column:

- ``categorical``: the values seen in the training rows, most frequent first. Index 0 is *missing* (null,
  NaN), index 1 is *unseen* (or seen fewer than ``min_count`` times), known values start at 2. Values are
  compared by their text, so that int32, int64 and string columns of the same values agree. Timestamps,
  dates, decimals and booleans are compared by value, whatever their unit or scale; a type that cannot mean
  the same as that of the training rows is refused (``kinds.py``). A whole number is spelled alike in an
  integer, float or decimal column (``spelling.py``; pandas makes floats of integers with nulls).
- ``bucketed``: a number cut at quantiles of the training rows and used as a category.
- ``hashed``: the value's hash modulo ``hash_buckets``; 0 is missing, 1 stays empty. Hashes are stable over
  processes and machines.
- ``crosses``: several columns hashed together; missing if all of them are missing.
- ``numeric``: (x - mean) / deviation of the training rows, clipped to [-10, 10]; a missing or infinite
  value is 0, which is the training mean. A column that had missing training values gets a second, 0/1 input
  that says so.

``Features.from_json(text).transform(table)`` gives, for the same rows, the same arrays as the ``Features``
that wrote the text: no pickle, no state elsewhere. Taught in lesson 11, "Feeding the ranks".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from dtlab.data import columns, kinds
from dtlab.data.batch import Batch
from dtlab.data.config import MOST_BUCKETS
from dtlab.data.fitting import Fitting
from dtlab.errors import UserError

MISSING = 0
UNSEEN = 1
FIRST = 2
FORMAT = "dtlab-features-1"
REVISION = (FORMAT, 2)
"""Part of the key of what is kept on disk: count it up when ``fit`` or ``transform`` gives something else."""


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """Which columns are used, and how. Column order in a Batch follows the order here: categorical, bucketed,
    hashed, crosses; then numeric for the dense part."""

    categorical: tuple[str, ...] = ()
    bucketed: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    numeric: tuple[str, ...] = ()
    label: str | None = None
    id: str | None = None
    min_count: int = 1
    num_buckets: int = 16
    hash_buckets: int = 10_000

    def __post_init__(self) -> None:
        for name, least in (("min_count", 1), ("num_buckets", 2), ("hash_buckets", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} = {getattr(self, name)}: it must be at least {least}")
        if self.hash_buckets > MOST_BUCKETS:
            raise UserError(f"hash_buckets = {self.hash_buckets}: at most {MOST_BUCKETS:,}")
        if not (self.categorical or self.bucketed or self.hashed or self.crosses or self.numeric):
            raise UserError("no feature column is named: give categorical, numeric, hashed or bucketed")
        for kind in ("categorical", "bucketed", "hashed", "numeric"):
            names = getattr(self, kind)
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise UserError(f"{kind} names the column {twice[0]!r} twice: name it once")
        for column in (self.label, self.id):
            if column is not None and column in self.inputs():
                role = "label" if column == self.label else "id"
                raise UserError(
                    f"the {role} column {column!r} is also named as a feature: leave it out there"
                )

    def inputs(self) -> list[str]:
        """Every column that the features read, each once."""
        crossed = [name for names in self.crosses for name in names]
        return list(dict.fromkeys([*self.categorical, *self.bucketed, *self.hashed, *crossed, *self.numeric]))

    def columns(self) -> list[str]:
        """The inputs, the label and the id."""
        return [*self.inputs(), *(name for name in (self.label, self.id) if name is not None)]

    @property
    def category_names(self) -> list[str]:
        """A name for each column of ``Batch.categorical``."""
        crossed = ["*".join(names) for names in self.crosses]
        return [*self.categorical, *(f"{name} (bucket)" for name in self.bucketed), *self.hashed, *crossed]


@dataclass(frozen=True)
class Features:
    """A fitted ``FeatureSpec``.

    >>> import pyarrow as pa
    >>> table = pa.table({"city": ["a", "b", None, "a"], "x": [1.0, 2.0, 3.0, 6.0], "y": [0, 1, 0, 1]})
    >>> features = Features.fit(table, FeatureSpec(categorical=("city",), numeric=("x",), label="y"))
    >>> features.transform(table).categorical.flatten().tolist()
    [2, 3, 0, 2]
    >>> Features.from_json(features.to_json()) == features
    True
    """

    spec: FeatureSpec
    vocabularies: dict[str, list[str]]
    edges: dict[str, list[float]]
    scales: dict[str, list[float]]  # [mean, deviation, 1.0 if training rows had missing values]
    types: dict[str, str] = field(default_factory=dict)  # of categorical and hashed columns, see kinds.py
    _index: dict[str, dict[str, int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def fit(cls, table: pa.Table, spec: FeatureSpec) -> Features:
        """Learn vocabularies, bucket edges and scales from ``table``, which must hold training rows only.

        Raises UserError for an empty table, a column that is not there, or one of an unsuitable type.
        """
        return cls.fit_pieces([table], spec)

    @classmethod
    def fit_pieces(cls, tables: Iterable[pa.Table], spec: FeatureSpec) -> Features:
        """As ``fit``, from the training rows piece by piece; see ``dtlab.data.fitting``."""
        fitting = Fitting(spec)
        for table in tables:
            fitting.add(table)
        return cls(spec, *fitting.result())

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of indices of each categorical column, missing and unseen included."""
        sizes = [FIRST + len(self.vocabularies[name]) for name in self.spec.categorical]
        sizes += [FIRST + len(self.edges[name]) + 1 for name in self.spec.bucketed]
        hashed = len(self.spec.hashed) + len(self.spec.crosses)
        return (*sizes, *[FIRST + self.spec.hash_buckets] * hashed)

    @property
    def num_dense(self) -> int:
        """Width of ``Batch.dense``."""
        return sum(1 + int(scale[2]) for scale in self.scales.values())

    def transform(self, table: pa.Table, *, labels: bool = True) -> Batch:
        """The rows of ``table`` as one Batch of B = ``table.num_rows`` rows.

        Labels are there when the table holds the label column and ``labels`` is true; ids are the id
        column, or the row numbers from 0. Raises UserError for a missing column, an unsuitable type, or a
        label other than 0 and 1.
        """
        arrays = self.arrays(table, labels=labels)
        known = arrays.get("labels")
        return Batch(
            ids=torch.from_numpy(arrays["ids"]),
            categorical=torch.from_numpy(arrays["categorical"]),
            dense=torch.from_numpy(arrays["dense"]),
            labels=None if known is None else torch.from_numpy(known),
            weights=None,
        )

    def arrays(self, table: pa.Table, *, labels: bool = True) -> dict[str, np.ndarray]:
        """As ``transform``, as NumPy arrays: ids, categorical, dense and, when known, labels."""
        spec = self.spec
        columns.require(table, spec.inputs())
        categories: list[np.ndarray] = []
        for name in spec.categorical:
            codes, values = columns.encode(table, name, like=self._type(name))
            known = self._lookup(name)
            # One look-up per distinct value; the last entry serves code -1, which is null.
            index = np.array([*(known.get(value, UNSEEN) for value in values), MISSING], dtype=np.int32)
            categories.append(index[codes])
        numbers = {
            name: columns.numbers(table, name, is_trained=True)
            for name in dict.fromkeys((*spec.bucketed, *spec.numeric))
        }
        for name in spec.bucketed:
            x = numbers[name]
            bucket = np.searchsorted(np.asarray(self.edges[name]), x, side="right").astype(np.int32) + FIRST
            categories.append(np.where(np.isnan(x), MISSING, bucket))
        for names in (*((name,) for name in spec.hashed), *spec.crosses):
            hashes, missing = columns.hashes(table, names, self.types)
            hashed = (hashes % np.uint64(spec.hash_buckets)).astype(np.int64) + FIRST
            categories.append(np.where(missing, MISSING, hashed))
        dense: list[np.ndarray] = []
        for name in spec.numeric:
            mean, deviation, had_missing = self.scales[name]
            missing = np.isnan(numbers[name])
            scaled = np.clip((numbers[name] - mean) / deviation, -10, 10)
            dense.append(np.where(missing, 0.0, scaled).astype(np.float32))
            if had_missing:
                dense.append(missing)
        arrays = {
            "ids": columns.ids(table, spec.id),
            "categorical": _stack(categories, table.num_rows, np.int64),
            "dense": _stack(dense, table.num_rows, np.float32),
        }
        if labels and spec.label is not None and spec.label in table.column_names:
            arrays["labels"] = columns.labels(table, spec.label)
        return arrays

    def _type(self, name: str) -> str | None:
        """The type of a categorical column; features of older versions do not say that it was a number."""
        if name not in self.types and self.vocabularies[name]:
            digits = (value.removeprefix("-") for value in self.vocabularies[name])
            return kinds.NUMBER if all(value.isdecimal() for value in digits) else None
        return self.types.get(name)

    def _lookup(self, name: str) -> dict[str, int]:
        if name not in self._index:
            self._index[name] = {value: FIRST + i for i, value in enumerate(self.vocabularies[name])}
        return self._index[name]

    def to_json(self) -> str:
        """Everything ``transform`` needs, as one JSON text (it travels in checkpoints and packages)."""
        parts = {"vocabularies": self.vocabularies, "edges": self.edges, "scales": self.scales}
        parts |= {"types": self.types} if self.types else {}
        return json.dumps({"format": FORMAT, "spec": asdict(self.spec), **parts}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Features:
        """The reverse of ``to_json``. Raises UserError for a text that it did not write."""
        try:
            parts: dict[str, Any] = json.loads(text)
            if parts["format"] != FORMAT:
                raise UserError(f"features are of format {parts['format']!r}, this version reads {FORMAT!r}")
            raw = parts["spec"]
            for name in ("categorical", "bucketed", "hashed", "numeric"):
                raw[name] = tuple(raw[name])
            raw["crosses"] = tuple(tuple(names) for names in raw["crosses"])
            spec = FeatureSpec(**raw)
            types = parts.get("types", {})
            for text in types.values():
                kinds.read(text)
            fitted = cls(spec, parts["vocabularies"], parts["edges"], parts["scales"], types)
            if not (
                set(spec.categorical) == set(fitted.vocabularies)
                and set(spec.bucketed) == set(fitted.edges)
                and set(spec.numeric) == set(fitted.scales)
            ):
                raise KeyError("columns")
            _require_form(fitted)
            return fitted
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"not a text written by Features.to_json ({type(error).__name__}: {error})"
            ) from None


def _require_form(fitted: Features) -> None:
    """Raise TypeError or ValueError for values that ``fit`` never makes: anyone may have written the text."""
    names = [*fitted.spec.columns(), *(word for words in fitted.vocabularies.values() for word in words)]
    numbers = [*fitted.edges.values(), *fitted.scales.values()]
    if not all(isinstance(part, list) for part in (*fitted.vocabularies.values(), *numbers)):
        raise TypeError("a vocabulary, edges or a scale is no list")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a column or a category is no text")
    if not all(isinstance(x, int | float) and math.isfinite(x) for part in numbers for x in part):
        raise TypeError("an edge or a scale is no finite number")
    if not all(len(scale) == 3 and scale[1] > 0 for scale in fitted.scales.values()):
        raise ValueError("a scale is not of three numbers")


def _stack(parts: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    """Columns [B] side by side as [B, C], some rows at a time: whole columns would miss the cache at every
    row."""
    table: np.ndarray = np.empty((rows, len(parts)), dtype=dtype)
    for start in range(0, rows, 2048):
        block = table[start : start + 2048]
        for column, part in enumerate(parts):
            block[:, column] = part[start : start + 2048]
    return table
