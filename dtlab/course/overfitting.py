"""A small real run that overfits within seconds, and keeps what a rule for stopping needs (lesson 15)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.ddp import data_parallel
from dtlab.ranks.seeds import seed_everything

if TYPE_CHECKING:
    from dtlab.ranks.worlds import World


class Clicks(NamedTuple):
    """Rows of two splits, and the sizes of a model for them."""

    train: Batch
    validation: Batch
    cardinalities: tuple[int, ...]
    num_dense: int


@lru_cache(maxsize=1)
def clicks() -> Clicks:
    """About 1,600 made-up clicks to train on, 200 to validate. Read once and hand them to the ranks."""
    data = load_dataset(DataConfig(name="clicks", rows=2_000))
    return Clicks(data.train, data.validation, tuple(data.cardinalities), data.num_dense)


class Fit:
    """One rank's part of a run.

    ``samples`` counts what all ranks together have trained on. ``epoch()`` trains one epoch (collective);
    ``validate()`` scores this rank's own rows of the validation; ``keep()`` and ``put_back()`` are for the
    weights of the best epoch.
    """

    def __init__(
        self,
        w: World,
        data: Clicks,
        *,
        lr: float = 5e-3,
        batch: int = 64,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        torch.set_num_threads(1)
        self.w, self.data, self.batch, self.seed = w, data, batch, seed
        seed_everything(seed)  # the same weights on every rank
        self.model = DeepFM(data.cardinalities, data.num_dense, dim=8, hidden=(32,), dropout=dropout)
        self.replica = data_parallel(self.model, w)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        seed_everything(seed, w.rank)  # dropout differs from rank to rank
        self.epochs, self.samples = 0, 0
        self.keep()

    def epoch(self) -> None:
        """One epoch over the training rows; rank r takes every size-th row of each batch (collective)."""
        order = torch.randperm(
            len(self.data.train), generator=torch.Generator().manual_seed(self.seed + self.epochs)
        )
        for whole in order.split(self.batch):
            own = self.data.train.take(whole[self.w.rank :: self.w.size])
            loss = _loss_sum(self.replica(own.categorical, own.dense), own)
            self.optimizer.zero_grad()
            (loss * self.w.size / len(whole)).backward()
            self.optimizer.step()
        self.epochs += 1
        self.samples += len(order)

    def validate(self) -> tuple[float, int]:
        """(sum of the losses, number) of this rank's own validation rows: a third on rank 0 of two."""
        rows = torch.arange(len(self.data.validation))
        cut = len(rows) // (self.w.size + 1)
        own = rows[:cut] if self.w.rank == 0 and self.w.size > 1 else rows[cut * (self.w.size > 1) :]
        own = own if self.w.rank == 0 else own[self.w.rank - 1 :: max(1, self.w.size - 1)]
        return self.loss(own), len(own)

    def loss(self, rows: Tensor | None = None) -> float:
        """The sum of the losses of these validation rows; of all without ``rows``."""
        table = self.data.validation if rows is None else self.data.validation.take(rows)
        self.model.eval()
        with torch.no_grad():
            found = float(_loss_sum(self.model(table.categorical, table.dense), table))
        self.model.train()
        return found

    def keep(self) -> None:
        """Remember the weights of now."""
        self._kept = {name: value.clone() for name, value in self.model.state_dict().items()}

    def put_back(self) -> None:
        """Go back to the weights that were kept last."""
        self.model.load_state_dict(self._kept)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights by name."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def _loss_sum(logits: Tensor, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
