"""The recommender of the capstone and its trainer, with a slot for each decision (lesson 16).

- ``Recipe``: who gets which rows, how the model is shared, what is saved, how the AUC is computed; and the
  number format. The trainer is the same for every recipe.
- ``Run``: one rank's part of a training run of one epoch.
- ``FAULTY``: the trainer that somebody left behind. Each of its four functions has one fault:
  ``same_rows``, ``whole_tables``, ``weights_only``, ``mean_of_ranks``.

What is measured of a recipe is in ``dtlab.course.capstone_measure``, its report card in ``report_card``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dtlab.collectives.traffic_counter import traffic
from dtlab.data.config import DataConfig
from dtlab.data.datasets import Dataset, load_dataset
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.ddp import data_parallel, unwrap
from dtlab.ranks.seeds import seed_everything
from dtlab.train.metrics import binary_auc
from dtlab.train.precision import pick_precision
from dtlab.train.whole_state import WholeState

if TYPE_CHECKING:
    from dtlab.data.batch import Batch
    from dtlab.ranks.worlds import World

GLOBAL_BATCH, DIM, HIDDEN, RATE = 256, 8, (32,), 1e-2


@lru_cache(maxsize=2)
def clicks(rows: int = 20_000) -> Dataset:
    """A recommender's log, generated, with its three splits. Read once and hand it to the ranks."""
    return load_dataset(DataConfig(name="clicks", rows=rows))


def recommender(data: Dataset, dropout: float = 0.1) -> DeepFM:
    """A DeepFM for the columns of ``data``, from the generator as it stands."""
    return DeepFM(data.cardinalities, data.num_dense, dim=DIM, hidden=HIDDEN, dropout=dropout)


# ---------------------------------------------------------------- what was left behind: four faults


def same_rows(w: World, rows: int, seed: int) -> Any:
    """Who gets which rows: an iterable of this rank's row numbers, step by step, with a state."""
    return GlobalBatchSampler(rows, GLOBAL_BATCH // w.size, seed=seed, rank=0, world_size=1)


def whole_tables(w: World, model: nn.Module) -> nn.Module:
    """The model, shared between the ranks."""
    return data_parallel(model, w)


def weights_only(run: Run) -> dict[str, Any]:
    """What a checkpoint holds, by name."""
    return {"model": WholeState(run.model)}


def mean_of_ranks(w: World, model: nn.Module, table: Batch) -> float:
    """The AUC of the model on the table, the same on every rank."""
    mine = table.take(torch.arange(w.rank, len(table), w.size))
    model.eval()
    with torch.no_grad():
        logits = model(mine.categorical, mine.dense)
    model.train()
    assert mine.labels is not None
    return float(w.mean(binary_auc(logits, mine.labels)))


@dataclass(frozen=True)
class Recipe:
    """The decisions of a training run.

    - ``order(w, rows, seed)``: the row numbers of this rank, step by step.
    - ``share(w, model)``: the model, with tables and gradients shared between the ranks.
    - ``kept(run)``: the parts of a checkpoint by name, as ``dtlab.Checkpointer`` takes them.
    - ``auc(w, model, table)``: the AUC over the rows of a table, equal on every rank.
    - ``precision``: "fp32", "bf16" or "fp16".
    """

    order: Callable[..., Any] = same_rows
    share: Callable[..., Any] = whole_tables
    kept: Callable[..., Any] = weights_only
    auc: Callable[..., Any] = mean_of_ranks
    precision: str = "fp32"


FAULTY = Recipe()


# ---------------------------------------------------------------- what the slots give


def shared(recipe: Recipe, w: World, model: nn.Module) -> nn.Module:
    """The model of ``recipe.share``. UserError when it is no module."""
    given = _given(recipe.share(w, model))
    if not isinstance(given, nn.Module):
        raise UserError(f"share: gave a {type(given).__name__}; give the model, a module")
    return given


def ordered(recipe: Recipe, w: World, rows: int, seed: int) -> Any:
    """The sampler of ``recipe.order``. UserError when it has no state to go on from."""
    given = _given(recipe.order(w, rows, seed))
    if not hasattr(given, "state_dict") or not hasattr(given, "load_state_dict"):
        raise UserError(
            f"order: a {type(given).__name__} has no state_dict() and load_state_dict(), so a resumed run "
            "would not know its place in the epoch; give a sampler that has them"
        )
    return given


def parts_kept(recipe: Recipe, run: Run) -> dict[str, Any]:
    """The parts of ``recipe.kept``. UserError when they are no dict."""
    given = _given(recipe.kept(run))
    if not isinstance(given, dict):
        raise UserError(f'kept: gave a {type(given).__name__}; give a dict, {{"name": part, ...}}')
    return given


def auc_said(recipe: Recipe, w: World, model: nn.Module, table: Batch) -> float:
    """The number of ``recipe.auc``. UserError when it is none."""
    given = _given(recipe.auc(w, model, table))
    try:
        return float(given)
    except (TypeError, ValueError):
        raise UserError(f"auc: gave a {type(given).__name__}; give one float") from None


def _given(value: Any) -> Any:
    if value is None or value is ...:
        raise NotImplementedError  # the exercise is still to do
    return value


class Run:
    """One rank's part: ``model``, ``optimizer``, ``sampler`` and ``precision`` have a state.

    ``steps`` counts optimizer steps, ``seen`` has the ids of this rank's rows in each of its own steps,
    ``bytes`` what it sent in each (forward and backward), and dropout draws from torch's generator.
    """

    def __init__(self, w: World, data: Dataset, recipe: Recipe, *, seed: int = 0) -> None:
        torch.set_num_threads(1)
        self.w, self.table = w, data.train
        seed_everything(seed)  # the same weights on every rank
        self.replica = shared(recipe, w, recommender(data))
        self.model = unwrap(self.replica)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.precision = pick_precision("cpu", recipe.precision)
        self.sampler = ordered(recipe, w, len(self.table), seed)
        seed_everything(seed, w.rank)  # dropout differs from rank to rank
        self.steps = 0
        self.seen: list[Tensor] = []
        self.bytes: list[int] = []

    def epoch(self) -> Iterator[int]:
        """Make the steps up to the end of the epoch (collective); yields the number of each."""
        for rows in self.sampler:
            self._step(self.table.take(torch.as_tensor(rows, dtype=torch.int64)))
            yield self.steps

    def _step(self, batch: Batch) -> None:
        everybody = self.w.mean(float(len(batch))) * self.w.size  # also with a shorter batch at the end
        self.optimizer.zero_grad()
        with traffic() as sent:
            with self.precision.autocast():
                loss = loss_sum(self.replica, batch) * self.w.size / everybody
            self.precision.scale(loss).backward()
        self.precision.optimizer_step(self.optimizer)
        self.steps += 1
        self.seen.append(batch.ids)
        self.bytes.append(sent.bytes)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """The summed log loss of a batch, in float32 whatever the format of the logits."""
    assert batch.labels is not None
    logits = model(batch.categorical, batch.dense)
    return binary_cross_entropy_with_logits(logits.float(), batch.labels, reduction="sum")
