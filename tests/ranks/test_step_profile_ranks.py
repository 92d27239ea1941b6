"""Exposed communication on ranks: there where gradients are shared, none inside no_sync()."""

import pytest
import torch
from torch import nn

import dtlab
from dtlab.diagnose.bound import bound_verdict
from dtlab.diagnose.profiler import step_profile
from dtlab.diagnose.step_profile import gather_profiles
from dtlab.parallel.ddp import data_parallel


def profiled(engine, shares=True):
    with dtlab.world() as w:
        model = data_parallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)), w, engine=engine)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with step_profile(model) as profiler:
            for batch in profiler.steps(torch.randn(4, 2, 16, 8)):
                optimizer.zero_grad()
                with model.no_sync():
                    model(batch[0]).square().mean().backward()
                    if not shares:
                        model(batch[1]).square().mean().backward()
                if shares:
                    model(batch[1]).square().mean().backward()
                optimizer.step()
        together = gather_profiles(profiler.profile())
        return together, bound_verdict(together).bound


@pytest.mark.parametrize("engine", ["torch", "by_hand"])
def test_communication_is_seen_with_both_engines_and_only_where_it_is_due(engine):
    for profiles, bound in dtlab.launch(profiled, 2, engine, timeout=60, echo=False):
        assert [each.rank for each in profiles] == [0, 1]
        assert bound in ("compute-bound", "input-bound", "communication-bound")
        for profile in profiles:
            assert len(profile) == 3
            assert (profile.column("communication") > 0).all()
    for profiles, _ in dtlab.launch(profiled, 2, engine, False, timeout=60, echo=False):
        for profile in profiles:
            assert not profile.column("communication").any()
