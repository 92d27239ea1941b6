"""The recorded backward of HandDDP: every gradient and every bucket in order, nothing changed by it."""

from typing import Any

import pytest
import torch
from torch import nn

import dtlab
from dtlab.errors import UserError
from dtlab.parallel import HandDDP, parameter_hash, record_backward


def two_backwards() -> dict[str, Any]:
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = HandDDP(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), bucket_mb=0.0334)
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(w.rank))
        with record_backward(model) as line:
            model(inputs).square().mean().backward()
        recorded = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(inputs).square().mean().backward()
        same = all(torch.equal(a, p.grad) for a, p in zip(recorded, model.parameters(), strict=True))
        return {"line": line, "same": same, "all_reduces": model.all_reduces}


def test_gradients_and_buckets_are_noted_in_order_on_every_rank() -> None:
    for rank, result in enumerate(dtlab.launch(two_backwards, 2, timeout=60, echo=False)):
        line = result["line"]
        assert line.rank == rank
        names = {f"{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias")}
        assert len(line.gradients) == 8
        assert {name for name, _ in line.gradients} == names
        times = [line.start, *[at for _, at in line.gradients], line.end]
        assert times == sorted(times)
        # 0.0334 MB hold two layers of 16,640 bytes.
        assert [trip.names for trip in line.trips] == [
            ("3.bias", "3.weight", "2.bias", "2.weight"),
            ("1.bias", "1.weight", "0.bias", "0.weight"),
        ]
        assert [trip.bytes for trip in line.trips] == [2 * 16_640] * 2
        arrived = dict(line.gradients)
        for trip in line.trips:
            assert max(arrived[name] for name in trip.names) <= trip.start <= trip.end
        assert result["same"], "recording changed the gradients"
        assert result["all_reduces"] == 4, "the second backward ran without the recorder"


def test_a_model_whose_buckets_cannot_be_seen_is_refused() -> None:
    with pytest.raises(UserError, match="got a Linear: give a HandDDP"), record_backward(nn.Linear(2, 1)):  # type: ignore[arg-type]
        pass


def test_hashes_tell_one_bit_and_survive_the_wrapper() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    assert parameter_hash(model) == parameter_hash(other)
    with torch.no_grad():
        other.bias[1] = torch.nextafter(other.bias[1], torch.tensor(9.0))
    assert parameter_hash(model) != parameter_hash(other)
    assert parameter_hash(nn.Sequential(model)) == parameter_hash(model)
    assert parameter_hash(model.bfloat16()) != parameter_hash(nn.Linear(3, 2))
    assert len(parameter_hash(model, 64)) == 64
    with pytest.raises(ValueError, match="digits = 0"):
        parameter_hash(model, 0)


def test_a_buffer_that_differs_is_seen() -> None:
    model, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    assert parameter_hash(model) == parameter_hash(other)
    other.running_mean[0] = 1
    assert parameter_hash(model) != parameter_hash(other)
