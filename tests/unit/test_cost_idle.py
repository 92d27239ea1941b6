"""Idle machines cost what busy ones do, and a warm pool pays only when the next job comes soon."""

import pytest

from dtlab.cost.idle import idle_usd, keep_warm
from dtlab.errors import UserError


def test_a_forgotten_weekend_on_two_hosts():
    assert idle_usd("ml.g4dn.12xlarge", 62, count=2) == pytest.approx(62 * 2 * 4.89)
    assert idle_usd("g5.xlarge", 10, kind="ec2") == pytest.approx(10.06)


def test_warm_pool_saves_money_when_the_gap_is_shorter_than_a_start():
    soon = keep_warm("ml.g5.12xlarge", gap_seconds=60, start_seconds=300)
    assert soon.usd == pytest.approx(7.09 * (60 - 300) / 3600)
    assert soon.usd_per_hour_saved < 0
    later = keep_warm("ml.g5.12xlarge", gap_seconds=1800, start_seconds=300)
    assert later.usd == pytest.approx(7.09 * 1500 / 3600)
    assert later.usd_per_hour_saved == pytest.approx(7.09 * 5)


def test_gap_beyond_the_keep_alive_pays_for_both():
    missed = keep_warm("ml.g5.12xlarge", gap_seconds=7200, start_seconds=300, keep_alive_seconds=3600)
    assert missed.idle_usd == pytest.approx(7.09)
    assert (missed.seconds_saved, missed.usd_per_hour_saved) == (0.0, float("inf"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gap_seconds": -1}, "gap_seconds=-1"),
        ({"start_seconds": float("nan")}, "start_seconds=nan"),
        ({"keep_alive_seconds": 30_000}, "keep_alive_seconds=30000"),
        ({"instance": "g5.12xlage"}, "g5.12xlarge"),
        ({"count": 0}, "count=0"),
    ],
)
def test_bad_values_are_named(change, said):
    with pytest.raises(UserError) as error:
        keep_warm(**{"instance": "g5.12xlarge", "gap_seconds": 60, "start_seconds": 60, **change})
    assert said in str(error.value)
