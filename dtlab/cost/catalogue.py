"""Instances and storage with their prices: what is known, from where and of when; unknown is an error.

The figures lie in `data/instances.csv` and `data/storage_prices.csv`. A blank there means that no source was
found: asking for it raises `UserError` with what is known instead; it never becomes zero or a default.
Used for the bill of every lesson; lesson 14 works with the whole table.
"""

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from dtlab.cost.prices import Kind, Price, SpotRange
from dtlab.cost.units import GB, GIB
from dtlab.errors import UserError

DATA = Path(__file__).parent / "data"
DEFAULT_REGION = "us-east-1"
Service = Literal["sagemaker", "ec2"]

# Retired types and what AWS sells in their place, card for card first, faster machines after it.
SUCCESSORS = {
    "p3.2xlarge": ("g5.xlarge", "g6.xlarge"),
    "p3.8xlarge": ("g5.12xlarge", "g6e.12xlarge"),
    "p3.16xlarge": ("g5.48xlarge", "g6e.48xlarge", "p4d.24xlarge"),
    "p3dn.24xlarge": ("p4d.24xlarge",),
}


@dataclass(frozen=True)
class Instance:
    """A machine type. Memory is in GiB as the API reports it; `prices` has a `Price` per service and region.

    >>> instance("ml.g5.12xlarge").gpus
    4
    >>> instance("g5.12xlarge").price("sagemaker").usd
    7.09
    """

    name: str
    gpus: int = 0
    gpu: str = ""
    gpu_memory_gib: float | None = None
    vcpus: int = 0
    memory_gib: float | None = None
    network_gbps: float | None = None
    interconnect: str = ""
    interconnect_gb_per_second: float | None = None
    nvme_gb: float = 0.0
    efa: bool = False
    status: str = "current"
    on_sagemaker: bool = True
    successors: tuple[str, ...] = ()
    prices: tuple[tuple[Service, Price], ...] = ()
    spot: SpotRange | None = None
    note: str = ""

    @property
    def sagemaker_name(self) -> str:
        return f"ml.{self.name}"

    @property
    def retired(self) -> bool:
        return self.status.lower() == "retired"

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory of one card in bytes; an error where no source states it."""
        if self.gpu_memory_gib is None:
            raise UserError(f"instance={self.name!r} has no GPU, or no source for the memory of its cards")
        return round(self.gpu_memory_gib * GIB)

    @property
    def gpu_memory_gb(self) -> float:
        """Memory of one card in GB (1e9 bytes)."""
        return self.gpu_memory_bytes / GB

    def price(self, service: Service = "sagemaker", region: str = DEFAULT_REGION) -> Price:
        """The hourly price of the whole machine, all its cards included.

        A source that does not state its region is offered for us-east-1 and keeps "unstated" as its region.

        Raises:
            UserError: no price is known for this service and region; the message says where one is.
        """
        known = [price for offered, price in self.prices if offered == service]
        for price in known:
            if price.region == region or (price.region == "unstated" and region == DEFAULT_REGION):
                return price
        label = {"sagemaker": "SageMaker", "ec2": "EC2"}.get(service)
        if label is None:
            raise UserError(f"service={service!r} is unknown: use 'sagemaker' or 'ec2'")
        if service == "sagemaker" and not self.on_sagemaker:
            raise UserError(
                f"instance={self.name!r} is not a SageMaker type: use kind='ec2', or another type"
            )
        if known:
            regions = sorted({price.region for price in known})
            raise UserError(
                f"region={region!r} has no {label} price for {self.name}: known in {', '.join(regions)}"
                f"{_did_you_mean(region, regions)}"
            )
        others = sorted({offered for offered, _ in self.prices} - {service})
        hint = f"known for {', '.join(others)}" if others else f"status: {self.status}"
        raise UserError(
            f"instance={self.name!r} has no {label} price in any source ({hint}): name another type"
        )


def instance(name: str) -> Instance:
    """The machine type of that name, with or without the "ml." of SageMaker.

    Raises:
        UserError: unknown; the message offers the nearest names.
    """
    if not isinstance(name, str):
        raise UserError(f"instance={name!r} is not a name: give one such as 'ml.g5.12xlarge'")
    wanted = name.strip().lower()
    bare = wanted.removeprefix("ml.")
    found = _instances().get(bare)
    if found is None:
        with_card = [other.name for other in instances() if other.gpu and bare == other.gpu.lower()]
        near = f": types with {bare.upper()} are {', '.join(with_card)}"
        raise UserError(
            f"instance={name!r} is unknown{near if with_card else _nearest(bare, list(_instances()))}"
        )
    if wanted.startswith("ml.") and not found.on_sagemaker:
        raise UserError(f"instance={name!r} is not a SageMaker type: {found.name} exists on EC2 only")
    return found


def instances(*, gpus: int | None = None, include_retired: bool = True) -> tuple[Instance, ...]:
    """All machine types, or those with a number of cards.

    >>> [i.name for i in instances(gpus=2)]
    ['g7e.12xlarge']
    """
    return tuple(
        found
        for found in _instances().values()
        if (gpus is None or found.gpus == gpus) and (include_retired or not found.retired)
    )


def storage(item: str, region: str = DEFAULT_REGION) -> Price:
    """The price of a kind of storage or of an operation on it.

    >>> storage("EBS gp3 storage").line()
    '$0.08/GB-month, on-demand, us-east-1, undated golden file'

    Raises:
        UserError: the item is unknown, or no price is known for that region.
    """
    rows = [row for row in _storage_rows() if row["item"].lower() == str(item).strip().lower()]
    if not rows:
        raise UserError(f"storage={item!r} is unknown{_nearest(str(item), list(storage_items()))}")
    for row in rows:
        stated = row["region"]
        matches = stated.partition(" (")[0] == region or stated == "same region"
        if (matches or (stated == "unstated" and region == DEFAULT_REGION)) and row["usd"]:
            vague = "~" in row["notes"] or "approx" in stated
            return Price(
                float(row["usd"]), row["unit"], stated, _date(row["date"]), row["source"],
                "estimate" if vague else "on-demand",
            )  # fmt: skip
    regions = sorted(
        {row["region"] for row in _storage_rows() if row["usd"] and _same_thing(row["item"], rows[0])}
    )
    hint = f"known in {', '.join(regions)}" if regions else "no source was found"
    raise UserError(f"region={region!r} has no price for {rows[0]['item']}: {hint}")


def storage_items() -> tuple[str, ...]:
    """The names that `storage` understands."""
    return tuple(dict.fromkeys(row["item"] for row in _storage_rows()))


def _same_thing(item: str, row: dict[str, str]) -> bool:
    """True for the same item under a longer or shorter name, e.g. with the volume type in brackets."""
    return item.partition(" (")[0] == row["item"].partition(" (")[0]


def _nearest(name: str, known: list[str]) -> str:
    """`: did you mean ...` with close names, or with names of the same family, or with how to list them."""
    lower = {entry.lower(): entry for entry in known}
    wanted = name.strip().lower()
    near = difflib.get_close_matches(wanted, list(lower), n=3, cutoff=0.6)
    if not near:
        words = set(wanted.replace(".", " ").split())
        near = [entry for entry in lower if words & set(entry.replace(".", " ").split())][:3]
    if near:
        return f": did you mean {', '.join(lower[entry] for entry in near)}?"
    return f": known are {', '.join(known[:6])} and {len(known) - 6} more"


def _did_you_mean(region: str, regions: list[str]) -> str:
    near = difflib.get_close_matches(region, regions, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _number(text: str) -> float | None:
    return float(text) if text else None


@cache
def _storage_rows() -> tuple[dict[str, str], ...]:
    with (DATA / "storage_prices.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@cache
def _instances() -> dict[str, Instance]:
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
