"""The text of a category's value: what vocabularies hold and hashes are made of.

- The text depends on the value alone, never on the values beside it: a row has the same features in every row
  group, batch and file.
- A whole number is written as an integer, however it is stored: 3, 3.0 and, to a model trained on numbers,
  the decimal 3.00 are ``3``; -0.0 is ``0``; 1e16 is ``10000000000000000``.
- A fraction is written with the fewest digits that give it back in its type (``0.5``, ``1e-7``).
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def distinct(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """(codes, values): ``values[codes[i]]`` is row i, and code -1 is missing: null, NaN or infinite.

    >>> codes, values = distinct(pa.array([2.0, None, float("nan"), 2.0]))
    >>> codes.tolist(), values.to_pylist()
    ([0, -1, -1, 0], [2.0])
    """
    kind = array.type
    if pt.is_null(kind):
        return np.full(len(array), -1, dtype=np.int64), pa.array([], kind)
    # Arrow has no dictionaries of these two; the wider type holds the same values.
    if pt.is_float16(kind):
        array = pc.cast(array, pa.float32())
    elif pt.is_decimal(kind) and kind.byte_width < 16:
        array = pc.cast(array, pa.decimal128(kind.precision, kind.scale))
    if pt.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
    encoded = array.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), encoded.dictionary


def texts(values: pa.Array) -> list[str]:
    """The text of each value, none of which is null.

    >>> texts(pa.array([1e16, -0.0, 0.5]))
    ['10000000000000000', '0', '0.5']
    """
    written: list[str] = pc.cast(values, pa.string()).to_pylist()
    if not pt.is_floating(values.type):
        return written
    return [
        str(int(x)) if x.is_integer() else text for x, text in zip(values.to_pylist(), written, strict=True)
    ]


def decimal_as_number(value: Decimal) -> str:
    """The text of an integer or a float of the same value; of more digits than a float has, all of them.

    >>> decimal_as_number(Decimal("1.00")), decimal_as_number(Decimal("0.50"))
    ('1', '0.5')
    """
    if value == value.to_integral_value():
        return str(int(value))
    number = float(value)
    if Decimal(repr(number)) == value:
        return texts(pa.array([number]))[0]
    return format(value, "f").rstrip("0")
