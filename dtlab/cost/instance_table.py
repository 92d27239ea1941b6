"""The rows of `data/instances.csv` as machine types: listed prices, and estimates by a stated rule."""

import csv
from functools import cache
from pathlib import Path

from dtlab.cost.instance import DEFAULT_REGION, Instance, Service
from dtlab.cost.prices import Kind, Price, SpotRange

DATA = Path(__file__).parent / "data"

# Retired types and what AWS sells in their place, card for card first, faster machines after it.
SUCCESSORS = {
    "p3.2xlarge": ("g5.xlarge", "g6.xlarge"),
    "p3.8xlarge": ("g5.12xlarge", "g6e.12xlarge"),
    "p3.16xlarge": ("g5.48xlarge", "g6e.48xlarge", "p4d.24xlarge"),
    "p3dn.24xlarge": ("p4d.24xlarge",),
}


@cache
def packaged_instances() -> dict[str, Instance]:
    """Every machine type of `data/instances.csv`, by EC2 name."""
    with (DATA / "instances.csv").open(newline="", encoding="utf-8") as file:
        return {row["instance_type"]: _from_row(row) for row in csv.DictReader(file)}


def _from_row(row: dict[str, str]) -> Instance:
    name = row["instance_type"]
    spot = None
    if row["ec2_spot_usd_h_median"]:
        low, middle, high = (float(row[f"ec2_spot_usd_h_{part}"]) for part in ("min", "median", "max"))
        spot = SpotRange(low, middle, high, DEFAULT_REGION, _date(row["spot_date"]), row["spot_source"])
    return Instance(
        name=name,
        gpus=int(row["gpu_count"]),
        gpu=row["gpu"],
        gpu_memory_gib=_number(row["gpu_mem_gib_each"]),
        vcpus=int(row["vcpu"]),
        memory_gib=_number(row["ram_gib"]),
        network_gbps=_number(row["network_gbps"]),
        interconnect=row["intra_node_interconnect"],
        interconnect_gb_per_second=_number(row["intra_gpu_bw_GBps_bidir_per_gpu"]),
        nvme_gb=_number(row["nvme_total_gb"]) or 0.0,
        efa=row["efa"] == "True",
        status=row["status"].lower() if row["status"] == "RETIRED" else row["status"],
        on_sagemaker=row["in_sagemaker_training_enum"] == "True",
        successors=SUCCESSORS.get(name, ()),
        prices=tuple(_prices(row)),
        spot=spot,
        note=row["notes"],
    )


def _date(text: str) -> str:
    return text.partition(" (")[0]


def _prices(row: dict[str, str]) -> list[tuple[Service, Price]]:
    """Listed prices; then an estimate for us-east-1 where it has none: EC2 x the ratio of that type's family.

    The ratio of SageMaker's price to EC2's was found constant in every row that has both.
    """
    found: list[tuple[Service, Price]] = []
    kind: Kind = "retired" if row["status"] == "RETIRED" else "on-demand"
    ec2 = _number(row["ec2_ondemand_usd_h_us_east_1"])
    ec2_date = _date(row["ec2_price_date"])
    if ec2 is not None:
        found.append(("ec2", Price(ec2, "USD/h", DEFAULT_REGION, ec2_date, row["ec2_price_source"], kind)))
    listed = _number(row["sagemaker_training_usd_h"])
    region = row["sagemaker_price_region"]
    if listed is not None:
        date = row["sagemaker_price_date"]
        found.append(("sagemaker", Price(listed, "USD/h", region, date, row["sagemaker_price_source"], kind)))
    if region not in (DEFAULT_REGION, "unstated") and ec2 is not None:
        ratio = _number(row["sagemaker_over_ec2_ratio"])
        estimate = _number(row["sagemaker_rule_estimate_usd_h"])
        if estimate is not None and ratio is None:
            ratio = estimate / ec2
        if ratio is not None:
            ratio = round(ratio, 2)
            note = f"EC2 x {ratio:g}"
            price = Price(
                round(ec2 * ratio, 6), "USD/h", DEFAULT_REGION, ec2_date, row["ec2_price_source"], "estimate",
                note=note,
            )  # fmt: skip
            found.append(("sagemaker", price))
    return found


def _number(text: str) -> float | None:
    return float(text) if text else None
