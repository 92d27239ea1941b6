"""Prices are found with their source, and what is not known is an error, never a number."""

import subprocess
import sys

import pytest

from dtlab.cost import catalogue
from dtlab.cost.billing import cost
from dtlab.cost.catalogue import Instance, instance, instances, storage, storage_items
from dtlab.cost.prices import Price, SpotRange, with_machine
from dtlab.cost.units import GB, GIB, describe_bytes, gb, gib
from dtlab.errors import UserError


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_every_price_carries_unit_region_date_source_and_kind() -> None:
    prices = [price for found in instances() for _, price in found.prices]
    assert len(prices) > 60
    for price in prices:
        assert price.usd > 0
        assert price.unit == "USD/h"
        assert price.region
        assert price.date
        assert price.source
        assert price.kind in ("on-demand", "estimate", "retired")


def test_listed_price_with_and_without_the_sagemaker_prefix() -> None:
    assert instance("ml.g5.12xlarge") is instance("g5.12xlarge")
    price = instance("ml.g5.12xlarge").price("sagemaker")
    assert (price.usd, price.region, price.date, price.kind) == (7.09, "us-east-1", "2026-08", "on-demand")
    assert instance("g5.12xlarge").price("ec2").usd == 5.672


def test_price_listed_elsewhere_becomes_a_marked_estimate() -> None:
    here = instance("ml.p4d.24xlarge").price("sagemaker", "us-east-1")
    there = instance("ml.p4d.24xlarge").price("sagemaker", "us-west-2")
    assert (there.usd, there.kind) == (25.251286, "on-demand")
    assert here.kind == "estimate"
    assert here.usd == pytest.approx(21.957642 * 1.15, abs=1e-5)
    assert "estimate" in here.line()
    assert "EC2 x 1.15" in here.line()


def test_price_with_no_listed_one_anywhere_is_marked_too() -> None:
    assert instance("p5en.48xlarge").price().kind == "estimate"
    assert instance("p5en.48xlarge").price().usd == pytest.approx(72.7904)


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("ml.g5.12xlage", "g5.12xlarge"),
        ("p3.4xlarge", "p3.2xlarge"),
        ("H100", "p5.48xlarge"),
        ("nonsense", "known are"),
    ],
)
def test_unknown_type_names_itself_and_what_is_near(name: str, offered: str) -> None:
    with pytest.raises(UserError) as error:
        instance(name)
    assert repr(name) in one_line(error)
    assert offered in one_line(error)


def test_unknown_region_and_a_known_one_without_the_type() -> None:
    with pytest.raises(UserError) as error:
        cost("ml.g5.12xlarge", 3600, region="us-esat-1")
    assert "us-esat-1" in one_line(error)
    assert "did you mean us-east-1?" in one_line(error)
    with pytest.raises(UserError) as error:
        cost("ml.g5.12xlarge", 3600, region="us-west-2")
    assert "us-west-2" in one_line(error)
    assert "g5.12xlarge" in one_line(error)
    with pytest.raises(UserError, match="us-east"):
        storage("EBS gp3 storage", region="us-east")


def test_type_without_any_price_is_an_error_for_every_kind() -> None:
    for kind in ("sagemaker", "ec2", "spot"):
        with pytest.raises(UserError, match=r"p5e\.48xlarge"):
            cost("p5e.48xlarge", 3600, kind=kind)  # type: ignore[arg-type]


def test_type_that_sagemaker_does_not_offer() -> None:
    with pytest.raises(UserError, match="not a SageMaker type"):
        instance("ml.g4dn.metal")
    with pytest.raises(UserError, match="not a SageMaker type"):
        cost("g4dn.metal", 3600)
    assert cost("g4dn.metal", 3600, kind="ec2").usd == pytest.approx(7.824)


def test_retired_types_are_known_and_lead_to_their_successors() -> None:
    for name in ("p3.2xlarge", "p3.8xlarge", "p3.16xlarge"):
        found = instance(f"ml.{name}")
        assert found.retired
        assert found.price().kind == "retired"
        assert found.successors
        for successor in found.successors:
            assert not instance(successor).retired
            assert instance(successor).gpus >= found.gpus
        assert "no longer sold" in cost(name, 3600).line()
    assert not any(found.retired for found in instances(include_retired=False))


def test_v100_of_the_p3_sizes_has_16_gib_and_only_p3dn_has_32() -> None:
    assert [instance(name).gpu_memory_gib for name in ("p3.8xlarge", "p3.16xlarge", "p3dn.24xlarge")] == [
        16,
        16,
        32,
    ]


def test_memory_of_a_card_is_not_multiplied_and_carries_its_unit() -> None:
    card = instance("g5.48xlarge")
    assert card.gpus == 8
    assert card.gpu_memory_bytes == round(22.4 * GIB)
    assert card.gpu_memory_gb == pytest.approx(22.4 * GIB / GB)
    assert gb(8 * 24e9) == "192.0 GB"
    assert gib(8 * 24e9) == "178.8 GiB"
    assert describe_bytes(24e9) == "24.0 GB = 22.4 GiB"
    assert round(24e9 / GIB, 2) == 22.35
    with pytest.raises(UserError, match="no GPU"):
        _ = instance("m5.xlarge").gpu_memory_bytes


def test_spot_states_minimum_median_and_maximum() -> None:
    zones = SpotRange.of_zones([0.3278, 0.2377, 0.2810])
    assert (zones.minimum, zones.median, zones.maximum) == (0.2377, 0.2810, 0.3278)
    line = zones.price().line()
    assert "median of zones 0.2377 to 0.3278" in line
    assert "spot estimate" in line
    with pytest.raises(UserError):
        SpotRange.of_zones([])
    spot = instance("p5.48xlarge").spot
    assert spot is not None
    assert spot.minimum < spot.median < spot.maximum


def test_gpu_price_without_its_machine_says_so_and_is_not_billed() -> None:
    card = Price(0.72, "USD/h", "us-east1", "2026-07", "a list", "on-demand", covers="gpu")
    machine = Price(0.5684, "USD/h", "us-east1", "2026-07", "a list", "on-demand")
    assert "without the machine" in card.line()
    whole = with_machine(card, machine)
    assert whole.usd == pytest.approx(1.2884)
    assert "without the machine" not in whole.line()
    bare = Instance("card", gpus=1, prices=(("ec2", card),))
    with pytest.raises(UserError, match="GPU only"):
        cost(bare, 3600, kind="ec2", region="us-east1")
    with pytest.raises(UserError, match="first"):
        with_machine(machine, card)


def test_storage_items_are_found_or_refused() -> None:
    assert storage("ebs GP3 storage").usd == 0.08
    assert storage("SageMaker Training Job ML storage (gp2)", "eu-west-1").usd == 0.154
    assert storage("FSx for Lustre SCRATCH_2").kind == "estimate"
    with pytest.raises(UserError, match="EBS gp3 storage"):
        storage("gp3")
    with pytest.raises(UserError, match="eu-west-1"):
        storage("SageMaker Training Job ML storage")
    with pytest.raises(UserError, match="no source was found"):
        storage("EBS io2 IOPS tiers above 32k / io2 BX")
    free = [item for item in storage_items() if "transfer" in item]
    assert [storage(item).usd for item in free] == [0], "this one is free by its source, not by default"


def test_gp3_against_io1_for_500_gb() -> None:
    def io1(iops: int) -> float:
        return 500 * storage("EBS io1 storage").usd + iops * storage("EBS io1 provisioned IOPS").usd

    gp3 = 500 * storage("EBS gp3 storage").usd
    assert 1 - gp3 / io1(100) == pytest.approx(0.42, abs=0.005)
    assert 1 - gp3 / io1(3000) == pytest.approx(0.84, abs=0.005)


def test_tables_are_part_of_the_package() -> None:
    prices = {"instances.csv", "storage_prices.csv"}
    speeds = {"calibrations.csv", "gpus.csv", "links.csv"}
    assert {path.name for path in catalogue.DATA.glob("*.csv")} == prices | speeds


def test_a_price_is_found_in_a_fresh_python_without_torch() -> None:
    code = (
        "import time; start = time.process_time()\n"  # a busy machine does not count
        "from dtlab.cost.billing import cost; cost('ml.g5.12xlarge', 60).line()\n"
        "seconds = time.process_time() - start\n"
        "import sys; print(seconds, 'torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.split()
    assert heavy == "False"
    assert float(seconds) <= 0.2


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), -1.0, 0.0, True, "3"])
def test_what_is_no_price_is_refused(usd):
    with pytest.raises(UserError, match="usd = "):
        Price(usd, "USD/h", "us-east-1", "2026-11", "a list", "on-demand")


def test_transfer_within_a_region_is_free():
    assert Price(0.0, "USD/GB", "us-east-1", "", "a list", "on-demand").usd == 0


@pytest.mark.parametrize("zones", [[0.2, 0.0], [float("nan")], [0.3, -0.1], [float("inf")]])
def test_zone_without_a_price_does_not_count_as_free(zones):
    with pytest.raises(UserError, match="leave out zones without one"):
        SpotRange.of_zones(zones)
