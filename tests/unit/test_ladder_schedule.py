"""The ladder's short run takes any schedule that a long run may have."""

import pytest

from dtlab.diagnose.climb import _for_few_steps
from dtlab.train.config import OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.schedule import Schedule


@pytest.mark.parametrize(
    "schedule",
    [
        ScheduleConfig(kind="cosine", warmup=500),
        ScheduleConfig(kind="linear", warmup=2, unit="epoch"),
        ScheduleConfig(kind="plateau", warmup=10),
        ScheduleConfig(kind="step", step_every=3, scaling="linear", base_batch=64),
    ],
)
def test_schedule_of_a_long_run_fits_a_run_of_one_step_at_the_full_rate(schedule):
    short = _for_few_steps(schedule)
    assert (short.scaling, short.base_batch) == (schedule.scaling, schedule.base_batch)
    config = TrainConfig(optim=OptimConfig(lr=0.1), schedule=short, run=RunConfig(max_steps=1))
    assert Schedule(config.schedule, 0.1, 1, steps_per_epoch=100).lr_at(0) == 0.1
