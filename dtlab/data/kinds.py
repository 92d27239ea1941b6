"""Types of category columns: a value is the same value, whatever the type, unit or scale of its column.

A timestamp of seconds and one of microseconds, 1.5 and 1.50, a date and its midnight are written differently
and mean the same. The type of such a column in the training rows travels with the features (of a number or a
text only that it is one); a column of another type is cast to it where no value changes, and refused by name
where one would, or where the two types cannot mean the same.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dtlab.data.spelling import decimal_as_number
from dtlab.errors import UserError

__all__ = ["NUMBER", "TEXT", "conform", "is_category", "is_text", "read", "require", "written"]

NUMBER, TEXT = "number", "text"
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (-?\d+)\)")
_SIMPLE = {
    "date32[day]": pa.date32(), "date64[ms]": pa.date64(), "bool": pa.bool_(),
    NUMBER: pa.float64(), TEXT: pa.string(),
}  # fmt: skip


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return pt.is_string(kind) or pt.is_large_string(kind) or str(kind) == "string_view"


def _is_typed(kind: pa.DataType) -> bool:
    return pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_decimal(kind) or pt.is_boolean(kind)


def _is_plain_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind)


def is_category(kind: pa.DataType) -> bool:
    """Whether values of this type can be categories; a column of nulls can."""
    return is_text(kind) or _is_plain_number(kind) or _is_typed(kind) or pt.is_null(kind)


def written(kind: pa.DataType) -> str | None:
    """The type as text, "number" for integers and floats, "text"; None for a column of nulls and for lists.

    >>> written(pa.timestamp("ms")), written(pa.int8()), written(pa.null())
    ('timestamp[ms]', 'number', None)
    """
    if _is_typed(kind):
        return str(kind)
    return NUMBER if _is_plain_number(kind) else TEXT if is_text(kind) else None


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


def require(kind: pa.DataType, name: str, text: str | None) -> None:
    """Raise UserError where a column of type ``kind`` cannot be a category, or not one of type ``text``."""
    if text is None and not is_category(kind):
        raise UserError(
            f"column {name!r} is {kind}, which cannot be a category: use text, integers or booleans"
        )
    if text is not None and not _comparable(kind, text):
        raise UserError(
            f"column {name!r} is {kind}, and the model was trained on {text}: give it in that type"
        )


def conform(values: pa.Array, text: str, name: str) -> pa.Array:
    """Values of column ``name``, of a type that ``require`` lets pass, in the type of the training rows.

    Text stays as it is, and is compared as it is written.

    Raises:
        UserError: a value would change.
    """
    given = values.type
    if pt.is_null(given) or is_text(given) or text == TEXT:
        return values
    if text == NUMBER:
        if pt.is_decimal(given):
            return pa.array([decimal_as_number(value) for value in values.to_pylist()], pa.string())
        return pc.cast(values, pa.int8()) if pt.is_boolean(given) else values
    kind = read(text)
    if given == kind:
        return values
    try:
        if pt.is_boolean(kind) and pt.is_decimal(given):  # Arrow knows no such cast
            values, given = pc.cast(values, pa.int64()), pa.int64()
        cast = pc.cast(values, kind)
        is_same = pc.all(pc.equal(pc.cast(cast, given), values)).as_py()
    except pa.ArrowException:
        is_same = False
    if is_same is False:
        raise UserError(
            f"column {name!r} is {given}, the model was trained on {text}, and some values do not fit into "
            "that: round them first, or train on the finer type"
        )
    return cast


def _comparable(given: pa.DataType, text: str) -> bool:
    if pt.is_null(given) or is_text(given):
        return True
    if text == TEXT:
        return _is_plain_number(given)
    numbers = _is_plain_number(given) or pt.is_decimal(given)
    if text == NUMBER:
        return numbers or pt.is_boolean(given)
    kind = read(text)
    if pt.is_timestamp(kind) and pt.is_timestamp(given):
        return (kind.tz is None) == (given.tz is None)
    if pt.is_timestamp(kind) or pt.is_date(kind):
        without_zone = all(t.tz is None for t in (kind, given) if pt.is_timestamp(t))
        return without_zone and (pt.is_date(given) or pt.is_timestamp(given))
    return numbers or given == kind  # for decimals and booleans
