"""The model: replace it by yours. It knows nothing of ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Embeddings of the categories beside the numbers, then two layers: a logit [B] for each row.

    Args:
        cardinalities: number of values of each categorical column; 0 and 1 mean missing and unseen.
        num_dense: columns of numbers.
    """

    def __init__(self, cardinalities: Sequence[int], num_dense: int, dim: int = 8, hidden: int = 32) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, dim) for size in cardinalities)
        self.layers = nn.Sequential(
            nn.Linear(dim * len(cardinalities) + num_dense, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, categorical: Tensor, dense: Tensor) -> Tensor:
        """``categorical`` [B, C] of int64 and ``dense`` [B, D] give logits [B]; B may be 0."""
        vectors = [table(categorical[:, column]) for column, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([*vectors, dense], dim=1)).squeeze(1)
