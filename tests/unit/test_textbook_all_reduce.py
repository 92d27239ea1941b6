"""The textbook times of an all-reduce: known values, limits and refusals."""

import pytest

from dtlab.cost.collectives import ALGORITHMS, textbook_all_reduce_seconds
from dtlab.errors import UserError


def test_values_by_hand() -> None:
    # 4 ranks, 4 MB, 1 ms latency, 1 GB/s: a whole tensor takes 4 ms on the wire
    seconds = {name: textbook_all_reduce_seconds(name, 4, 4e6, 1e-3, 1e9) for name in ALGORITHMS}
    assert seconds == pytest.approx(
        {
            "ring": 6 * (1e-3 + 1e-3),
            "tree": 4 * (1e-3 + 4e-3),
            "tree, pipelined": 4e-3 + 8e-3,
            "parameter server": 6 * (1e-3 + 4e-3),
            "parameter servers": 6e-3 + 32e-3,
        }
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_needs_no_time(algorithm: str) -> None:
    assert textbook_all_reduce_seconds(algorithm, 1, 1e9, 1e-3, 1e9) == 0.0


def test_the_bandwidth_part_of_a_ring_does_not_grow_with_ranks_and_a_servers_does() -> None:
    def seconds(algorithm: str, ranks: int) -> float:
        return textbook_all_reduce_seconds(algorithm, ranks, 1e9, 0.0, 1e9)

    assert [seconds("ring", n) for n in (2, 4, 1024)] == pytest.approx([1.0, 1.5, 2.0], rel=2e-3)
    assert seconds("parameter server", 1024) == pytest.approx(2 * 1023)


def test_as_many_servers_as_workers_move_as_little_as_a_large_ring() -> None:
    assert textbook_all_reduce_seconds("parameter servers", 8, 1e9, 0.0, 1e9, servers=8) == pytest.approx(2.0)
    assert textbook_all_reduce_seconds("parameter servers", 8, 1e9, 0.0, 1e9, servers=2) == pytest.approx(8.0)


@pytest.mark.parametrize(("ranks", "levels"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_tree_has_as_many_levels_as_doublings_are_needed(ranks: int, levels: int) -> None:
    assert textbook_all_reduce_seconds("tree", ranks, 0, 1.0, 1.0) == 2 * levels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "butterfly"}, "'butterfly' is not one of 'ring'"),
        ({"ranks": 0}, "ranks: 0"),
        ({"ranks": 2.5}, "ranks: 2.5"),
        ({"payload_bytes": -1}, "payload_bytes: -1"),
        ({"latency_seconds": float("nan")}, "latency_seconds: nan"),
        ({"bytes_per_second": 0}, "bytes_per_second: 0"),
        ({"servers": 0}, "servers: 0"),
    ],
)
def test_impossible_arguments_are_named(change: dict, words: str) -> None:
    given = {
        "algorithm": "ring",
        "ranks": 4,
        "payload_bytes": 1.0,
        "latency_seconds": 0.0,
        "bytes_per_second": 1.0,
        "servers": 1,
    }
    with pytest.raises(UserError, match=words):
        textbook_all_reduce_seconds(**(given | change))
