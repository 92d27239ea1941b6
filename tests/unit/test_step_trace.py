"""Exposed communication: spans that overlap count once, gaps in computing count; a profile gives spans."""

from types import SimpleNamespace

import pytest

from dtlab.diagnose.step_trace import Span, StepTrace, merged, record_trace, trace_of_events, without
from dtlab.errors import UserError


def event(name, start, end, *, inside=None, device="DeviceType.CPU"):
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), cpu_parent=inside, device_type=device
    )


@pytest.mark.parametrize(
    ("compute", "communication", "exposed"),
    [
        ([(0, 10)], [], []),
        ([(0, 10)], [(2, 8)], []),
        ([(0, 10)], [(5, 15), (12, 20)], [(10, 20)]),
        ([(0, 4), (8, 10)], [(2, 9)], [(4, 8)]),
        ([(8, 10), (0, 4)], [(11, 12), (2, 9)], [(4, 8), (11, 12)]),
        ([(4, 5), (4, 5)], [(0, 9)], [(0, 4), (5, 9)]),
    ],
)
def test_exposed_is_communication_without_computing(compute, communication, exposed):
    trace = StepTrace(compute, communication)
    assert trace.exposed == exposed
    every = {t for a, b in communication for t in range(a, b)} - {t for a, b in compute for t in range(a, b)}
    assert trace.exposed_us == len(every)


def test_share_is_of_the_whole_step_from_its_first_span_to_its_last():
    trace = StepTrace([(100, 140), (190, 200)], [(140, 180)])
    assert (trace.step_us, trace.exposed_us, trace.exposed_share) == (100, 40, 0.4)


def test_merging_closes_gaps_up_to_the_one_asked_for_and_drops_empty_spans():
    assert merged([(0, 5), (7, 9), (20, 20)], gap=2) == [Span(0, 9)]
    assert merged([(0, 5), (8, 9)], gap=2) == [Span(0, 5), Span(8, 9)]
    assert without([(0, 0)], [(0, 1)]) == []


def test_a_span_that_ends_before_it_starts_is_refused():
    with pytest.raises(UserError, match=r"communication holds \(5, 4\)"):
        StepTrace([(0, 1)], [(5, 4)])


def test_a_step_without_computing_is_refused():
    with pytest.raises(UserError, match="compute is empty"):
        StepTrace([], [(0, 1)])
    with pytest.raises(UserError, match="holds no computing"):
        trace_of_events([event("gloo:all_reduce", 0, 5)])


def test_on_a_cpu_outer_operations_compute_and_what_the_backend_names_travels():
    outer = event("aten::linear", 1000, 1100)
    trace = trace_of_events(
        [
            outer,
            event("aten::addmm", 1010, 1090, inside=outer),
            event("c10d::allreduce_", 1100, 1150),
            event("gloo:all_reduce", 1120, 1300),
            event("aten::div_", 1310, 1330),
        ],
        rank=3,
    )
    assert (trace.rank, trace.compute, trace.communication) == (3, [(0, 100), (310, 330)], [(120, 300)])


def test_on_a_card_kernels_count_and_calls_of_the_cpu_do_not():
    trace = trace_of_events(
        [
            event("aten::linear", 0, 900),
            event("gemm", 100, 400, device="DeviceType.CUDA"),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 300, 600, device="DeviceType.CUDA"),
        ]
    )
    assert (trace.compute, trace.communication, trace.exposed_us) == ([(0, 300)], [(200, 500)], 200)


def test_a_step_of_one_process_has_computing_and_no_communication():
    import torch

    layer = torch.nn.Linear(16, 16)
    trace = record_trace(lambda: layer(torch.ones(4, 16)).sum().backward())
    assert trace.compute
    assert not trace.communication
    assert trace.compute[0][0] == 0
