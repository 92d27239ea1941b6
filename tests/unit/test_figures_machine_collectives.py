"""Collectives on types of machines: the numbers of the figure are those of the model, and rules are told."""

import pytest

from dtlab.cost.networks import network
from dtlab.errors import UserError
from dtlab.figures.machine_collectives import MACHINES, machine_collectives_figure
from dtlab.figures.style import alt_text
from dtlab.widgets.explorer import label_of


def test_times_are_those_of_the_networks():
    figure = machine_collectives_figure(machines=2, size_mib=64)
    lines = figure.axes[0].get_lines()[: len(MACHINES)]
    for name, line in zip(MACHINES, lines, strict=True):
        ranks = 2 * network(name).cards
        sizes, seconds = line.get_data()
        assert list(seconds) == [network(name).seconds("all_reduce", ranks, size, 2) for size in sizes]
    assert "p5 600 us" in alt_text(figure)


def test_dashes_stand_for_rules_and_lines_for_measurements():
    lines = machine_collectives_figure(machines=2).axes[0].get_lines()[: len(MACHINES)]
    style = {name: line.get_linestyle() for name, line in zip(MACHINES, lines, strict=True)}
    assert style["p5.48xlarge"] == "-"
    assert style["g5.12xlarge"] == "--"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"machines": 0}, "machines = 0"),
        ({"size_mib": -1}, "size_mib = -1"),
        ({"types": ("g5.xlarge",), "machines": 1}, "one card has nobody to talk to"),
        ({"collective": "gossip"}, "gossip"),
        ({"types": ("g99.xlarge",)}, "g99.xlarge"),
    ],
)
def test_what_cannot_be_drawn_is_named(given, said):
    with pytest.raises(UserError, match=said):
        machine_collectives_figure(**given)


def test_controls_are_labelled_with_units_as_they_are_written():
    assert label_of("state_gb") == "state GB"
    assert label_of("size_mib") == "size MiB"
