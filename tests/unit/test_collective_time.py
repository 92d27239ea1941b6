"""Fitted collective times: published rows, known fits, and what is refused."""

import csv
from pathlib import Path

import pytest

from dtlab.cost.catalogue import instances
from dtlab.cost.collective_fit import every_second, fit_link, relative_errors
from dtlab.cost.collective_time import (
    COLLECTIVES,
    Link,
    hierarchical_all_reduce_seconds,
    sent_share,
)
from dtlab.cost.networks import LINKS, network, network_of
from dtlab.errors import UserError

MIB, GIB = 2**20, 2**30
PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "data" / "published-collectives.csv"


def published(system: str) -> list[tuple[float, float]]:
    with PUBLISHED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["system"].startswith(system)]
    return [(float(row["size_bytes"]), float(row["time_us"]) * 1e-6) for row in rows if row["time_us"]]


# Microseconds of an all-reduce of 1 MiB, 64 MiB and 1 GiB; those with * are not among the rows of the fits.
GOLDEN = {
    ("p5.48xlarge", 1): (28.6, 326.6, 4253.0),  # *64 MiB, *1 GiB
    ("p5.48xlarge", 2): (123.0, 601.5, 4608.0),  # *1 GiB
    ("p4de.24xlarge", 2): (309.0, 2645.0, 26217.0),
}


@pytest.mark.parametrize(("machine", "nodes"), GOLDEN)
def test_all_reduces_of_published_size_are_met_within_15_percent(machine: str, nodes: int) -> None:
    for size, microseconds in zip((MIB, 64 * MIB, GIB), GOLDEN[machine, nodes], strict=True):
        predicted = network(machine).seconds("all_reduce", 8 * nodes, size, nodes)
        assert predicted * 1e6 == pytest.approx(microseconds, rel=0.15)


def test_the_measured_links_are_the_fits_of_the_published_rows() -> None:
    systems = {
        ("8xH100 NVSwitch", 1): ("1x p5.48xlarge", 8),
        ("8xH200 NVSwitch", 1): ("1x 8xH200", 8),
        ("p5 EFA", 2): ("2x p5.48xlarge", 16),
        ("p4de EFA", 2): ("2x p4de.24xlarge", 16),
    }
    with LINKS.open(newline="") as file:
        rows = {(row["network"], int(row["nodes"])): row for row in csv.DictReader(file)}
    for key, (system, ranks) in systems.items():
        fit = fit_link([point for point in published(system) if point[0] >= MIB], ranks)
        assert rows[key]["kind"] == "measured"
        assert float(rows[key]["alpha_us"]) == pytest.approx(fit.link.alpha_seconds * 1e6, abs=0.06)
        assert float(rows[key]["gb_per_second"]) == pytest.approx(fit.link.bytes_per_second / 1e9, abs=0.06)


@pytest.mark.parametrize(
    ("system", "ranks"), [("1x p5.48xlarge", 8), ("2x p5.48xlarge", 16), ("2x p4de", 16), ("1x 8xH200", 8)]
)
def test_sizes_held_out_of_the_fit_are_met_within_8_percent_on_average(system: str, ranks: int) -> None:
    points = [point for point in published(system) if MIB <= point[0] <= GIB]
    fitted, held = every_second(points)
    errors = relative_errors(fit_link(fitted, ranks).link, held, ranks)
    assert sum(map(abs, errors)) / len(errors) <= 0.08


def test_a_fit_recovers_latency_and_bandwidth_of_every_collective() -> None:
    true = Link(alpha_seconds=35e-6, bytes_per_second=90e9)
    for collective in COLLECTIVES:
        points = [(2.0**power, true.seconds(collective, 4, 2.0**power)) for power in (18, 22, 26)]
        found = fit_link(points, 4, collective)
        assert found.link.alpha_seconds == pytest.approx(35e-6)
        assert found.link.bytes_per_second == pytest.approx(90e9)
        assert found.mape < 1e-9


def test_a_bandwidth_without_latency_is_fitted_with_none_below_zero() -> None:
    fit = fit_link([(1e6, 1e-6), (1e8, 2.2e-4), (1e9, 2.5e-3)], ranks=2)
    assert fit.link.alpha_seconds == 0.0
    assert 3e11 < fit.link.bytes_per_second < 1e12


@pytest.mark.parametrize(
    ("points", "ranks", "words"),
    [
        ([(MIB, 1e-3)], 8, "two sizes"),
        ([(MIB, 1e-3), (MIB, 2e-3)], 8, "two sizes"),
        ([(MIB, 1e-3), (2 * MIB, 0.0)], 8, "above 0"),
        ([(MIB, 2e-3), (GIB, 1e-3)], 8, "do not grow"),
        ([(MIB, 1e-3), (GIB, 2e-3)], 1, "two or more"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(
    points: list[tuple[float, float]], ranks: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        fit_link(points, ranks)


def test_an_unknown_collective_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="all_reduce, all_gather"):
        sent_share("allreduce", 8)


def test_the_bytes_that_each_rank_sends() -> None:
    assert {name: sent_share(name, 4) for name in COLLECTIVES} == {
        "all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "all_to_all": 0.75, "p2p": 1.0,
    }  # fmt: skip
    assert all(sent_share(name, 1) == 0 for name in COLLECTIVES)


def test_a_hierarchy_sends_over_the_network_what_one_card_holds() -> None:
    inside, across = (Link(alpha_seconds=0, bytes_per_second=speed) for speed in (100e9, 10e9))
    # 7/8 GB at 100 GB/s twice; an eighth of 1 GB, all-reduced between two machines, at 10 GB/s
    assert hierarchical_all_reduce_seconds(1e9, 8, 2, inside, across) == pytest.approx(2 * 8.75e-3 + 12.5e-3)


def test_every_machine_with_cards_has_links_that_say_what_they_rest_on() -> None:
    found = [network_of(each) for each in instances() if each.gpus]
    assert len(found) > 20
    for links in found:
        for nodes in (1, 2, 4, 32):
            ranks = links.cards * nodes
            if ranks > 1:
                link = links.link(ranks, nodes)
                assert link.source
                assert link.kind in ("measured", "estimate")
                assert 0.1e9 < link.bytes_per_second < 2e12


def test_more_machines_are_never_faster() -> None:
    for name in ("p5.48xlarge", "p4d.24xlarge", "p3dn.24xlarge", "g5.12xlarge", "HF H100 cluster"):
        links = network(name)
        times = [links.seconds("all_reduce", links.cards * n, 1e9, n) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert times == sorted(times), name


def test_only_what_was_measured_is_called_so() -> None:
    assert network("ml.p5.48xlarge").link(16, 2).kind == "measured"
    assert network("ml.p5.48xlarge").link(24, 3).kind == "estimate"
    assert network("ml.p5.48xlarge").link(512, 64).kind == "estimate"
    assert network("ml.g4dn.12xlarge").link(4).kind == "estimate"
    assert network("p4d.24xlarge").link(8).kind == "estimate"


def test_more_ranks_than_cards_are_refused() -> None:
    with pytest.raises(UserError, match="give 2 to 16"):
        network("p5.48xlarge").link(17, 2)
    with pytest.raises(UserError, match="has no GPU"):
        network("m5.xlarge")
