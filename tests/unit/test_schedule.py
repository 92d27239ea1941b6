"""The learning rate: exact values at every hand-over, and the mistakes that move it silently."""

import math
import warnings

import pytest
import torch

from dtlab.errors import DtlabWarning, UserError
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.scaling import effective_batch, largest_stable_lr, scaled_lr
from dtlab.train.schedule import Schedule


def table(schedule: Schedule, steps: int | None = None) -> list[float]:
    return [schedule.lr_at(step) for step in range(schedule.total_steps if steps is None else steps)]


def sgd(lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def plateau(**changes) -> Schedule:
    return Schedule(ScheduleConfig(kind="plateau", plateau_patience=2, **changes), 0.1, 100)


def test_linear_decay_reaches_zero_only_after_the_last_step_and_never_rises():
    schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 10)
    rates = table(schedule, 14)
    assert rates[0] == 0.1
    assert rates[5] == 0.05
    assert min(rates[:10]) == pytest.approx(0.01)
    assert rates[10:] == [0.0] * 4
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_past_the_end_the_rate_stays_at_the_minimum_and_the_user_is_told(kind):
    schedule = Schedule(ScheduleConfig(kind=kind, min_lr=0.01), 0.1, 3)
    optimizer = sgd()
    for _ in range(3):
        schedule.apply(optimizer)
        schedule.advance()
    with pytest.warns(DtlabWarning, match="planned 3 steps, this is step 4"):
        assert schedule.apply(optimizer) == 0.01
    schedule.advance()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert schedule.apply(optimizer) == 0.01


def test_cosine_counts_from_the_end_of_the_warmup():
    rates = table(Schedule(ScheduleConfig(kind="cosine", warmup=4), 0.1, 10))
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[3] == 0.1
    assert rates[4] == pytest.approx(0.1 * 0.5 * (1 + math.cos(math.pi / 6)))
    assert round(rates[4], 4) == 0.0933
    assert rates[9] == 0.0


def test_step_decay_neither_repeats_nor_skips_a_rate_at_the_hand_over():
    rates = table(Schedule(ScheduleConfig(kind="step", warmup=5, step_every=1), 0.1, 8))
    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.01, 0.001, 0.0001])
    kept = table(Schedule(ScheduleConfig(kind="step", step_every=3, min_lr=0.002), 0.1, 9))
    assert kept == pytest.approx([0.1] * 3 + [0.01] * 3 + [0.002] * 3)


def test_warmup_begins_below_and_ends_exactly_at_the_full_rate():
    schedule = Schedule(ScheduleConfig(warmup=5), 5.0, 20)
    assert schedule.lr_at(0) <= 1.0
    assert schedule.peak_step == 4
    assert schedule.lr_at(schedule.peak_step) == 5.0
    assert schedule.lr_at(schedule.peak_step - 1) < 5.0


def test_warmup_longer_than_the_run_is_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"warmup = 20 steps.*total_steps = 10"):
        Schedule(ScheduleConfig(kind="cosine", warmup=20), 0.1, 10)
    with pytest.raises(UserError, match=r"warmup = 0 steps.*total_steps = 0"):
        Schedule(ScheduleConfig(kind="cosine"), 0.1, 0)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "step", "plateau"])
@pytest.mark.parametrize(("warmup", "total"), [(10, 10), (0, 10), (1, 1), (0, 1), (1, 2)])
def test_extreme_warmups_give_finite_rates_between_zero_and_the_full_rate(kind, warmup, total):
    config = ScheduleConfig(kind=kind, warmup=warmup, step_every=1 if kind == "step" else None)
    rates = table(Schedule(config, 0.1, total), total + 5)
    assert all(0 <= rate <= 0.1 for rate in rates)
    assert max(rates[:total]) == 0.1


def test_a_warmup_in_epochs_peaks_at_the_same_optimizer_step_as_one_in_steps():
    in_epochs = Schedule(
        ScheduleConfig(kind="cosine", warmup=10, unit="epoch"), 0.1, 20 * 40, steps_per_epoch=40
    )
    in_steps = Schedule(ScheduleConfig(kind="cosine", warmup=400), 0.1, 800)
    assert table(in_epochs) == table(in_steps)
    # The 400th optimizer step, whose index is 399.
    assert in_epochs.peak_step + 1 == in_steps.peak_step + 1 == 400
    assert table(in_epochs).index(max(table(in_epochs))) == 399


def test_epochs_without_their_length_are_refused():
    with pytest.raises(UserError, match=r"warmup = 1 epochs.*steps_per_epoch"):
        Schedule(ScheduleConfig(warmup=1, unit="epoch"), 0.1, 10)


def test_a_schedule_stepped_once_per_epoch_is_reported():
    schedule = Schedule(ScheduleConfig(kind="cosine", warmup=400), 0.1, 800)
    for _ in range(20):
        schedule.advance()
    with pytest.warns(DtlabWarning, match="planned 800 steps, stepped 20"):
        assert not schedule.check_finished()
    for _ in range(780):
        schedule.advance()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert schedule.check_finished()


def test_a_hand_written_warmup_beside_the_schedule_is_named_with_step_and_both_rates():
    schedule = Schedule(ScheduleConfig(kind="cosine"), 0.1, 10)
    optimizer = sgd()
    schedule.apply(optimizer)
    optimizer.step()
    schedule.advance()
    optimizer.param_groups[0]["lr"] = 0.025
    with pytest.raises(
        UserError, match=r"before step 1: param group 0 has 0\.025, the schedule had set 0\.1"
    ):
        schedule.apply(optimizer)


def test_a_second_scheduler_on_the_same_optimizer_is_noticed_once_when_asked_to_warn():
    schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 10, on_change="warn")
    optimizer = sgd()
    second = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    used = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            schedule.apply(optimizer)
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.advance()
            second.step()
    assert [w.category for w in caught] == [DtlabWarning]
    assert "0.05, the schedule had set 0.1" in str(caught[0].message)
    assert used == table(schedule, 5)


def test_param_groups_keep_their_ratio_under_warmup_and_decay():
    one, other = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.01}], lr=0.1)
    schedule = Schedule(ScheduleConfig(kind="cosine", warmup=4), 0.4, 10)
    for _ in range(9):
        schedule.apply(optimizer)
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert first == schedule.lr_at(schedule.step)
        assert second == pytest.approx(first / 10, rel=1e-12)
        schedule.advance()


def test_a_group_added_after_the_start_is_refused():
    schedule, optimizer = Schedule(ScheduleConfig(), 0.1, 10), sgd()
    schedule.apply(optimizer)
    optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    with pytest.raises(UserError, match="2 param groups"):
        schedule.apply(optimizer)


def test_a_rate_held_as_a_float32_tensor_is_set_in_place_and_not_taken_for_a_change():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(
        [torch.zeros(1, requires_grad=True)], lr=rate, capturable=False, foreach=False
    )
    schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 3)
    for _ in range(3):
        schedule.apply(optimizer)
        schedule.advance()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1 / 3)


def test_a_skipped_step_does_not_advance_the_schedule():
    schedule, optimizer = Schedule(ScheduleConfig(kind="linear"), 0.1, 10), sgd()
    used = []
    for is_applied in (True, False, False, True):
        used.append(schedule.apply(optimizer))
        if is_applied:
            schedule.advance()
    assert used == [schedule.lr_at(step) for step in (0, 1, 1, 1)]
    assert schedule.step == 2


def test_one_validation_never_uses_up_the_patience_of_a_plateau():
    schedule = plateau()
    assert not schedule.observe(1.0)
    assert schedule.lr_at(0) == 0.1
    assert [schedule.observe(1.0) for _ in range(3)] == [False, False, True]
    assert schedule.lr_at(0) == 0.05


def test_a_plateau_keeps_past_rates_and_honours_mode_nan_and_minimum():
    schedule = plateau(plateau_mode="max", min_lr=0.04)
    for metric in (0.70, 0.73, 0.72, math.nan):
        assert not schedule.observe(metric)
    schedule.step = 7
    assert schedule.observe(0.73)
    assert (schedule.lr_at(6), schedule.lr_at(7), schedule.lr_at(99)) == (0.1, 0.05, 0.05)
    for metric in (0.1, 0.1, 0.1):
        schedule.observe(metric)
    assert schedule.lr_at(7) == 0.04


def test_a_plateau_does_not_cut_during_the_warmup():
    schedule = plateau(warmup=10)
    assert not any(schedule.observe(1.0 + bad) for bad in range(8))
    schedule.step = 10
    assert [schedule.observe(9.0) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_after_resume_the_rate_is_the_saved_one_in_either_order_of_loading(optimizer_first):
    config = ScheduleConfig(kind="cosine", warmup=4)
    schedule, optimizer = Schedule(config, 0.1, 10), sgd()
    for _ in range(6):
        schedule.apply(optimizer)
        schedule.advance()
    saved, saved_optimizer = schedule.state_dict(), optimizer.state_dict()
    saved_lr = optimizer.param_groups[0]["lr"]

    fresh = sgd()
    if optimizer_first:
        fresh.load_state_dict(saved_optimizer)
    resumed = Schedule(config, 0.1, 10)
    resumed.load_state_dict(saved)
    if not optimizer_first:
        fresh.load_state_dict(saved_optimizer)
    assert fresh.param_groups[0]["lr"] == saved_lr == schedule.lr_at(5)
    assert resumed.apply(fresh) == schedule.apply(optimizer) == schedule.lr_at(6)


def test_a_resumed_plateau_remembers_its_cuts_best_value_and_count():
    schedule = plateau()
    for metric in (1.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        schedule.observe(metric)
    resumed = plateau()
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.lr_at(0) == 0.05
    assert resumed.observe(1.5)
    assert schedule.observe(1.5)
    assert resumed.state_dict() == schedule.state_dict()


def test_resuming_with_another_plan_names_what_changed():
    saved = Schedule(ScheduleConfig(kind="cosine"), 0.1, 10).state_dict()
    longer = Schedule(ScheduleConfig(kind="cosine"), 0.1, 20)
    with pytest.warns(DtlabWarning, match=r"total_steps 10 -> 20"):
        longer.load_state_dict(saved)
    with pytest.raises(UserError, match="schedule state has the keys"):
        longer.load_state_dict({"step": 1})


def test_scaling_rules_by_value():
    assert scaled_lr(1e-3, "linear", 32, 128) == pytest.approx(4e-3)
    assert scaled_lr(1e-3, "sqrt", 32, 128, "adamw") == pytest.approx(2e-3)
    assert scaled_lr(1e-3, "none", None, 128) == 1e-3


def test_linear_scaling_with_adam_warns_and_with_sgd_does_not():
    parameters = [torch.zeros(1, requires_grad=True)]
    for adam in (torch.optim.AdamW(parameters), torch.optim.Adam, "adamw"):
        with pytest.warns(DtlabWarning, match=r"linear.*argued for SGD.*sqrt"):
            scaled_lr(1e-3, "linear", 32, 128, adam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled_lr(1e-3, "linear", 32, 128, torch.optim.SGD(parameters, lr=1))
        scaled_lr(1e-3, "sqrt", 32, 128, "adamw")


@pytest.mark.parametrize("delay", [0, 1, 3, 7])
def test_stale_gradients_are_stable_just_below_the_largest_rate_and_not_above(delay):
    curvature = 4.0
    for factor, shrinks in ((0.98, True), (1.02, False)):
        lr = factor * largest_stable_lr(curvature, delay)
        weights = [1.0] * (delay + 1)
        for _ in range(4000):
            weights.append(weights[-1] - lr * curvature * weights[-1 - delay])
            if abs(weights[-1]) > 1e6:
                break
        assert (max(map(abs, weights[-50:])) < 1e-3) == shrinks
    with pytest.raises(UserError, match="curvature = 0"):
        largest_stable_lr(0)
    with pytest.raises(UserError, match="delay = -1"):
        largest_stable_lr(1.0, -1)


def test_an_unknown_scaling_rule_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'cubic'.*none, linear or sqrt"):
        scaled_lr(1e-3, "cubic", 32, 128)
    with pytest.raises(UserError, match=r"schedule\.scaling = 'cubic'.*none, linear or sqrt"):
        ScheduleConfig(scaling="cubic")
    with pytest.raises(UserError, match="base_batch"):
        ScheduleConfig(scaling="linear")
    with pytest.raises(UserError, match="base_batch"):
        scaled_lr(1e-3, "linear", None, 128)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: scaled_lr("1e-3", "sqrt", 32, 8), "base_lr = '1e-3'"),
        (lambda: scaled_lr(1e-3, "sqrt", "32", 8), "base_batch = '32'"),
        (lambda: scaled_lr(1e-3, "sqrt", 32.5, 8), r"base_batch = 32\.5"),
        (lambda: scaled_lr(1e-3, "sqrt", 32, None), "global_batch = None"),
        (lambda: effective_batch("8"), "micro_batch = '8'"),
        (lambda: effective_batch(8, 1.5), r"num_ranks = 1\.5"),
        (lambda: effective_batch(8, 4, True), "accumulation = True"),
        (lambda: largest_stable_lr("4"), "curvature = '4'"),
        (lambda: largest_stable_lr(4.0, 0.5), r"delay = 0\.5"),
    ],
)
def test_rates_and_batches_that_are_no_numbers_are_refused_by_name(call, field):
    with pytest.raises(UserError, match=field):
        call()


def test_accumulation_enters_the_effective_batch_exactly_once():
    assert effective_batch(8, num_ranks=4, accumulation=2) == 64
    assert scaled_lr(1.0, "linear", 64, effective_batch(8, 4, 2)) == 1.0
    assert effective_batch(8, num_ranks=4, accumulation=4) == 128
    assert scaled_lr(1.0, "linear", 64, effective_batch(8, 4, 4)) == 2.0
    with pytest.raises(UserError, match="accumulation = 0"):
        effective_batch(8, 4, 0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"kind": "cosin"}, "kind"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 0.5}, "warmup"),
        ({"warmup": math.inf}, "warmup"),
        ({"kind": "step"}, "step_every"),
        ({"gamma": 0}, "gamma"),
        ({"plateau_factor": 1.0}, "plateau_factor"),
        ({"plateau_patience": -1}, "plateau_patience"),
        ({"min_lr": math.nan}, "min_lr"),
        ({"base_batch": 0}, "base_batch"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(wrong, field):
    with pytest.raises(UserError, match=rf"schedule\.{field} = "):
        ScheduleConfig(**wrong)


def test_a_minimum_above_the_full_rate_is_refused():
    with pytest.raises(UserError, match=r"min_lr = 0\.5.*0\.1"):
        Schedule(ScheduleConfig(kind="cosine", min_lr=0.5), 0.1, 10)


def test_rate_that_scaling_makes_too_large_for_float32_is_refused():
    with pytest.raises(UserError, match="base_batch = 1: scaling 'linear' makes 4e\\+30"):
        scaled_lr(1e30, "linear", 1, 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("cosine", 0.1, 10), ["config", "'cosine'", "ScheduleConfig"]),
        ((ScheduleConfig(), "0.1", 10), ["base_lr", "'0.1'"]),
        ((ScheduleConfig(), True, 10), ["base_lr", "True"]),
        ((ScheduleConfig(), 0.1, 5.5), ["total_steps", "5.5", "whole"]),
        ((ScheduleConfig(), 0.1, "5"), ["total_steps", "'5'", "whole"]),
        ((ScheduleConfig(), 0.1, None), ["total_steps", "None"]),
    ],
)
def test_schedule_of_something_else_names_the_argument(arguments, named):
    with pytest.raises(UserError) as refused:
        Schedule(*arguments)
    assert all(word in str(refused.value) for word in named), refused.value


@pytest.mark.parametrize("step", [1.5, "3", None, float("nan"), -1])
def test_rate_of_something_that_is_no_step_is_not_guessed(step):
    with pytest.raises(UserError, match="step = "):
        Schedule(ScheduleConfig(kind="cosine"), 0.1, 10).lr_at(step)


@pytest.mark.parametrize("metric", [None, "low", torch.ones(2)])
def test_metric_that_is_no_number_is_refused_by_a_plateau(metric):
    with pytest.raises(UserError, match="metric = "):
        Schedule(ScheduleConfig(kind="plateau"), 0.1, 10).observe(metric)


def test_damaged_state_leaves_the_schedule_as_it_was():
    schedule = Schedule(ScheduleConfig(kind="cosine"), 0.1, 10)
    state = {**schedule.state_dict(), "step": "x"}
    with pytest.raises(UserError, match="schedule state holds values of another kind"):
        schedule.load_state_dict(state)
    assert schedule.step == 0
