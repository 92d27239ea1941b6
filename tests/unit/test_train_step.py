"""One optimizer step in one process: micro-batches, the divisor, skipped steps, what is stored."""

import math
import warnings

import pytest
import torch
from torch import nn

from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import DtlabWarning, UserError
from dtlab.models.gpt import GPT, token_loss
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.non_finite import NonFiniteError
from dtlab.train.recompute import recompute_blocks
from dtlab.train.schedule import Schedule
from dtlab.train.step import micro_sizes
from dtlab.train.trainer import Trainer, global_steps


class Weight(nn.Module):
    """The gradient of its loss is the sum of the batch's first column."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, dense):
        return self.w * dense[:, 0]


def total(model, batch):
    return model(batch.dense).sum()


def rows(values) -> Batch:
    dense = torch.tensor(values, dtype=torch.float64).reshape(len(values), -1)
    return Batch(torch.arange(len(values)), torch.zeros(len(values), 0, dtype=torch.int64), dense)


def epochs(trainer: Trainer, table: Batch, global_batch: int, number: int = 1) -> list:
    loader = Loader(table, GlobalBatchSampler(len(table), global_batch, rank=0, world_size=1, shuffle=False))
    return [trainer.train_epoch(loader) for _ in range(number)]


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_last_window_is_divided_by_what_it_holds():
    model = Weight()
    (result,) = epochs(Trainer(model, sgd(model), loss=total, micro_batch=2), rows([1.0] * 20), 8)
    assert result.steps == 3  # windows of 4, 4 and 2 micro-batches
    assert model.w.item() == pytest.approx(-0.3, abs=1e-12)


def test_epoch_shorter_than_a_window_makes_a_step_and_leaves_nothing_behind():
    model = Weight()
    trainer = Trainer(model, sgd(model), loss=total, micro_batch=2)
    results = epochs(trainer, rows([1.0] * 6), 8, number=2)
    assert [result.steps for result in results] == [1, 1]
    assert model.w.item() == pytest.approx(-0.2, abs=1e-12)


def test_loss_is_normalised_once():
    one, four = Weight(), Weight()
    epochs(Trainer(one, sgd(one), loss=total), rows([3.0, 5.0] * 4), 8)
    epochs(Trainer(four, sgd(four), loss=total, micro_batch=2), rows([3.0, 5.0] * 4), 8)
    assert four.w.item() / one.w.item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_accumulated_micro_batches_equal_one_big_batch_in_float64(optimizer):
    def trained(micro_batch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        table = Batch(torch.arange(320), torch.zeros(320, 0, dtype=torch.int64), torch.randn(320, 5).double())
        kind = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
        epochs(
            Trainer(model, kind, loss=lambda m, b: m(b.dense).square().sum(), micro_batch=micro_batch),
            table,
            64,
        )
        return model

    for one, other in zip(trained(None).parameters(), trained(8).parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10)


def test_micro_batches_are_as_many_on_every_rank():
    assert [micro_sizes(mine, 11, 3, 2) for mine in (4, 4, 3)] == [[2, 2], [2, 2], [2, 1]]
    assert [micro_sizes(mine, 5, 4, 1) for mine in (2, 1, 1, 1)] == [[1, 1], [1, 0], [1, 0], [1, 0]]
    assert micro_sizes(0, 1, 2, 4) == [0]
    with pytest.raises(UserError, match="at most 3"):
        micro_sizes(4, 6, 2, 2)


def test_nan_gradient_stops_training_and_names_step_and_parameter():
    model = Weight()
    trainer = Trainer(model, sgd(model), loss=total, clip=1.0)
    with pytest.raises(NonFiniteError, match=r"step 1: the gradient is not finite \(norm nan\) in w"):
        epochs(trainer, rows([1.0, 1.0, math.nan, 1.0]), 2)
    assert model.w.item() == pytest.approx(-0.1)


def test_nan_loss_stops_the_plain_step_too_and_names_the_first_step():
    model = Weight()
    with pytest.raises(NonFiniteError, match=r"step 2: the loss is not finite; now w not finite"):
        epochs(Trainer(model, sgd(model), loss=total), rows([1.0, 1.0, math.nan, 1.0, 1.0]), 1)


def test_skipped_step_moves_neither_weights_nor_schedule():
    model = Weight()
    schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 4)
    lines = []
    trainer = Trainer(model, sgd(model), loss=total, non_finite="skip", schedule=schedule, tell=lines.append)
    (result,) = epochs(trainer, rows([1.0, math.inf, 1.0, 1.0]), 1)
    assert (result.steps, schedule.step, trainer.precision.skipped) == (4, 3, 1)
    assert model.w.item() == pytest.approx(-(0.1 + 0.075 + 0.05))
    assert math.isfinite(result.loss)
    assert lines == ["step 1: the gradient is not finite (norm inf) in w; skipped"]


def test_rolling_back_restores_weights_optimizer_and_schedule_and_goes_on_with_new_samples():
    model = Weight()
    schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 4)
    trainer = Trainer(model, sgd(model), loss=total, non_finite="roll_back", schedule=schedule)
    with pytest.warns(DtlabWarning, match="step 2.*back to the weights of step 0, on with the next samples"):
        epochs(trainer, rows([1.0, 1.0, math.nan, 1.0]), 1)
    assert schedule.step == 1
    assert model.w.item() == pytest.approx(-0.1)


def test_training_that_skips_every_step_ends():
    model = Weight()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DtlabWarning)
        with pytest.raises(NonFiniteError, match="21 steps in a row"):
            epochs(Trainer(model, sgd(model), loss=total, non_finite="skip"), rows([math.nan] * 30), 1)


def test_fp16_unscales_once_per_step_and_matches_training_without_it():
    def trained(precision):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        table = Batch(torch.arange(64), torch.zeros(64, 0, dtype=torch.int64), torch.randn(64, 4))
        trainer = Trainer(
            model, sgd(model), loss=lambda m, b: m(b.dense).float().square().sum(), precision=precision,
            clip=1.0, micro_batch=16,
        )  # fmt: skip
        unscales = []
        if trainer.precision.scaler is not None:
            inner = trainer.precision.scaler.unscale_
            trainer.precision.scaler.unscale_ = lambda opt: (unscales.append(1), inner(opt))[1]
        epochs(trainer, table, 32)
        return model, len(unscales)

    (plain, none), (scaled, two) = trained("fp32"), trained("fp16")
    assert (none, two) == (0, 2)
    torch.testing.assert_close(scaled.weight, plain.weight, rtol=0, atol=1e-3)


def tokens(model: GPT, batch):
    return token_loss(model(batch.categorical), batch.categorical).total


def gpt_step(**options) -> tuple[list[torch.Tensor], int]:
    """Parameters after a step, and bytes that autograd kept for backward."""
    torch.manual_seed(0)
    model = GPT(vocab_size=16, sequence=8, dim=16, num_layers=3, num_heads=2, dropout=0.3)
    table = Batch(torch.arange(4), torch.randint(0, 16, (4, 8)), torch.zeros(4, 0))
    kept = []
    trainer = Trainer(model, sgd(model), loss=tokens, seed=5, **options)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.nbytes), t)[1], lambda t: t):
        trainer.step(table, 4)
    return [p.detach() for p in model.parameters()], sum(kept)


def test_recomputed_activations_give_the_same_gradients_and_keep_less():
    plain, plain_bytes = gpt_step()
    again, again_bytes = gpt_step(checkpoint_activations=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert again_bytes < plain_bytes / 2


def test_recomputing_needs_blocks_or_names():
    with pytest.raises(UserError, match="has no list of blocks"):
        recompute_blocks(nn.Linear(1, 1))
    with pytest.raises(UserError, match="no submodule 'head'"):
        recompute_blocks(nn.Linear(1, 1), ["head"])


def test_compiled_model_takes_the_same_step_and_keeps_its_names():
    model, plain = Weight(), Weight()
    epochs(Trainer(model, sgd(model), loss=total, compile="aot_eager"), rows([1.0, 2.0]), 2)
    epochs(Trainer(plain, sgd(plain), loss=total), rows([1.0, 2.0]), 2)
    assert list(model.state_dict()) == ["w"]
    assert model.w.item() == pytest.approx(plain.w.item(), abs=1e-12)


def test_dropout_of_a_step_does_not_depend_on_what_was_drawn_before():
    def masks(draws: int) -> torch.Tensor:
        torch.rand(draws)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        nn.init.ones_(model[0].weight)
        seen = []
        trainer = Trainer(
            model, sgd(model), loss=lambda m, b: (seen.append(m(b.dense)), seen[-1].sum())[1], seed=3
        )
        for batch, number in global_steps(
            Loader(rows([[1.0] * 8] * 4), GlobalBatchSampler(4, 2, rank=0, world_size=1))
        ):
            trainer.step(batch.to("cpu", dtype=torch.float32), number)
        return torch.stack([s == 0 for s in seen])

    assert torch.equal(masks(1), masks(17))
    assert not torch.equal(masks(1)[0], masks(1)[1])


def test_readings_count_samples_and_steps_once(capsys):
    model, readings = Weight(), []
    trainer = Trainer(model, sgd(model), loss=total, micro_batch=2, log_every=1, on_reading=readings.append)
    epochs(trainer, rows([1.0] * 24), 8)
    assert [(reading.step, reading.samples) for reading in readings] == [(1, 8), (2, 16), (3, 24)]
    assert readings[0].loss == 0.0
    assert readings[2].lr == 0.1


def test_no_steps_are_no_steps_and_fewer_are_refused():
    model, table = Weight(), rows([1.0] * 6)
    loader = Loader(table, GlobalBatchSampler(6, 2, rank=0, world_size=1, shuffle=False))
    trainer = Trainer(model, sgd(model), loss=total)
    result = trainer.train_epoch(loader, max_steps=0)
    assert (result.steps, trainer.steps_done, loader.sampler.position, model.w.item()) == (0, 0, 0, 0.0)
    assert trainer.train_epoch(loader, max_steps=2).steps == 2
    with pytest.raises(UserError, match="max_steps = -1"):
        trainer.train_epoch(loader, max_steps=-1)


def test_readings_every_0_steps_are_refused():
    model = Weight()
    with pytest.raises(UserError, match="log_every = 0: give a whole number of steps, 1 or more"):
        Trainer(model, sgd(model), loss=total, log_every=0)


def test_saves_do_not_change_the_losses_of_the_readings():
    class SavesEvery3Steps:
        def __init__(self, trainer: Trainer) -> None:
            self.trainer, self.next_step = trainer, 3

        def look(self) -> bool:
            self.trainer.tally.fold()  # as a checkpoint does
            self.next_step += 3
            return False

    def losses(saves: bool) -> list[float | None]:
        model, readings = Weight(), []
        trainer = Trainer(model, sgd(model), loss=total, log_every=4, on_reading=readings.append)
        sampler = GlobalBatchSampler(100, 5, rank=0, world_size=1)
        loader = Loader(rows([float(value) for value in range(100)]), sampler)
        for _ in range(2):  # the second pass begins behind steps that no reading told
            trainer.train_epoch(loader, max_steps=10, watch=SavesEvery3Steps(trainer) if saves else None)
        return [reading.loss for reading in readings]

    without = losses(saves=False)
    assert len(set(without)) == 4
    assert losses(saves=True) == pytest.approx(without, rel=1e-12)
