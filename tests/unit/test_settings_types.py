"""Settings of the wrong type: one line with field, value and fix, from a script as from the command line."""

from pathlib import Path

import numpy as np
import pytest

from dtlab.data.config import DataConfig
from dtlab.errors import UserError
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_core import CheckpointConfig, PrecisionConfig, StoppingConfig
from dtlab.train.config_schedule import ScheduleConfig


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (OptimConfig, {"name": "adam"}, ["optim.name", "'adam'", "adamw"]),
        (OptimConfig, {"lr": "0.1"}, ["optim.lr", "'0.1'", "number"]),
        (OptimConfig, {"lr": 1e300}, ["optim.lr", "1e+300", "1e30"]),
        (OptimConfig, {"lr": 10**400}, ["optim.lr", "number"]),
        (OptimConfig, {"global_batch": "64"}, ["optim.global_batch", "'64'", "whole"]),
        (OptimConfig, {"global_batch": 1.5}, ["optim.global_batch", "1.5", "whole"]),
        (OptimConfig, {"global_batch": True}, ["optim.global_batch", "True", "whole"]),
        (OptimConfig, {"micro_batch": float("nan")}, ["optim.micro_batch", "nan", "whole"]),
        (OptimConfig, {"max_epochs": 2**70}, ["optim.max_epochs", "64 bits"]),
        (ModelConfig, {"hidden": 64}, ["model.hidden", "64", "list"]),
        (ModelConfig, {"hidden": "64"}, ["model.hidden", "'64'", "list"]),
        (ModelConfig, {"hidden": ()}, ["model.hidden", "()"]),
        (ModelConfig, {"num_layers": 2**40}, ["model.num_layers", "10,000"]),
        (ModelConfig, {"dim": 2**40}, ["model.dim", "at most"]),
        (RunConfig, {"output": ""}, ["run.output", "''"]),
        (RunConfig, {"folder": 3}, ["run.folder", "3"]),
        (RunConfig, {"folder": "a\0b"}, ["run.folder", "x00"]),
        (RunConfig, {"refit": "no"}, ["run.refit", "'no'", "true or false"]),
        (RunConfig, {"dtype": "float16"}, ["run.dtype", "'float16'", "float64"]),
        (PrecisionConfig, {"name": "int8"}, ["precision.name", "'int8'", "bf16"]),
        (PrecisionConfig, {"compile": 1}, ["precision.compile", "1"]),
        (CheckpointConfig, {"every_steps": 2.5}, ["checkpoint.every_steps", "2.5"]),
        (CheckpointConfig, {"spot_notice": "yes"}, ["checkpoint.spot_notice", "'yes'", "ec2"]),
        (CheckpointConfig, {"spot_notice": "http://127.0.0.1:99999/"}, ["checkpoint.spot_notice", "99999"]),
        (CheckpointConfig, {"spot_notice": "file:///etc/hosts"}, ["checkpoint.spot_notice", "file"]),
        (StoppingConfig, {"non_finite": "ignore"}, ["stopping.non_finite", "'ignore'", "roll_back"]),
        (ScheduleConfig, {"kind": "cos"}, ["schedule.kind", "'cos'", "cosine"]),
        (ScheduleConfig, {"step_every": float("nan")}, ["schedule.step_every", "nan"]),
        (ScheduleConfig, {"step_every": float("inf"), "kind": "step"}, ["schedule.step_every", "inf"]),
        (ScheduleConfig, {"step_every": -1.0}, ["schedule.step_every", "-1"]),
        (DataConfig, {"categorical": "shop"}, ["data.categorical", "'shop'", "list"]),
        (DataConfig, {"categorical": ("",)}, ["data.categorical", "''"]),
        (DataConfig, {"name": "flight"}, ["data.name", "'flight'", "flights"]),
        (DataConfig, {"cache": None}, ["data.cache", "None", "disk"]),
        (TrainConfig, {"optim": {"lr": 0.1}}, ["optim", "OptimConfig"]),
    ],
)
def test_setting_of_a_wrong_type_or_size_names_field_value_and_fix(kind, values, named):
    with pytest.raises(UserError) as refused:
        kind(**values)
    line = str(refused.value)
    assert all(word in line for word in named), line
    assert "\n" not in line


def test_setting_that_is_only_spelt_otherwise_is_taken():
    assert RunConfig(output="runs").output == Path("runs")
    assert ModelConfig(hidden=[64, np.int64(32)]).hidden == (64, 32)
    optim = OptimConfig(lr=np.float32(0.5), global_batch=np.int64(64), max_epochs=2.0)
    assert (optim.lr, optim.global_batch, optim.max_epochs) == (0.5, 64, 2)
    assert [type(value) for value in (optim.lr, optim.global_batch, optim.max_epochs)] == [float, int, int]
    assert CheckpointConfig(spot_notice="http://169.254.169.254/latest").spot_notice is not None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"optimm": {"lr": 1.0}}, ["optimm", "no such table", "optim"]),
        ({"optim": 3}, ["optim", "3", "table"]),
    ],
)
def test_table_that_no_run_has_is_not_passed_over(values, named):
    with pytest.raises(UserError) as refused:
        TrainConfig.from_dict(values)
    assert all(word in str(refused.value) for word in named)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: DataConfig(path="my.parquet"), ["data.path", "'my.parquet'", "flights", "parquet"]),
        (lambda: DataConfig(name="clicks", categorical=("shop",)), ["data.categorical", "shop", "clicks"]),
        (lambda: DataConfig(name="text", label="y"), ["data.label", "'y'", "text"]),
        (
            lambda: ScheduleConfig(kind="cosine", step_every=5),
            ["schedule.step_every", "5", "cosine", "kind = 'step'"],
        ),
        (
            lambda: TrainConfig(precision=PrecisionConfig(name="bf16"), run=RunConfig(dtype="float64")),
            ["precision.name", "'bf16'", "float64"],
        ),
        (
            lambda: TrainConfig(schedule=ScheduleConfig(kind="plateau"), run=RunConfig(max_steps=10)),
            ["schedule.kind", "'plateau'", "run.max_steps = 10"],
        ),
        (
            lambda: TrainConfig(schedule=ScheduleConfig(warmup=10), run=RunConfig(max_steps=6)),
            ["schedule.warmup = 10:", "run.max_steps = 6", "--schedule.warmup 1"],
        ),
    ],
)
def test_setting_that_another_one_makes_useless_is_not_passed_over(build, named):
    with pytest.raises(UserError) as refused:
        build()
    assert all(word in str(refused.value) for word in named), refused.value


def test_label_of_the_generated_log_is_used():
    assert DataConfig(name="clicks", label="purchase").label == "purchase"
