"""Recorded on two real ranks: every all-reduce is a span, and a trace after backward hides none of them."""

import torch
import torch.distributed as dist
from torch import nn

from dtlab import data_parallel, launch, world
from dtlab.diagnose.step_trace import merged, record_trace


def _recorded(engine):
    with world() as w:
        model = data_parallel(
            nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), w, engine=engine, bucket_mb=0.02
        )
        inputs = torch.ones(8, 64)
        for _ in range(2):
            model(inputs).sum().backward()
        return record_trace(lambda: model(inputs).sum().backward())


def _one_each():
    with world():
        tensors = [torch.ones(1000) for _ in range(5)]

        def step():
            for tensor in tensors:
                tensor.mul_(2.0)
            for tensor in tensors:
                dist.all_reduce(tensor)

        step()
        return record_trace(step)


def test_there_is_a_span_for_every_bucket_of_the_by_hand_engine():
    traces = launch(_recorded, 2, "by_hand", timeout=60, echo=False)
    assert [trace.rank for trace in traces] == [0, 1]
    assert [len(trace.communication) for trace in traces] == [4, 4]


def test_all_reduces_after_computing_are_exposed():
    for trace in launch(_one_each, 2, timeout=60, echo=False):
        assert len(trace.communication) == 5
        assert trace.exposed == merged(trace.communication)
        assert trace.exposed_us <= trace.step_us
