"""Bytes over a step and sizes of gradients: titles and words come from the values, bad input is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dtlab.figures.gradients import fp16_shares, gradient_sizes_figure
from dtlab.figures.step_memory import step_memory_figure
from dtlab.figures.style import alt_text, png

MB = 1_000_000


def trace(*values, marks=(("step", 1), ("forward", 1), ("backward", 4), ("optimizer", 6))):
    return SimpleNamespace(timeline=[value * MB for value in values], marks=list(marks))


WHOLE = trace(9, 3, 8, 20, 12, 5, 4)
TWICE = [("forward 0", 1), ("backward 0", 3), ("forward 1", 4), ("backward 1", 5), ("optimizer", 6)]
SMALL = trace(9, 3, 6, 4, 6, 4, 4, marks=[("step", 1), *TWICE])


def test_the_title_names_the_first_run_and_the_smallest():
    words = alt_text(step_memory_figure({"whole": WHOLE, "small": SMALL}))
    assert words.startswith("whole: 20.0 MB at the peak; small: 6.0 MB. ")
    assert alt_text(step_memory_figure({"whole": WHOLE})).startswith("whole: 20.0 MB at the peak. ")


def test_the_words_say_when_the_peak_comes_how_many_hills_there_are_and_whether_it_fits():
    words = alt_text(step_memory_figure({"whole": WHOLE, "small": SMALL}, budget=10 * MB))
    assert "whole: one hill, from 3.0 MB up to 20.0 MB in the forward, over the budget, down to 4.0" in words
    assert (
        "small: 2 hills, one for each micro-batch, from 3.0 MB up to 6.0 MB in the forward, within" in words
    )


def test_what_came_before_the_step_is_not_drawn():
    figure = step_memory_figure({"whole": WHOLE})
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [3, 8, 20, 12, 5, 4]
    assert figure.axes[0].get_title(loc="left") == "whole: 20.0 MB"


def test_every_phase_of_every_micro_batch_is_filled():
    figure = step_memory_figure({"small": SMALL})
    assert len(figure.axes[0].collections) == 5


def test_an_odd_number_of_runs_leaves_no_empty_panel():
    figure = step_memory_figure({"a": WHOLE, "b": SMALL, "c": WHOLE})
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({}, "runs is empty"),
        ({"x": trace(1, 2, marks=[("forward", 0)])}, "x: no operation after a mark 'step'"),
        ({"x": trace(1, 2, marks=[("step", 2)])}, "x: no operation after a mark 'step'"),
    ],
)
def test_a_trace_without_a_step_is_refused(runs, said):
    with pytest.raises(ValueError, match=said):
        step_memory_figure(runs)


def test_the_zones_are_those_of_fp16_itself():
    sizes = np.concatenate([2.0 ** np.arange(-30, 17, 0.25), [2.0**-25, 2.0**-25 * 1.001, 65519.0, 65520.0]])
    half = torch.from_numpy(sizes).half()
    shares = fp16_shares(sizes)
    assert shares["zero"] == float((half == 0).double().mean())
    assert shares["infinite"] == float(half.isinf().double().mean())
    coarse = (half != 0) & (torch.from_numpy(sizes) < torch.finfo(torch.float16).smallest_normal)
    assert shares["fewer bits"] == float(coarse.double().mean())


def test_true_zeros_and_signs_do_not_count():
    assert fp16_shares([0.0, 0.0, -1.0])["zero"] == 0.0
    with pytest.raises(ValueError, match="no gradient that is not 0"):
        fp16_shares([0.0])


def test_the_title_and_the_words_hold_the_shares_of_each_run():
    sizes = np.array([2.0**-30, 2.0**-26, 2.0**-20, 1.0])
    words = alt_text(gradient_sizes_figure({"as they are": sizes, "scaled": sizes * 65536}))
    assert words.startswith("In fp16's zero zone: as they are 50.0%; scaled 0.0%. ")
    assert "as they are: the middle one lies at 2^-23; in fp16 50.0% zero, 25.0% fewer bits" in words
    assert "scaled: the middle one lies at 2^-7; in fp16 0.0% zero, 0.0% fewer bits, 25.0% infinite" in words


def test_every_number_is_in_a_bar_and_far_ones_in_the_last():
    sizes = [1e-40, 2.0**-10, 1e30]
    bars = gradient_sizes_figure({"x": sizes}).axes[0].containers[0]
    assert sum(bar.get_height() for bar in bars) == 3
    assert bars[0].get_height() == bars[-1].get_height() == 1


def test_gradients_are_needed():
    with pytest.raises(ValueError, match="runs is empty"):
        gradient_sizes_figure({})


def test_the_same_values_give_the_same_picture():
    for draw, one, other in (
        (step_memory_figure, {"a": WHOLE}, {"a": SMALL}),
        (gradient_sizes_figure, {"a": [1e-9, 1.0]}, {"a": [1e-3, 1.0]}),
    ):
        assert png(draw(one)) == png(draw(one))
        assert png(draw(one)) != png(draw(other))
