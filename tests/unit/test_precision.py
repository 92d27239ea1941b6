"""Number formats and the optimizer step: right order, right choice, skipped steps with a reason."""

import json
import math
import warnings

import pytest
import torch
from torch import nn

from dtlab.errors import DtlabWarning, UserError
from dtlab.train.gradients import clip_by_norm, total_norm
from dtlab.train.precision import Precision, pick_precision


def weight_with_gradient(norm: float = 5.0, scale: float = 1.0) -> torch.Tensor:
    weight = torch.zeros(4, requires_grad=True)
    weight.grad = torch.full((4,), norm / 2 * scale)
    return weight


def fp16(scale: float = 2.0**16) -> Precision:
    return Precision("fp16", "cpu", init_scale=scale)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ((6, 1), "fp32"),
        ((7, 0), "fp16"),
        ((7, 5), "fp16"),
        ((8, 0), "bf16"),
        ((8, 9), "bf16"),
        ((9, 0), "bf16"),
    ],
)
def test_bf16_is_not_chosen_where_it_is_only_emulated(device, name):
    precision = pick_precision(device)
    assert precision.name == name
    assert precision.uses_scaler == (name == "fp16")
    assert f"{device[0]}.{device[1]}" in precision.reason


def test_a_cpu_never_gets_a_scaler_unasked():
    assert pick_precision("cpu").name == "fp32"
    for wanted in (None, "auto", "fp32", "bf16"):
        precision = pick_precision(torch.device("cpu"), wanted)
        assert precision.scaler is None
        assert not precision.uses_scaler
    assert pick_precision("cpu", "fp16").scaler.is_enabled()


def test_asking_for_bf16_on_an_old_card_warns_of_emulation_and_names_the_capability_needed():
    with pytest.warns(DtlabWarning, match=r"7\.5.*emulation.*8\.0"):
        assert pick_precision((7, 5), "bf16").name == "bf16"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pick_precision((8, 0), "bf16")
        pick_precision("cpu", "bf16")


def test_an_unknown_format_or_a_missing_card_is_one_clear_line(monkeypatch):
    with pytest.raises(UserError, match=r"'fp8'.*fp32, bf16 or fp16"):
        pick_precision("cpu", "fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"no CUDA card"):
        pick_precision("cuda")


@pytest.mark.parametrize(
    ("wanted", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_autocast_computes_in_the_format_and_leaves_the_weights_alone(wanted, dtype):
    layer = nn.Linear(4, 4)
    with pick_precision("cpu", wanted).autocast():
        assert layer(torch.ones(2, 4)).dtype == getattr(torch, dtype)
    assert layer.weight.dtype == torch.float32


def test_gradients_are_unscaled_before_they_are_clipped():
    precision = fp16()
    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision.scale((weight * 2.5).sum()).backward()  # the true gradient has norm 5
    assert float(weight.grad.norm()) == 5 * 65536
    outcome = precision.optimizer_step(optimizer, [weight], clip=1.0)
    assert outcome.applied
    assert outcome.reason == ""
    assert float(outcome.norm) == 5.0
    assert float(weight.detach().norm()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("norm", [5.0, 1.0, 0.9999995, 0.5])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_clipping_and_the_norm_are_those_of_torch_to_the_bit_without_a_scaler(name, norm):
    weight = weight_with_gradient(norm)
    other = weight_with_gradient(norm)
    expected = nn.utils.clip_grad_norm_([other], 1.0)
    outcome = Precision(name).optimizer_step(torch.optim.SGD([weight], lr=1.0), clip=1.0)
    assert torch.equal(weight.grad, other.grad)
    assert torch.equal(outcome.norm, expected)
    assert torch.equal(weight.detach(), -other.grad)


def accumulate(precision: Precision, monkeypatch) -> tuple[torch.Tensor, int]:
    """Two clipped optimizer steps of two micro-batches each: the weights, and the number of unscale calls."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(4, 8, 3)
    calls = []
    if precision.scaler is not None:
        unscale = precision.scaler.unscale_
        monkeypatch.setattr(precision.scaler, "unscale_", lambda each: (calls.append(each), unscale(each)))
    for step in range(2):
        optimizer.zero_grad()
        for micro_batch in data[2 * step : 2 * step + 2]:
            with precision.autocast():
                loss = (model(micro_batch) - 1).square().sum() / 16
            precision.scale(loss).backward()
        assert precision.optimizer_step(optimizer, model.named_parameters(), clip=0.5).applied
    return model.weight.detach().clone(), len(calls)


def test_accumulation_with_clipping_unscales_once_per_optimizer_step(monkeypatch):
    with_scaler, calls = accumulate(fp16(1024.0), monkeypatch)
    without, _ = accumulate(Precision("fp32"), monkeypatch)
    assert calls == 2
    assert torch.allclose(with_scaler, without, atol=1e-3)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("was_scaled", [True, False])
def test_a_window_without_any_gradient_is_skipped_with_the_reason(name, was_scaled):
    precision = Precision(name)
    weight = torch.ones(2, requires_grad=True)
    if was_scaled:
        precision.scale(torch.ones(1))
    outcome = precision.optimizer_step(torch.optim.AdamW([weight]), [weight], clip=1.0)
    assert not outcome.applied
    assert outcome.reason == "no parameter of this optimizer has a gradient"
    assert outcome.norm is None
    assert precision.skipped == precision.skipped_in_a_row == 1
    # The next window is an ordinary one.
    precision.scale(weight.sum()).backward()
    assert precision.optimizer_step(torch.optim.SGD([weight], lr=1.0)).applied
    assert (precision.skipped, precision.skipped_in_a_row) == (1, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_gradient_that_is_not_finite_is_never_applied_and_its_parameter_is_named(name, bad):
    precision = Precision(name)
    model = nn.Linear(2, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    precision.scale(model(torch.ones(1, 2)).sum()).backward()
    model.bias.grad.fill_(bad)
    outcome = precision.optimizer_step(optimizer, model.named_parameters(), clip=1.0)
    assert not outcome.applied
    assert "not finite" in outcome.reason
    assert "in bias" in outcome.reason
    assert "weight" not in outcome.reason
    assert not outcome.norm.isfinite()
    assert optimizer.state == {}
    for old, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, parameter)


def test_names_come_from_an_optimizer_that_knows_them():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    assert "in weight, bias" in Precision("fp32").optimizer_step(optimizer).reason


def test_an_overflow_lowers_the_loss_scale_and_the_next_step_is_applied():
    precision = fp16()
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision.scale(weight.sum() * 1e35).backward()  # finite, but not times 65536
    outcome = precision.optimizer_step(optimizer)
    assert "loss scale 65536 -> 32768" in outcome.reason
    optimizer.zero_grad()
    precision.scale(weight.sum()).backward()
    assert precision.optimizer_step(optimizer).applied
    assert weight.item() == 0.0


def test_several_optimizers_step_together_or_not_at_all():
    for bad in (False, True):
        precision = fp16()
        one, other, idle = (torch.ones(1, requires_grad=True) for _ in range(3))
        optimizers = [torch.optim.SGD([each], lr=1.0) for each in (one, other, idle)]
        precision.scale((one + other).sum()).backward()
        if bad:
            other.grad.fill_(math.nan)
        assert precision.optimizer_step(optimizers).applied is not bad
        assert (one.item(), other.item()) == ((1.0, 1.0) if bad else (0.0, 0.0))


def test_sparse_gradients_count_in_the_norm_and_are_clipped():
    precision = fp16()
    table, weight = nn.Embedding(5, 1, sparse=True), torch.zeros(1, requires_grad=True)
    start = table.weight.detach().clone()
    optimizers = [torch.optim.SGD(table.parameters(), lr=1.0), torch.optim.SGD([weight], lr=1.0)]
    # Row 2 twice, so its gradient is 3; with 4 for the weight the norm is 5.
    precision.scale(1.5 * table(torch.tensor([2, 2])).sum() + 4 * weight.sum()).backward()
    outcome = precision.optimizer_step(optimizers, clip=1.0)
    assert float(outcome.norm) == 5.0
    assert (table.weight.detach() - start).flatten().tolist() == pytest.approx([0, 0, -0.6, 0, 0], abs=1e-5)
    assert weight.item() == pytest.approx(-0.8, abs=1e-5)


def test_a_loss_that_was_not_scaled_is_reported_before_a_step_65536_times_too_small():
    precision = fp16()
    weight = torch.ones(1, requires_grad=True)
    weight.sum().backward()
    with pytest.raises(UserError, match="not scaled"):
        precision.optimizer_step(torch.optim.SGD([weight], lr=1.0))


def test_half_precision_weights_are_refused_with_the_way_out():
    precision = fp16()
    weight = torch.ones(1, requires_grad=True, dtype=torch.float16)
    precision.scale(weight.sum()).backward()
    with pytest.raises(UserError, match="weights in float32"):
        precision.optimizer_step(torch.optim.SGD([weight], lr=1.0))


def test_parameters_that_leave_some_of_the_optimizers_out_are_refused():
    one, other = weight_with_gradient(), weight_with_gradient()
    with pytest.raises(UserError, match="1 of the optimizer's are left out"):
        Precision("fp32").optimizer_step(torch.optim.SGD([one, other], lr=1.0), [one], clip=1.0)
    with pytest.raises(UserError, match=r"clip = 0"):
        Precision("fp32").optimizer_step(torch.optim.SGD([one], lr=1.0), clip=0)


def test_without_the_check_nothing_is_computed_that_nobody_asked_for():
    weight = weight_with_gradient(math.nan)
    outcome = Precision("fp32", check_finite=False).optimizer_step(torch.optim.SGD([weight], lr=1.0))
    assert outcome.applied
    assert outcome.norm is None


def test_the_loss_scale_survives_a_checkpoint_as_json():
    precision = fp16()
    weight = torch.ones(1, requires_grad=True)
    for _ in range(2):
        precision.scale(weight.sum() * math.inf).backward()
        precision.optimizer_step(torch.optim.SGD([weight], lr=1.0))
    state = json.loads(json.dumps(precision.state_dict()))
    resumed = pick_precision("cpu", "fp16")
    resumed.load_state_dict(state)
    assert float(resumed.scale(torch.ones(1))) == 65536 / 4
    assert resumed.state_dict() == precision.state_dict()
    assert resumed.skipped_in_a_row == 2


def test_resuming_in_another_format_says_so():
    saved = fp16().state_dict()
    with pytest.warns(DtlabWarning, match=r"'bf16'.*computed in fp16"):
        Precision("bf16").load_state_dict(saved)
    with pytest.raises(UserError, match="precision state has the keys"):
        fp16().load_state_dict({})


def test_norm_and_clip_of_no_gradient():
    assert float(total_norm([torch.zeros(1)])) == 0
    clip_by_norm([torch.zeros(1)], 1.0, torch.tensor(0.0))


@pytest.mark.parametrize("device", [None, "tpu", (8,), ("8", "0"), 8.0])
def test_device_that_torch_does_not_know_is_refused_with_examples(device):
    with pytest.raises(UserError, match=r"device = .*'cpu'.*\(8, 0\)"):
        pick_precision(device)
