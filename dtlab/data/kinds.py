"""Column types whose values have several spellings: a category is compared by value, not by unit or scale.

A timestamp of seconds and one of microseconds, 1.5 and 1.50, a date and its midnight are written differently
and mean the same. The type of such a column in the training rows travels with the features; a column of
another type is cast to it where no value changes, and refused by name where one would.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dtlab.errors import UserError

__all__ = ["conform", "read", "written"]

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (-?\d+)\)")
_SIMPLE = {"date32[day]": pa.date32(), "date64[ms]": pa.date64(), "bool": pa.bool_()}


def written(kind: pa.DataType) -> str | None:
    """The type as text, None for one whose values have one spelling.

    >>> written(pa.timestamp("ms")), written(pa.int64())
    ('timestamp[ms]', None)
    """
    fits = pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_decimal(kind) or pt.is_boolean(kind)
    return str(kind) if fits else None


def read(text: str) -> pa.DataType:
    """The reverse of ``written``; decimals get all digits, as only their scale decides the spelling.

    Raises:
        UserError: not such a type.

    >>> read("timestamp[us, tz=UTC]"), read("decimal128(10, 2)")
    (TimestampType(timestamp[us, tz=UTC]), Decimal256Type(decimal256(76, 2)))
    """
    if text in _SIMPLE:
        return _SIMPLE[text]
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], tz=found[2])
    if (found := _DECIMAL.fullmatch(text)) and abs(int(found[2])) <= 76:
        return pa.decimal256(76, int(found[2]))
    raise UserError(f"column type {text!r} is not one that features can have")


def conform(array: pa.Array, text: str, name: str) -> pa.Array:
    """The values of column ``name`` in the type of the training rows.

    Text stays as it is, and is compared as it is written.

    Raises:
        UserError: the column is of a type that cannot mean the same, or a value would change.
    """
    kind, given = read(text), array.type
    if given == kind or pt.is_null(given):
        return array
    if pt.is_floating(given):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, given))
    if pt.is_string(given) or pt.is_large_string(given) or str(given) == "string_view":
        return array
    if not _comparable(given, kind):
        raise UserError(
            f"column {name!r} is {given}, and the model was trained on {text}: give it in that type"
        )
    try:
        cast = pc.cast(array, kind)
        is_same = pc.all(pc.equal(pc.cast(cast, given), array)).as_py()
    except pa.ArrowInvalid:
        is_same = False
    if is_same is False:
        raise UserError(
            f"column {name!r} is {given}, the model was trained on {text}, and some values do not fit into "
            "that: round them first, or train on the finer type"
        )
    return cast


def _comparable(given: pa.DataType, kind: pa.DataType) -> bool:
    if pt.is_timestamp(kind) and pt.is_timestamp(given):
        return (kind.tz is None) == (given.tz is None)
    if pt.is_timestamp(kind) or pt.is_date(kind):
        without_zone = all(t.tz is None for t in (kind, given) if pt.is_timestamp(t))
        return without_zone and (pt.is_date(given) or pt.is_timestamp(given))
    numbers = pt.is_integer(given) or pt.is_floating(given) or pt.is_decimal(given)
    return numbers  # for decimals and booleans
