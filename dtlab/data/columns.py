"""Read one column of an Arrow table as codes, numbers, hashes, ids or labels, with errors that name it.

Every error is one line (UserError) that names the column, what is wrong with it, and the way out.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dtlab.data import kinds, spelling
from dtlab.errors import UserError


def near(name: str, names: list[str]) -> str:
    """``; the nearest name is 'x'``, or nothing."""
    folded = {other.casefold(): other for other in names}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; the nearest name is {folded[close[0]]!r}" if close else ""


def listed(schema: pa.Schema, limit: int = 40) -> str:
    """The columns of a schema with their types, on one line."""
    parts = [f"{field.name} ({field.type})" for field in schema]
    more = f", and {len(parts) - limit} more" if len(parts) > limit else ""
    return ", ".join(parts[:limit]) + more if parts else "no column"


def require(table: pa.Table | pa.Schema, names: list[str], where: str = "the table") -> None:
    """Raise UserError, with what is there, if a named column is not."""
    schema = table if isinstance(table, pa.Schema) else table.schema
    absent = [name for name in names if name not in schema.names]
    if absent:
        others = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        hint = near(absent[0], schema.names)
        raise UserError(f"column {absent[0]!r}{others} is not in {where}{hint}; it holds: {listed(schema)}")
    for name in names:
        if schema.names.count(name) > 1:
            raise UserError(f"column {name!r} stands {schema.names.count(name)} times in {where}: rename one")


def plain(table: pa.Table, name: str) -> pa.Array:
    """The column as one array, dictionary encoding undone."""
    column = table.column(name)
    try:
        if pt.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        chunks = column.chunks
        return chunks[0] if len(chunks) == 1 else column.combine_chunks()
    except pa.ArrowException as error:
        raise UserError(
            f"column {name!r} is {column.type}, which is unreadable: {first_line(error)}"
        ) from None


def encode(
    table: pa.Table, name: str, *, strict: bool = False, like: str | None = None
) -> tuple[np.ndarray, list[str]]:
    """(codes, values): ``values[codes[i]]`` is the text of row i, and code -1 is a missing value.

    Two values may have one text (0.0 and -0.0). ``strict`` refuses a float column with fractions: a category
    should not hang on a rounding. ``like`` is the type in whose spelling the text is wanted (``kinds.py``).
    """
    array = plain(table, name)
    kind = array.type
    kinds.require(kind, name, like)
    codes, values = spelling.distinct(array)
    if (
        strict
        and pt.is_floating(kind)
        and not pc.all(pc.equal(pc.round(values), values), min_count=0).as_py()
    ):
        raise UserError(
            f"column {name!r} is {kind} with fractions, not a category: name it under numeric or bucketed"
        )
    if pt.is_null(kind):
        return codes, []
    values = values if like is None else kinds.conform(values, like, name)
    try:
        return codes, spelling.texts(values)
    except pa.ArrowException as error:
        raise UserError(f"column {name!r} is {kind}, which has no text: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """What an error says first, its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _is_number(kind: pa.DataType) -> bool:
    return (
        pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_boolean(kind)
        or pt.is_decimal(kind)
        or pt.is_null(kind)
    )


def numbers(table: pa.Table, name: str, *, is_trained: bool = False) -> np.ndarray:
    """The column as float64, missing and infinite values as NaN.

    Raises UserError for another type; ``is_trained`` says that the column was a number in the training rows.
    """
    array = plain(table, name)
    kind = array.type
    if not _is_number(kind) and is_trained:
        raise UserError(f"column {name!r} is {kind}, and the model was trained on it as a number: cast it")
    if pt.is_temporal(kind):
        raise UserError(
            f"column {name!r} is {kind}, a time and not a number: make columns of it first (hour, weekday, "
            "seconds since a date) and name those"
        )
    if not _is_number(kind):
        raise UserError(f"column {name!r} is {kind}, not a number: name it under categorical or hashed")
    if pt.is_boolean(kind):
        array = pc.cast(array, pa.int8())
    x = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    finite = np.isfinite(x)
    return x if finite.all() else np.where(finite, x, np.nan)


def mix(x: np.ndarray) -> np.ndarray:
    """Spread the bits of 64-bit integers (the finalizer of SplitMix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashes(
    table: pa.Table, names: tuple[str, ...], types: Mapping[str, str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(hashes as uint64, missing as bool) of the named columns taken together, equal on every machine."""
    types = types or {}
    total = np.zeros(table.num_rows, dtype=np.uint64)
    missing = np.ones(table.num_rows, dtype=bool)
    for name in names:
        codes, values = encode(table, name, like=types.get(name))
        digests = [hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values]
        per_value = np.array([*(int.from_bytes(d, "little") for d in digests), 0], dtype=np.uint64)
        total = mix(total * np.uint64(0x9E3779B97F4A7C15) + per_value[codes])
        missing &= codes < 0
    return total, missing


def ids(table: pa.Table, name: str | None) -> np.ndarray:
    """Row ids [B] as int64: the id column, or row numbers from 0 when there is none."""
    if name is None or name not in table.column_names:
        return np.arange(table.num_rows, dtype=np.int64)
    array = plain(table, name)
    if not pt.is_integer(array.type):
        raise UserError(
            f"the id column {name!r} is {array.type}, not whole numbers: leave the id out to use row numbers"
        )
    if array.null_count:
        raise UserError(
            f"the id column {name!r} has {array.null_count} missing values: every row needs its id"
        )
    largest = np.iinfo(np.int64).max
    if len(array) and pc.max(array).as_py() > largest:
        raise UserError(
            f"the id column {name!r} holds {pc.max(array).as_py()}: ids go up to {largest}; number the rows "
            "anew, or leave the id out to use row numbers"
        )
    return np.array(pc.cast(array, pa.int64()).to_numpy())


def labels(table: pa.Table, name: str, first_row: int = 0) -> np.ndarray:
    """Labels [B] as float32, each 0 or 1. Raises UserError, with the row counted from ``first_row``."""
    array = plain(table, name)
    if not _is_number(array.type):
        found = "text" if kinds.is_text(array.type) else array.type
        raise UserError(f"the label column {name!r} is {found}: make it 0 and 1 (or boolean)")
    x = numbers(table, name)
    bad = np.isnan(x)
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise UserError(
            f"the label column {name!r} has {int(bad.sum())} missing values (first in row {row}): "
            "drop those rows first"
        )
    odd = (x != 0) & (x != 1)
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        raise UserError(
            f"the label column {name!r} holds {x[row]:g} in row {first_row + row}: labels must be 0 or 1"
        )
    return x.astype(np.float32)
