"""S0's table beside the price list, finish times on spot hosts, and the planner's figure by a few numbers."""

import pytest

from dtlab.figures.money import finish_figure, source_table_figure
from dtlab.figures.run_price import run_price_figure, scaling_price_figure
from dtlab.figures.style import alt_text, png


def test_the_sources_table_is_drawn_as_claimed_and_by_both_price_lists_and_the_gain_is_split():
    figure = source_table_figure()
    words = alt_text(figure)
    assert "as claimed, per sample: 1.00, 0.60, 0.74" in words
    assert "SageMaker, per epoch: 1.00, 0.84, 0.93; EC2, per epoch: 1.00, 0.87, 1.01" in words
    assert "the cache is worth 1.30x; 109 to 18 on eight cards is 6.06x" in words
    ratios, minutes = figure.axes
    assert [round(bar.get_height(), 2) for bar in ratios.patches] == [
        1, 0.6, 0.74, 1, 0.84, 0.93, 1, 0.87, 1.01,
    ]  # fmt: skip
    assert {text.get_text().split(":")[0] for text in minutes.texts} == {"142", "109", "31", "18"}


def test_every_run_is_in_time_or_late_and_the_deadline_parts_them():
    figure = finish_figure()
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    in_time, late = (int(label.split(": ")[1]) for label in sorted(labels[:2]))
    assert in_time + late == 400
    assert 0 < late < in_time
    assert alt_text(figure).startswith(f"{late / 400:.0%} of runs are late")
    drawn = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in axes.patches]
    assert sum(height for *_, height in drawn) == 400
    assert not [bar for bar in drawn if bar[0] < 24 - 1e-9 and bar[1] > 24 + 1e-9]


def test_without_interruptions_nothing_is_late_and_the_saving_is_the_discount():
    words = alt_text(finish_figure(interruptions_per_hour=0.0, spot_fraction=0.35))
    assert words.startswith("0% of runs are late; mean 20.0 h")
    assert "65% saved by a discount of 65%" in words


def test_many_interruptions_make_spot_dearer_than_on_demand():
    words = alt_text(finish_figure(interruptions_per_hour=0.5, save_every_minutes=120.0, spot_fraction=0.9))
    assert "100% of runs are late" in words
    assert "-" in words.split("saved by")[0].rsplit(",", 1)[1]


@pytest.mark.parametrize(
    "values",
    [
        {"deadline_hours": 10.0},  # before the work can be done
        {"interruptions_per_hour": 0.0, "deadline_hours": 60.0},
        {"hosts": 8, "interruptions_per_hour": 0.5, "save_every_minutes": 120.0, "work_hours": 5.0},
    ],
)
def test_the_ends_of_the_spot_controls_can_be_drawn(values):
    assert png(finish_figure(**values))


def test_two_prices_in_a_title_are_no_formula():
    (title,) = [text for text in finish_figure().texts if "late" in text.get_text()]
    assert title.get_text().count("$") == 2
    assert not title.get_parse_math()


def test_the_deadline_moves_the_choice_to_a_dearer_configuration():
    def chosen(hours):
        words = alt_text(run_price_figure(max_gpus=8, deadline_hours=hours))
        return float(words.split(": $")[1].split(",")[0]), words

    (slow, _), (fast, words) = chosen(96.0), chosen(4.0)
    assert fast > slow
    assert "Deadline: 4 h." in words


def test_a_deadline_that_nothing_keeps_is_said_in_title_and_words():
    figure = run_price_figure(max_gpus=4, million_samples=100.0, deadline_hours=1.0)
    assert alt_text(figure).startswith("Nothing keeps the deadline of 1 h.")
    assert any(text.get_text().startswith("Nothing is done in 1 h; the fastest") for text in figure.texts)


def test_more_machines_are_faster_less_efficient_and_dearer_from_the_first_whole_one_on():
    figure = scaling_price_figure(max_machines=4)
    efficiency, price = figure.axes
    cards, shares = efficiency.lines[0].get_data()
    hours, usd = price.lines[0].get_data()
    assert list(cards) == [1, 4, 8, 16]
    assert sorted(shares, reverse=True) == list(shares)
    assert sorted(hours, reverse=True) == list(hours)
    assert list(usd[1:]) == sorted(usd[1:])
    assert usd[0] > usd[1], "one card of a host of four pays for the host"


def test_numbers_of_cards_stand_clear_of_the_line():
    figure = scaling_price_figure()
    png(figure)  # lays the figure out
    price = figure.axes[1]
    path = price.transData.transform_path(price.lines[0].get_path())
    assert [text.get_text() for text in price.texts] == ["1", "4", "8", "16", "32"]
    assert not any(path.intersects_bbox(text.get_window_extent(), filled=False) for text in price.texts)
