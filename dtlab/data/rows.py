"""Rows of any batch that a loader may bring: a Batch, a tensor, dicts and tuples of them (lesson 05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from dtlab.errors import UserError

__all__ = ["rows_of", "split_rows"]


def rows_of(batch: Any) -> int:
    """How many rows a batch holds: the length of its first tensor's first dimension.

    Raises:
        UserError: nothing in it has rows.

    >>> import torch
    >>> rows_of({"image": torch.zeros(3, 8), "name": ["a", "b", "c"]}), rows_of((torch.zeros(2), 1))
    (3, 2)
    """
    if not isinstance(batch, Mapping | tuple | list):
        try:
            return len(batch)
        except TypeError:
            pass
    found = _first(batch)
    if found is None:
        raise UserError(
            f"batch of type {type(batch).__name__}: it has no tensor with rows; bring a Batch, a tensor, or "
            "a dict or tuple of tensors with the rows in dimension 0"
        )
    return found


def split_rows(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut a batch into consecutive ones of the given sizes, which add up to its rows.

    Tensors are cut in dimension 0 (views), lists of plain values too; what has no rows goes to every part.

    >>> import torch
    >>> [part["x"].tolist() for part in split_rows({"x": torch.arange(3), "scale": 2.0}, [2, 1])]
    [[0, 1], [2]]
    """
    is_row_less = isinstance(batch, str | bytes) or (isinstance(batch, Tensor) and not batch.dim())
    if hasattr(batch, "split") and not is_row_less:
        return list(batch.split(list(sizes)))
    if isinstance(batch, Mapping):
        cut = {name: split_rows(value, sizes) for name, value in batch.items()}
        return [{name: parts[i] for name, parts in cut.items()} for i in range(len(sizes))]
    if isinstance(batch, tuple | list):
        if _is_column(batch, sum(sizes)):
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            return [batch[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        columns = [split_rows(value, sizes) for value in batch]
        return [_like(batch, [column[i] for column in columns]) for i in range(len(sizes))]
    return [batch] * len(sizes)


def _first(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, Mapping | tuple | list):
        values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
        return next((rows for value in values if (rows := _first(value)) is not None), None)
    return None


def _is_column(values: Sequence[Any], rows: int) -> bool:
    """A list of names or numbers, one for each row."""
    return len(values) == rows and all(isinstance(value, str | bytes | int | float) for value in values)


def _like(batch: Any, values: list[Any]) -> Any:
    if isinstance(batch, list):
        return values
    return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
