"""The parts of a step on a CUDA card: events on its stream, and NCCL's all-reduces timed on the card."""

import time

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


def net():
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1)).cuda()


def slow(steps):
    for _ in range(steps):
        time.sleep(0.05)
        yield torch.randn(512, 1024, device="cuda")


def test_wait_for_a_slow_loader_is_data_on_the_card():
    from dtlab.diagnose.profiler import step_profile
    from dtlab.diagnose.step_profile import PARTS

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with step_profile(model, skip=2) as profiler:
        for batch in profiler.steps(slow(6)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    profile = profiler.profile()
    assert (profile.device, len(profile)) == ("cuda", 4)
    assert (profile.column("data") > 0.03).all()
    for part in ("forward", "backward", "optimizer"):
        assert (profile.column(part) > 0).all(), part
    assert not profile.column("communication").any()
    assert sum(profile.mean(part) for part in PARTS) == pytest.approx(profile.step_seconds)


def test_nccl_all_reduces_are_timed_on_the_card():
    import dtlab

    def reduced():
        from dtlab.parallel.communication import AllReduceClock

        with dtlab.world(distributed=True):
            model = DistributedDataParallel(net())
            clock = AllReduceClock(model)
            found = []
            for batch in slow(3):
                model(batch).square().mean().backward()
                torch.cuda.synchronize()
                found.append(clock.seconds)
            return found

    (found,) = dtlab.launch(reduced, 1, timeout=120, echo=False)
    assert 0 < found[0] < found[1] < found[2] < 10
