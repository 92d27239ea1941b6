"""Row-wise Adagrad: against torch's Adagrad where they coincide, and row by row where they do not."""

import pytest
import torch
from torch import nn

from dtlab.errors import UserError
from dtlab.parallel.embedding_optim import RowWiseAdagrad


def test_with_one_column_it_is_adagrad() -> None:
    torch.manual_seed(0)
    own = nn.Parameter(torch.randn(5, 1, dtype=torch.float64))
    other = nn.Parameter(own.detach().clone())
    optimizers = [RowWiseAdagrad([own], lr=0.3, eps=1e-8), torch.optim.Adagrad([other], lr=0.3, eps=1e-8)]
    for _ in range(4):
        gradient = torch.randn(5, 1, dtype=torch.float64)
        own.grad, other.grad = gradient, gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(own, other, rtol=0, atol=1e-14)


def test_rows_listed_twice_are_added_before_they_are_squared_and_others_stay() -> None:
    sparse, dense = (nn.Parameter(torch.ones(4, 2, dtype=torch.float64)) for _ in range(2))
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, 5.0]], dtype=torch.float64)
    sparse.grad = torch.sparse_coo_tensor([[2, 0, 2]], values, (4, 2), check_invariants=True)
    dense.grad = sparse.grad.to_dense()
    optimizers = [RowWiseAdagrad([one], lr=0.1) for one in (sparse, dense)]
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-14)
    assert optimizers[0].state[sparse]["sum"].tolist() == [12.5, 0.0, 24.5, 0.0]
    assert torch.equal(sparse[1], torch.ones(2, dtype=torch.float64))


def test_bad_rates_and_parameters_that_are_no_table_are_refused() -> None:
    with pytest.raises(UserError, match=r"lr: -1; give"):
        RowWiseAdagrad([nn.Parameter(torch.ones(2, 2))], lr=-1)
    with pytest.raises(UserError, match=r"params: shape \(3,\)"):
        RowWiseAdagrad([nn.Parameter(torch.ones(3))])
