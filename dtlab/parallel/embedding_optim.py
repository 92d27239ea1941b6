"""Row-wise Adagrad: an optimizer for embedding tables that keeps one number a row (lesson 07).

Adam keeps two numbers for every number of the table, 8 bytes beside 4, sparse gradients or not. Row-wise
Adagrad keeps the sum of a row's mean squared gradients: 4 bytes a row, 1/d of Adagrad's.

``s[i] += mean over columns of g[i]^2``, ``w[i] -= lr * g[i] / (sqrt(s[i]) + eps)``

Only touched rows change, so a row's owner needs nothing of other ranks. Of a table that is cut by columns a
rank has some columns of a row, and would sum another mean: such a table is refused.

Duchi, Hazan and Singer, JMLR 2011, for Adagrad; per row as in FBGEMM ("rowwise_adagrad") and DLRM, arXiv
2104.05158, section 4.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.sharded import shard_table

__all__ = ["RowWiseAdagrad"]


class RowWiseAdagrad(Optimizer):
    """For parameters [rows, columns] with dense or sparse gradients. ``state[p]["sum"]``: [rows].

    ``UserError``: a rate or ``eps`` below 0, a parameter that is no table or one cut by columns.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> weight.grad = torch.sparse_coo_tensor([[1]], torch.tensor([[3.0, 4.0]]), (3, 2))
    >>> RowWiseAdagrad([weight], lr=0.1).step()
    >>> weight.data[1]  # -0.1 * (3, 4) / sqrt(12.5)
    tensor([-0.0849, -0.1131])
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.01, eps: float = 1e-10) -> None:
        for name, value in (("lr", lr), ("eps", eps)):
            if not value >= 0:
                raise UserError(f"{name}: {value}; give a number of 0 or more")
        super().__init__(params, {"lr": lr, "eps": eps})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    shape = tuple(parameter.shape)
                    raise UserError(f"params: shape {shape}; row-wise Adagrad is for tables [rows, columns]")
                if len(getattr(shard_table(parameter), "columns", [])) > 1:
                    raise UserError(
                        "params: a table that is cut by columns; each rank would take the mean of its own "
                        "part of a row: hold the table row_wise, or take torch.optim.Adagrad"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on every parameter with a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["eps"])
        return loss

    def _update(self, parameter: Tensor, lr: float, eps: float) -> None:
        state = self.state[parameter]
        if not state:
            state["sum"] = parameter.new_zeros(len(parameter))
        sums, gradient = state["sum"], parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.coalesce()  # a row that two ranks asked for is listed twice
            rows, values = gradient.indices()[0], gradient.values()
            sums.index_add_(0, rows, values.square().mean(1))
            scale = lr / (sums[rows].sqrt() + eps)
            parameter.index_add_(0, rows, values * scale.unsqueeze(1), alpha=-1)
        else:
            sums.add_(gradient.square().mean(1))
            parameter.sub_(gradient * (lr / (sums.sqrt() + eps)).unsqueeze(1))
