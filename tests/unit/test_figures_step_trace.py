"""The figures of lesson 10: titles say what the lanes and points show, alt text, refusals."""

import pytest

from dtlab.cost.collective_time import Link
from dtlab.diagnose.step_trace import StepTrace
from dtlab.figures.step_trace import bucket_figure, trace_figure
from dtlab.figures.style import alt_text, png
from dtlab.widgets.collective_time import collective_explorer

HIDDEN = StepTrace([(0, 1000)], [(100, 900)], rank=0)
HALF = StepTrace([(0, 500)], [(400, 800), (700, 1000)], rank=1)
LINK = Link(alpha_seconds=1e-4, bytes_per_second=1e9)
POINTS = [(size, LINK.seconds("all_reduce", 2, size)) for size in (2**10, 2**20, 2**30)]


def test_each_panel_says_how_much_is_exposed_on_each_rank():
    figure = trace_figure({"a": [HIDDEN, HALF], "b": [HIDDEN]})
    assert alt_text(figure).startswith(
        "Exposed communication, share of the step: a 25 %, b 0 %. a: step of 1.0 mill"
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "a: step of 1.0 ms, 1 all-reduce; exposed: rank 0 0 %, rank 1 50 %",
        "b: step of 1.0 ms, 1 all-reduce; exposed: rank 0 0 %",
    ]
    assert (
        "Rank 1 computes for 0.5 milliseconds and nothing hides 0.5 milliseconds of communication"
        in alt_text(figure)
    )


def test_two_lanes_a_rank_with_the_exposed_time_drawn_once():
    (axes,) = trace_figure({"a": [HALF]}).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["rank 1 computes", "communicates"]
    exposed = axes.collections[-1]
    assert [path.get_extents().width for path in exposed.get_paths()] == [0.5]
    assert exposed.get_hatch()


@pytest.mark.parametrize("runs", [{}, {"a": []}])
def test_a_figure_without_a_trace_is_refused(runs):
    with pytest.raises(ValueError, match="at least one run"):
        trace_figure(runs)


def test_the_best_bucket_of_each_network_is_named():
    figure = bucket_figure({"fast": {2**20: (9, 5), 2**22: (2, 8)}, "slow": {2**20: (9, 90), 2**22: (2, 40)}})
    assert alt_text(figure).startswith(
        "Least exposed: fast with buckets of 1 MiB; slow with buckets of 4 MiB"
    )
    assert "slow: 1 MiB 9 all-reduces 0.09 milliseconds, 4 MiB 2 all-reduces 0.04 milliseconds." in alt_text(
        figure
    )
    with pytest.raises(ValueError, match="at least one network"):
        bucket_figure({})


def test_the_explorer_shows_the_fitted_curve_where_nobody_can_move_it(capsys):
    collective_explorer(POINTS, 2)
    told = capsys.readouterr().out
    assert "All-reduce, 2 ranks: 0% off 3 fitted sizes" in told
    assert "Latency 100 us, bandwidth 1 GB/s" in told
    collective_explorer(POINTS, 2, (2e-4, 1e9))
    assert "Latency 200 us" in capsys.readouterr().out


def test_the_same_traces_give_the_same_picture():
    assert png(trace_figure({"a": [HALF]})) == png(trace_figure({"a": [HALF]}))
