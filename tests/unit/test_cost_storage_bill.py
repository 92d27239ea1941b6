"""Data has a bill of its own: kept, asked for, and sent away."""

import pytest

from dtlab.cost.storage_bill import egress_usd, requests_usd, storage_usd, training_volume_price
from dtlab.errors import UserError


def test_gp3_against_io1_depends_on_the_iops_that_io1_is_given():
    gp3 = storage_usd("gp3", 500)
    assert gp3 == pytest.approx(40.0)
    assert 1 - gp3 / storage_usd("io1", 500, iops=100) == pytest.approx(0.42, abs=0.005)
    assert 1 - gp3 / storage_usd("io1", 500, iops=3000) == pytest.approx(0.84, abs=0.005)


def test_gp3_has_3000_iops_and_125_mb_per_second_in_its_price():
    assert storage_usd("gp3", 500, iops=3000, mb_per_second=125) == pytest.approx(40.0)
    assert storage_usd("gp3", 500, iops=4000) == pytest.approx(45.0)
    assert storage_usd("gp3", 500, mb_per_second=225) == pytest.approx(44.0)


def test_volume_is_paid_by_the_hour_that_it_exists():
    assert storage_usd("gp3", 500, hours=73) == pytest.approx(4.0)
    assert storage_usd("s3", 1000) == pytest.approx(23.0)
    assert storage_usd("fsx-125", 1200) == pytest.approx(174.0)
    assert storage_usd("gp3", 0) == 0.0


def test_internet_egress_is_tiered_and_another_region_is_cheaper():
    tib = 1024
    assert egress_usd(10 * tib) == pytest.approx(921.60)
    assert egress_usd(50 * tib) == pytest.approx(921.60 + 3481.60)
    assert egress_usd(1 * tib, to="region") == pytest.approx(20.48)
    assert egress_usd(1 * tib, to="same region") == 0.0
    with pytest.raises(UserError, match="known in eu-west-1, us-east-2"):
        egress_usd(1 * tib, to="zone")
    assert egress_usd(1 * tib, to="zone", region="us-east-2") == pytest.approx(20.48)


def test_many_small_files_cost_more_to_ask_for_than_to_keep():
    assert requests_usd(puts=1_000_000) == pytest.approx(5.0)
    assert requests_usd(gets=1_000_000) == pytest.approx(0.4)
    kept = storage_usd("s3", 1_000_000 * 20_000 / 2**30)
    assert requests_usd(puts=1_000_000) > 10 * kept


def test_types_with_their_own_disks_are_given_no_volume():
    assert training_volume_price("ml.g5.12xlarge") is None
    price = training_volume_price("ml.p3.8xlarge")
    assert price is not None
    assert (price.kind, price.usd) == ("estimate", 0.10)
    there = training_volume_price("ml.p3.8xlarge", "eu-west-1")
    assert there is not None
    assert (there.kind, there.usd) == ("on-demand", 0.154)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: storage_usd("gp4", 1), "volume='gp4'"),
        (lambda: storage_usd("gp3", -1), "gib=-1"),
        (lambda: storage_usd("gp3", float("nan")), "gib=nan"),
        (lambda: storage_usd("gp3", 1, hours=float("inf")), "hours=inf"),
        (lambda: storage_usd("io1", 1), "iops is needed"),
        (lambda: storage_usd("io2", 1, iops=64_000), "iops=64000"),
        (lambda: storage_usd("gp2", 1, iops=100), "iops=100"),
        (lambda: storage_usd("io1", 1, iops=100, mb_per_second=500), "mb_per_second=500"),
        (lambda: storage_usd("fsx-125", 100), "gib=100"),
        (lambda: storage_usd("gp3", 1, region="mars-1"), "region='mars-1'"),
        (lambda: egress_usd(1, to="moon"), "to='moon'"),
        (lambda: egress_usd(1, region="ap-south-1"), "region='ap-south-1'"),
        (lambda: requests_usd(puts=-1), "puts=-1"),
    ],
)
def test_bad_values_are_named(call, said):
    with pytest.raises(UserError) as error:
        call()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
