"""What a trainer is given by mistake: refused before a wrong step, with argument, value and fix."""

import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dtlab
from dtlab.errors import DtlabWarning, UserError
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.losses import require_no_mean
from dtlab.train.trainer import Trainer


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, categorical, dense):
        return self.linear(dense).squeeze(1)


def table(rows: int = 10) -> dtlab.Batch:
    dense = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    none = torch.zeros(rows, 0, dtype=torch.int64)
    return dtlab.Batch(
        ids=torch.arange(rows), categorical=none, dense=dense, labels=(dense[:, 0] > 0).float()
    )


def trainer(model: nn.Module | None = None, **options) -> Trainer:
    model = Scores() if model is None else model
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), show_progress=False, **options)


def one_epoch(trainer: Trainer, rows: int = 10, global_batch: int = 4, **options):
    loader = dtlab.Loader(table(rows), dtlab.GlobalBatchSampler(rows, global_batch))
    return trainer.train_epoch(loader, **options)


def cross_entropy(reduction: str):
    return lambda model, batch: F.binary_cross_entropy_with_logits(
        model(batch.categorical, batch.dense), batch.labels, reduction=reduction
    )


@pytest.mark.parametrize("options", [{}, {"clip": 1.0, "micro_batch": 3}])
@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (cross_entropy("mean"), ["mean over the rows", "reduction='sum'"]),
        (lambda m, b: cross_entropy("none")(m, b).mean(), ["mean over the rows"]),
        (lambda m, b: cross_entropy("mean")(m, b) + 0.1 * m.linear.weight.sum(), ["mean over the rows"]),
        (cross_entropy("none"), ["shape", "sum"]),
        (lambda m, b: cross_entropy("sum")(m, b).item(), ["float", ".item()"]),
        (lambda m, b: cross_entropy("sum")(m, b).detach(), ["graph", "detach()"]),
        (lambda m, b: None, ["NoneType"]),
        (lambda m, b: (cross_entropy("sum")(m, b), 1), ["tuple"]),
    ],
)
def test_loss_that_is_no_sum_is_refused_at_the_first_step(loss, named, options):
    model = Scores()
    before = model.linear.weight.detach().clone()
    with pytest.raises(UserError) as refused:
        one_epoch(trainer(model, loss=loss, **options))
    assert all(word in str(refused.value) for word in named), refused.value
    assert torch.equal(model.linear.weight, before)


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy("sum"),
        lambda m, b: cross_entropy("mean")(m, b) * len(b),
        lambda m, b: cross_entropy("sum")(m, b).reshape(1),
        lambda m, b: m.linear(b.dense).mean(dim=1).sum(),  # a mean over columns
    ],
)
def test_loss_that_is_a_sum_however_it_was_made_is_taken(loss):
    assert one_epoch(trainer(loss=loss)).steps == 3


def test_mean_of_a_single_row_is_its_sum():
    assert one_epoch(trainer(loss=cross_entropy("mean")), global_batch=1).steps == 10


def test_mean_below_a_cast_is_found():
    with pytest.raises(UserError, match="MeanBackward"):
        require_no_mean(torch.ones(3, requires_grad=True).double().mean().float())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss": "bce"}, ["loss", "'bce'", "function"]),
        ({"clip": "1"}, ["clip", "'1'"]),
        ({"clip": True}, ["clip", "True"]),
        ({"clip": float("nan")}, ["clip", "nan"]),
        ({"micro_batch": 2.5}, ["micro_batch", "2.5", "whole"]),
        ({"micro_batch": 0}, ["micro_batch", "0"]),
        ({"log_every": None}, ["log_every", "None"]),
        ({"seed": 1.5}, ["seed", "1.5"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"count": 5}, ["count", "5", "function"]),
        ({"schedule": ScheduleConfig(kind="cosine")}, ["schedule", "ScheduleConfig", "dtlab.Schedule"]),
    ],
)
def test_argument_of_another_kind_names_itself(options, named):
    with pytest.raises(UserError) as refused:
        trainer(**options)
    assert all(word in str(refused.value) for word in named), refused.value


def test_optimizer_of_another_models_parameters_would_train_nothing():
    with pytest.raises(UserError, match=r"none of its 2 parameters is one of Scores's"):
        Trainer(Scores(), torch.optim.SGD(Scores().parameters(), lr=0.1))


def test_optimizer_with_some_parameters_from_elsewhere_says_that_they_are_not_averaged():
    model, temperature = Scores(), nn.Parameter(torch.ones(1))
    with pytest.warns(DtlabWarning, match="1 of its 3 parameters are not Scores's"):
        Trainer(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1))


def test_frozen_model_has_nothing_to_train():
    with pytest.raises(UserError, match="Scores requires a gradient"):
        trainer(Scores().requires_grad_(False))


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD, "adamw"])
def test_optimizer_that_is_none(optimizer):
    with pytest.raises(UserError, match="optimizer = "):
        Trainer(Scores(), optimizer)


def test_optimizer_that_evaluates_the_loss_by_itself_is_refused():
    model = Scores()
    with pytest.raises(UserError, match="LBFGS"):
        Trainer(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("rows", [0, -3, 2.5, float("nan"), 3])
def test_row_count_that_cannot_be_the_global_batchs_is_refused(rows):
    for options in ({}, {"clip": 1.0}):
        with pytest.raises(UserError, match="rows = "):
            trainer(**options).step(table(4), rows)


@pytest.mark.parametrize("max_steps", [1.5, -1, "2"])
def test_max_steps_that_is_no_number_of_steps(max_steps):
    with pytest.raises(UserError, match="max_steps = "):
        one_epoch(trainer(), max_steps=max_steps)


def test_loader_that_does_not_know_its_place_is_refused_with_the_way_out():
    with pytest.raises(UserError, match=r"loader = a DataLoader: .*data_loader"):
        trainer().train_epoch(torch.utils.data.DataLoader(torch.arange(4)))


@pytest.mark.parametrize("state", [{}, {"steps_done": 1}])
def test_state_of_something_else_is_refused_by_its_keys(state):
    with pytest.raises(UserError, match="trainer state has the keys"):
        trainer().load_state_dict(state)


def test_layer_that_the_user_froze_by_eval_stays_so_through_training_and_evaluation():
    model = Scores()
    model.norm = nn.BatchNorm1d(3)
    model.forward = lambda categorical, dense: model.linear(model.norm(dense)).squeeze(1)
    model.norm.eval()
    train = trainer(model)
    one_epoch(train)
    train.evaluate(table())
    one_epoch(train)
    assert model.training
    assert model.linear.training
    assert not model.norm.training
    assert model.norm.running_mean.abs().max() == 0


def test_what_a_script_needs_is_exported():
    names = ("Schedule", "ScheduleConfig", "EarlyStopping", "Checkpointer", "pick_precision", "data_loader")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(callable(getattr(dtlab, name)) for name in names)


@pytest.mark.parametrize("package", ["dtlab", "dtlab.train", "dtlab.data"])
def test_every_name_that_a_package_offers_is_there(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
        if name[0].islower() and name != "__version__":
            assert callable(getattr(module, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_batch_norm_on_the_single_row_of_a_tail_says_what_to_change():
    model = Scores()
    model.norm = nn.BatchNorm1d(3)
    model.forward = lambda categorical, dense: model.linear(model.norm(dense)).squeeze(1)
    with pytest.raises(UserError, match=r"step 2: BatchNorm cannot train on one row; .* tail='drop'"):
        one_epoch(trainer(model), rows=9)
