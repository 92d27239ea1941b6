"""DeepFM: a factorisation machine and an MLP that share one embedding table (the course's recommender).

``logit = bias + first order + sum over pairs of fields <v_i, v_j> x_i x_j + MLP(embeddings, dense)``

- All fields live in one table: field f's index i is row ``offset[f] + i``. One gather serves every field,
  which is several times faster on a CPU than one small table per field.
- A dense column x_j takes part as a field with the vector ``x_j v_j``, as in the paper.
- It knows nothing of ranks. An empty batch (B = 0) gives no logits and, after backward, zero gradients: a
  rank without samples joins the all-reduce like any other.

Guo et al., "DeepFM: a factorization-machine based neural network for CTR prediction", IJCAI 2017. The pairs
are summed by Rendle's identity ("Factorization machines", ICDM 2010, equation 5):
``sum_{i<j} <v_i, v_j> = 1/2 (|sum_i v_i|^2 - sum_i |v_i|^2)``.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.errors import UserError

__all__ = ["DeepFM", "FieldEmbedding", "field_rows", "pairwise_interactions"]


class DeepFM(nn.Module):
    """Logits for rows of categorical indices and dense values.

    ``cardinalities``: number of indices of each categorical field; ``num_dense``: dense columns (may be 0);
    ``dim``: length of an embedding; ``hidden``: widths of the MLP; ``dropout``: after each hidden layer;
    ``embedding_dropout``: share of fields whose embedding is left out of a row; ``sparse``: sparse gradients
    for the two tables (then they need ``torch.optim.SparseAdam`` or ``SGD``, see :meth:`sparse_parameters`).

    ``UserError`` for a wrong size and, on a CPU, for an index outside its field.

    >>> model = DeepFM([3, 5], num_dense=2)
    >>> model(torch.tensor([[0, 4], [2, 1]]), torch.zeros(2, 2)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        num_dense: int,
        dim: int = 16,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        sparse: bool = False,
        *,
        embedding_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_sizes(cardinalities, num_dense, dim, hidden, dropout, embedding_dropout)
        self.num_dense = num_dense
        self.embedding_dropout = embedding_dropout
        self.embedding = FieldEmbedding(cardinalities, dim, sparse=sparse)
        self.first_order = FieldEmbedding(cardinalities, 1, sparse=sparse)
        self.bias = nn.Parameter(torch.zeros(()))
        # The first layer has one matrix for the embeddings and one for the dense columns: the same function
        # as one matrix on their concatenation, without copying [B, C * dim] together in every step.
        widths = [*hidden, 1]
        self.from_embeddings = nn.Linear(len(cardinalities) * dim, widths[0])
        if num_dense:
            self.dense_first_order = nn.Parameter(torch.zeros(num_dense))
            self.dense_factors = nn.Parameter(torch.empty(num_dense, dim))
            self.from_dense = nn.Linear(num_dense, widths[0], bias=False)
        layers: list[nn.Module] = []
        for width, next_width in pairwise(widths):
            layers.append(nn.ReLU(inplace=True))
            if dropout:
                layers.append(nn.Dropout(dropout))
            layers.append(nn.Linear(width, next_width))
        self.mlp = nn.Sequential(*layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small embeddings, so that the interactions start near 0; He's scale for layers before a ReLU."""
        if self.bias.is_meta:  # it has no numbers; to draw none, torch imports its compiler for a second
            return
        nn.init.normal_(self.embedding.weight, std=0.01)
        nn.init.zeros_(self.first_order.weight)
        std = (2.0 / (self.from_embeddings.in_features + self.num_dense)) ** 0.5
        nn.init.normal_(self.from_embeddings.weight, std=std)
        if self.num_dense:
            nn.init.zeros_(self.dense_first_order)
            nn.init.normal_(self.dense_factors, std=0.01)
            nn.init.normal_(self.from_dense.weight, std=std)
        linear = [layer for layer in self.mlp if isinstance(layer, nn.Linear)]
        for layer in linear:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if linear:
            nn.init.xavier_normal_(linear[-1].weight)
        for layer in (self.from_embeddings, *linear):
            nn.init.zeros_(layer.bias)

    def sparse_parameters(self) -> list[Tensor]:
        """The parameters with sparse gradients, for an optimizer that takes such; none unless ``sparse``."""
        return [table.weight for table in (self.embedding, self.first_order) if table.sparse]

    def forward(self, categorical: Tensor, dense: Tensor) -> Tensor:
        """``categorical`` [B, C] int64, ``dense`` [B, D] -> logits [B]."""
        rows = self.embedding.rows(categorical)
        fields = self.embedding.lookup(rows)
        if self.training and self.embedding_dropout:
            kept = torch.empty(fields.shape[:2], device=fields.device, dtype=fields.dtype)
            kept.bernoulli_(1 - self.embedding_dropout).div_(1 - self.embedding_dropout)
            fields = fields * kept.unsqueeze(-1)
        linear = self.first_order.lookup(rows).flatten(1).sum(1) + self.bias
        hidden = self.from_embeddings(fields.flatten(1))
        if self.num_dense:
            linear = linear + dense @ self.dense_first_order
            # Fields x_j v_j: their sum is dense @ v, and |x_j v_j|^2 = x_j^2 |v_j|^2.
            interactions = pairwise_interactions(fields, dense @ self.dense_factors)
            interactions = interactions - 0.5 * (dense.square() @ self.dense_factors.square().sum(1))
            hidden = hidden + self.from_dense(dense)
        else:
            interactions = pairwise_interactions(fields, fields.new_zeros(len(fields), fields.shape[2]))
        return linear + interactions + self.mlp(hidden).squeeze(1)


class FieldEmbedding(nn.Embedding):
    """One table for several categorical fields: ``weight`` [sum of cardinalities, dim].

    An ``nn.Embedding``, so that whoever looks for tables (DDP for sparse gradients, a sharder) finds it.

    >>> table = FieldEmbedding([2, 3], dim=4)
    >>> table(torch.tensor([[1, 0], [0, 2]])).shape
    torch.Size([2, 2, 4])
    """

    offsets: Tensor
    cardinalities: Tensor

    def __init__(self, cardinalities: Sequence[int], dim: int, *, sparse: bool = False) -> None:
        super().__init__(sum(cardinalities), dim, sparse=sparse)
        sizes = torch.tensor(list(cardinalities), dtype=torch.int64)
        # Derived from the configuration, so they are not part of the state dict.
        self.register_buffer("cardinalities", sizes, persistent=False)
        offsets = torch.tensor([0, *accumulate(cardinalities)][:-1], dtype=torch.int64)
        self.register_buffer("offsets", offsets, persistent=False)

    def reset_parameters(self) -> None:
        """As ``nn.Embedding`` does; nothing on the meta device, which has no numbers."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def rows(self, categorical: Tensor) -> Tensor:
        """Rows of the table, [B, C] int64, of each field's index."""
        return field_rows(categorical, self.cardinalities, self.offsets)

    def lookup(self, rows: Tensor) -> Tensor:
        """``weight[rows]``: [B, C] int64 -> [B, C, dim]."""
        if self.sparse:
            return F.embedding(rows, self.weight, sparse=True)
        # The backward of index_select and take is two to ten times faster on a CPU than that of F.embedding.
        if self.embedding_dim == 1:
            return torch.take(self.weight, rows).unsqueeze(-1)
        return self.weight.index_select(0, rows.flatten()).view(*rows.shape, self.embedding_dim)

    def forward(self, categorical: Tensor) -> Tensor:
        return self.lookup(self.rows(categorical))


def field_rows(categorical: Tensor, cardinalities: Tensor, offsets: Tensor) -> Tensor:
    """Rows, in one table of all fields, of each field's index: ``categorical`` [B, C] -> [B, C] int64.

    ``cardinalities`` and ``offsets`` [C]: indices of each field, and its first row. On a CPU an index outside
    its field is a ``UserError``.

    >>> field_rows(torch.tensor([[1, 0]]), torch.tensor([2, 3]), torch.tensor([0, 2]))
    tensor([[1, 2]])
    """
    # In one table an index too large would silently read the next field's row. On a GPU the check would
    # wait for the device in every step.
    is_checked = categorical.device.type == "cpu" and len(categorical) > 0
    if is_checked and (categorical.amin() < 0 or (categorical.amax(0) >= cardinalities).any()):
        wrong = (categorical < 0) | (categorical >= cardinalities)
        row, field = (int(place) for place in wrong.nonzero()[0])
        raise UserError(
            f"categorical: index {int(categorical[row, field])} in field {field} of row {row} is outside "
            f"0..{int(cardinalities[field]) - 1}; fit the features on the training rows so that unseen "
            f"values get an index of their own"
        )
    return categorical + offsets


def pairwise_interactions(fields: Tensor, extra: Tensor) -> Tensor:
    """``1/2 (|sum_i v_i + extra|^2 - sum_i |v_i|^2)``: ``fields`` [B, C, dim], ``extra`` [B, dim] -> [B].

    ``extra`` is the sum of further fields whose own squares the caller takes off.

    >>> fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> pairwise_interactions(fields, torch.zeros(1, 2))  # <(1, 2), (3, 4)>
    tensor([11.0000])
    """
    return _Pairwise.apply(fields, extra)


class _Pairwise(torch.autograd.Function):
    """The formula with its gradient written out: one pass over [B, C, dim] instead of five."""

    @staticmethod
    def forward(ctx: Any, fields: Tensor, extra: Tensor) -> Tensor:
        total = fields.sum(1) + extra
        ctx.save_for_backward(fields, total)
        squares = torch.linalg.vector_norm(fields.flatten(1), dim=1).square()
        return 0.5 * (total.square().sum(1) - squares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        fields, total = ctx.saved_tensors
        weighted = total * gradient.unsqueeze(1)
        # d/dv_i = g (total - v_i)
        to_fields = torch.addcmul(weighted.unsqueeze(1), fields, gradient.view(-1, 1, 1), value=-1)
        return to_fields, weighted


def _check_sizes(
    cardinalities: Sequence[int],
    num_dense: int,
    dim: int,
    hidden: Sequence[int],
    dropout: float,
    embedding_dropout: float,
) -> None:
    if not len(cardinalities) or min(cardinalities) < 1:
        raise UserError(
            f"cardinalities: {list(cardinalities)}; give at least one field, each with at least 1 index"
        )
    if num_dense < 0:
        raise UserError(f"num_dense: {num_dense}; give the number of dense columns, 0 or more")
    if dim < 1:
        raise UserError(f"dim: {dim}; an embedding has at least 1 number")
    if not len(hidden) or min(hidden) < 1:
        raise UserError(
            f"hidden: {list(hidden)}; give the width of at least one layer, for example (128, 64)"
        )
    for name, share in (("dropout", dropout), ("embedding_dropout", embedding_dropout)):
        if not 0 <= share < 1:
            raise UserError(f"{name}: {share}; give a share of 0 or more and less than 1")
