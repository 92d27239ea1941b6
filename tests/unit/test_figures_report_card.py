"""The figures of lesson 16 say in words what they draw."""

from dataclasses import replace

import pytest

from dtlab.diagnose.report_lines import Line, ReportCard
from dtlab.figures.report_card import report_figure
from dtlab.figures.serving import serving_figure
from dtlab.figures.style import alt_text, png

GOOD = Line("bytes of a step", "share", "9", "at most 10", True, limit=0.9)
BAD = Line("resume", "kept", "another model", "the same", False, "the optimizer's moments")


def test_the_title_names_the_decisions_that_fail_and_the_words_every_line():
    figure = report_figure(ReportCard((GOOD, BAD)), "What was left behind")
    words = alt_text(figure)
    assert words.startswith("What was left behind: 1 of 2 lines fail: kept. ")
    assert "bytes of a step: 9, wanted at most 10, pass" in words
    assert "resume: another model, wanted the same, FAIL: kept" in words
    assert png(figure)[:4] == b"\x89PNG"


def test_a_card_that_passes_says_so_and_one_without_lines_is_refused():
    assert alt_text(report_figure(ReportCard((GOOD,)))).startswith("all 1 lines pass. ")
    with pytest.raises(ValueError, match="with lines"):
        report_figure(ReportCard(()))


def test_every_number_stands_clear_of_the_bars_and_of_the_limit_and_a_long_text_is_whole():
    shares = (0.001, 0.2, 0.7, 0.76, 0.96, 1.0, 1.3, 4.1, 50.0, 999.0)
    lines = [Line(f"line {share}", "share", "9", "10", share <= 1, limit=share) for share in shares]
    long = "another model: generators, optimizer, sampler not put back"
    figure = report_figure(ReportCard((*lines, replace(BAD, measured=long))))
    png(figure)  # lays the figure out
    names, bars = figure.axes
    limit = bars.lines[0].get_window_extent()
    drawn = [bar.get_window_extent() for bar in bars.patches]
    numbers = [text.get_window_extent() for text in bars.texts if text.get_text() != "yes or no"]
    assert len(numbers) == len(shares)
    assert not any(number.x0 <= limit.x1 or number.overlaps(bar) for number in numbers for bar in drawn)
    assert long in {text.get_text().replace("\n", " ") for text in names.texts}
    words = [text.get_window_extent() for text in names.texts[-4:]]
    assert not any(a.overlaps(b) for a in words for b in words if a is not b)


def test_a_card_without_lines_has_not_passed_and_cards_add_up():
    assert not ReportCard(()).passed
    both = ReportCard((GOOD,)) + ReportCard((BAD, BAD))
    assert (both.passed, both.faults, len(both.failed)) == (False, ["kept"], 2)
    assert both.text().splitlines()[2].endswith("FAIL: kept")


def test_the_serving_figure_says_what_waits_and_what_computes():
    figure = serving_figure({"one at a time": [(1, 10, 100), (9, 500, 100)]}, {"the alarm": 200})
    assert "at 9 a second 500 ms of waiting and 100 ms of computing" in alt_text(figure)
    with pytest.raises(ValueError, match="at least one path"):
        serving_figure({})
