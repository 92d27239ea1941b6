"""A batch of rows held by column; a whole split in memory is one too (taught in lesson 04).

- Every column is a tensor with the rows in dimension 0; all columns have the same number of rows.
- A batch may be empty: in the uneven tail of an epoch a rank can be left without rows.
- Nothing here loops over rows: taking rows is one ``index_select`` per column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dtlab.errors import UserError


@dataclass(frozen=True)
class Batch:
    """Columns of B rows.

    Shapes: ``ids`` [B] int64, the row's id in its data set, unique over all splits; ``categorical`` [B, C]
    int64, already indexed; ``dense`` [B, D] float32; ``labels`` [B] float32 or None; ``weights`` [B] float32
    or None.

    Raises:
        UserError: the columns do not have the same number of rows.

    >>> import numpy as np, torch
    >>> no_columns = torch.zeros(3, 0, dtype=torch.int64)
    >>> table = Batch(ids=torch.arange(3), categorical=no_columns, dense=torch.eye(3))
    >>> table.take(np.array([2, 0])).ids.tolist()
    [2, 0]
    """

    ids: Tensor
    categorical: Tensor
    dense: Tensor
    labels: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        rows = self.ids.shape[0]
        if (
            self.categorical.shape[0] != rows
            or self.dense.shape[0] != rows
            or (self.labels is not None and self.labels.shape[0] != rows)
            or (self.weights is not None and self.weights.shape[0] != rows)
        ):
            lengths = {name: column.shape[0] for name, column in self.columns().items()}
            raise UserError(f"columns of a batch differ in their number of rows: {lengths}; cut them alike")

    def __len__(self) -> int:
        return self.ids.shape[0]

    def columns(self) -> dict[str, Tensor]:
        """Return the columns that are there, by field name, in the order of the fields."""
        named = {
            "ids": self.ids,
            "categorical": self.categorical,
            "dense": self.dense,
            "labels": self.labels,
            "weights": self.weights,
        }
        return {name: column for name, column in named.items() if column is not None}

    def take(self, index: np.ndarray | Tensor) -> "Batch":
        """Return the rows at ``index`` ([K] integers, repeats allowed) as a new batch of K rows, copied."""
        rows = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        rows = rows.to(self.ids.device)
        return Batch(**{name: column.index_select(0, rows) for name, column in self.columns().items()})

    def to(
        self, device: torch.device | str, *, dtype: torch.dtype | None = None, non_blocking: bool = False
    ) -> "Batch":
        """Return the batch with every column on ``device``; columns already there are not copied.

        ``dtype`` converts the columns of real numbers (dense, labels, weights), never ids and categories.
        """
        return Batch(
            **{
                name: column.to(
                    device, dtype if column.is_floating_point() else None, non_blocking=non_blocking
                )
                for name, column in self.columns().items()
            }
        )

    def pin_memory(self) -> "Batch":
        """Return a copy in page-locked memory, from which a copy to a CUDA device can run beside the host."""
        return Batch(**{name: column.pin_memory() for name, column in self.columns().items()})

    def split(self, sizes: Sequence[int]) -> list["Batch"]:
        """Cut into consecutive batches of the given sizes, which add up to the rows; views, not copies."""
        nothing = [None] * len(sizes)
        columns = (self.ids, self.categorical, self.dense, self.labels, self.weights)
        parts = [nothing if column is None else column.split_with_sizes(list(sizes)) for column in columns]
        batches = []
        for ids, categorical, dense, labels, weights in zip(*parts, strict=True):
            # Parts of one table agree in length: the check would cost as much again as the cutting.
            batch = object.__new__(Batch)
            batch.__dict__.update(
                ids=ids, categorical=categorical, dense=dense, labels=labels, weights=weights
            )
            batches.append(batch)
        return batches

    @staticmethod
    def concat(batches: Sequence["Batch"]) -> "Batch":
        """Join batches in the given order.

        Raises:
            UserError: there is no batch, or a column is present in some of them only.
        """
        if not batches:
            raise UserError("concat got an empty list of batches: give at least one (it may have no rows)")
        names = list(batches[0].columns())
        for position, batch in enumerate(batches):
            if list(batch.columns()) != names:
                raise UserError(
                    f"batch {position} has the columns {list(batch.columns())}, batch 0 has {names}: "
                    "join batches of one kind"
                )
        return Batch(**{name: torch.cat([batch.columns()[name] for batch in batches]) for name in names})
