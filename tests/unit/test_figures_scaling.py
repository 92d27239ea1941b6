"""Figures of scaling: bars and points stand where the numbers say, titles state what was found."""

import pytest

from dtlab.figures.scaling import amdahl_figure, step_figure, throughput_figure
from dtlab.figures.style import alt_text
from dtlab.widgets.scaling import amdahl_explorer


def test_throughput_is_drawn_beside_what_was_hoped_for() -> None:
    figure = throughput_figure({1: 1500.0, 2: 1600.0, 4: 1650.0}, limit=1600)
    assert alt_text(figure).startswith("4 ranks, 1.1x the rows per second of one. ")
    assert "4 ranks 1,650, hoped for 6,000" in alt_text(figure)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [1500, 3000, 6000, 1500, 1600, 1650]


def test_throughput_without_one_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="measured has no 1"):
        throughput_figure({2: 10.0})


def test_the_parts_of_a_step_are_stacked_in_milliseconds_and_named() -> None:
    figure = step_figure(
        {
            "one disk": {"data": 0.020, "compute": 0.001, "sync": 0.002},
            "from memory": {"data": 0.0, "compute": 0.001, "sync": 0.002},
        }
    )
    assert alt_text(figure).startswith("One step in its parts; one disk is input-bound. ")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([20, 1, 2, 0, 1, 2])
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([0, 20, 21, 0, 0, 1])
    assert [text.get_text() for text in axes.texts] == ["input-bound", "communication-bound"]


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="steps is empty"):
        step_figure({})


def test_the_curve_is_amdahls_and_the_points_are_the_measured_ones() -> None:
    figure = amdahl_figure(0.25, {1: 1.0, 4: 2.1}, most=8)
    words = alt_text(figure)
    assert words.startswith("25% serial: 2.9x on 8 ranks, never more than 4.0x. ")
    assert "1.00x on 1, 1.60x on 2, 2.29x on 4, 2.91x on 8" in words
    assert "Measured: 1.00x on 1, 2.10x on 4." in words
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["measured"].get_ydata()) == [1.0, 2.1]
    assert list(lines["Amdahl, 25% serial"].get_ydata()[:2]) == pytest.approx([1.0, 1.6])


def test_the_curve_reaches_as_far_as_the_points() -> None:
    assert "on 32 ranks" in alt_text(amdahl_figure(0.5, [(32, 1.9)], most=8))


def test_nothing_serial_is_the_ideal() -> None:
    assert alt_text(amdahl_figure(0.0)).startswith("Nothing serial: 16x on 16 ranks. ")


def test_the_explorer_starts_at_the_share_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    amdahl_explorer(0.456, {1: 1.0, 2: 1.3})
    assert "46% serial" in capsys.readouterr().out
