"""TorchRec as the engine of a sharded table; skipped where it is not installed."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import dtlab
from dtlab.parallel.embedding_torchrec import TorchRecRows

IS_INSTALLED = importlib.util.find_spec("torchrec") is not None
BATCHES = [[[0, 10, 10, 3], [10, 7]], [[], [1, 1, 2]], [[5], [6]]]  # of each step: rank 0's and rank 1's


def table() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(11, 8)


def loss(vectors: Tensor) -> Tensor:
    return (vectors.square() + vectors).sum()


def train() -> Tensor:
    with dtlab.world() as w:
        sharded = TorchRecRows(table(), lr=0.1, optimizer="sgd")
        assert not list(sharded.parameters())
        for batch in BATCHES:
            loss(sharded(torch.tensor(batch[w.rank], dtype=torch.int64))).backward()
        return sharded.full_weight()


@pytest.mark.skipif(not IS_INSTALLED, reason="TorchRec is not installed")
def test_rows_in_torchrec_train_as_in_one_process() -> None:
    alone = table()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for batch in BATCHES:
        optimizer.zero_grad()
        (sum(loss(alone(torch.tensor(part, dtype=torch.int64))) for part in batch) / 2).backward()
        optimizer.step()
    for full in dtlab.launch(train, 2, timeout=90, echo=False):
        torch.testing.assert_close(full, alone.weight.detach(), rtol=0, atol=1e-6)


def build() -> str:
    with dtlab.world():
        with pytest.raises(dtlab.UserError) as caught:
            TorchRecRows(table(), lr=0.1)
        return str(caught.value)


@pytest.mark.skipif(IS_INSTALLED, reason="TorchRec is installed")
def test_without_torchrec_the_error_says_what_to_install_and_what_to_take_instead() -> None:
    assert "install torchrec and fbgemm-gpu-cpu" in dtlab.launch(build, 1, timeout=60, echo=False)[0]
