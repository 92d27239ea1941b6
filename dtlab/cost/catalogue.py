"""Instances and storage with their prices: what is known, from where and of when; unknown is an error.

The figures lie in `data/instances.csv` and `data/storage_prices.csv`; a price file of the user's own
(`price_file`) goes before them. A blank means that no source was found: asking for it raises `UserError` with
what is known instead; it never becomes zero or a default.
Used for the bill of every lesson; lesson 14 works with the whole table.
"""

import csv
import difflib
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from dtlab.cost.instance import DEFAULT_REGION, Instance, Service, did_you_mean
from dtlab.cost.instance_table import DATA, packaged_instances
from dtlab.cost.price_file import PriceRow, active_path, read_price_file
from dtlab.cost.prices import Price, SpotRange
from dtlab.errors import UserError

__all__ = [
    "DATA",
    "DEFAULT_REGION",
    "Instance",
    "Service",
    "check_region",
    "instance",
    "instances",
    "storage",
    "storage_items",
]


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


def check_region(region: str) -> None:
    """Refuse a region in which no price of any instance is known.

    >>> check_region("us-esat-1")
    Traceback (most recent call last):
    dtlab.errors.UserError: region='us-esat-1' has no price in the catalogue: known are us-east-1, ...
    """
    if not isinstance(region, str):
        raise UserError(f"region={region!r} is not a name: give one such as 'us-east-1'")
    everything = _instances().values()
    known = {price.region for found in everything for _, price in found.prices} - {"unstated"}
    known |= {zones.region for found in everything for zones in found.own_spots}
    if region not in known:
        raise UserError(
            f"region={region!r} has no price in the catalogue: known are {', '.join(sorted(known))}"
            f"{did_you_mean(region, sorted(known))}; dtlab prices refresh --region adds one"
        )


def storage(item: str, region: str = DEFAULT_REGION) -> Price:
    """The price of a kind of storage or of an operation on it.

    >>> storage("EBS gp3 storage").line()
    '$0.08/GB-month, on-demand, us-east-1, undated golden file'

    Raises:
        UserError: the item is unknown, or no price is known for that region.
    """
    name = str(item).strip().lower()
    own = [row.price for row in _own_rows() if row.service == "storage" and row.name.lower() == name]
    for price in own:
        if price.region == region:
            return price
    rows = [row for row in _storage_rows() if row["item"].lower() == name]
    if own and not rows:
        regions = sorted({price.region for price in own})
        raise UserError(f"region={region!r} has no price for {item}: known in {', '.join(regions)}")
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
    own = [row.name for row in _own_rows() if row.service == "storage"]
    return tuple(dict.fromkeys([*(row["item"] for row in _storage_rows()), *own]))


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


def _own_rows() -> tuple[PriceRow, ...]:
    """The rows of the price file in use, read again when it changes."""
    path = active_path()
    if path is None:
        return ()
    try:
        state = path.stat()
    except OSError:
        return read_price_file(path)  # says what is wrong with it
    return _read(path, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, _state: tuple[int, int]) -> tuple[PriceRow, ...]:
    return read_price_file(path)


def _instances() -> dict[str, Instance]:
    rows = _own_rows()
    return _with_own(rows) if rows else packaged_instances()


@lru_cache(maxsize=8)
def _with_own(rows: tuple[PriceRow, ...]) -> dict[str, Instance]:
    found = dict(packaged_instances())
    for row in rows:
        if row.service == "storage":
            continue
        known = found.get(row.name)
        if known is None and row.gpus is None:
            raise UserError(
                f"price file: instance {row.name!r} is not in the catalogue{_nearest(row.name, list(found))}"
                " For a new type fill the columns gpus, gpu, gpu_memory_gib and network_gbps"
            )
        if known is None:
            known = Instance(
                row.name, row.gpus or 0, row.gpu, row.gpu_memory_gib, network_gbps=row.network_gbps,
                on_sagemaker=False, status="from your price file",
            )  # fmt: skip
        found[row.name] = known
        if row.service == "spot":
            continue
        service: Service = "sagemaker" if row.service == "sagemaker" else "ec2"
        # The newest file's price stands first, and the first that fits is taken.
        found[row.name] = replace(
            known,
            prices=((service, row.price), *known.prices),
            on_sagemaker=known.on_sagemaker or service == "sagemaker",
        )
    for name, zones in _own_spots(rows).items():
        found[name] = replace(found[name], own_spots=zones)
    return found


def _own_spots(rows: tuple[PriceRow, ...]) -> dict[str, tuple[SpotRange, ...]]:
    """The spot rows of each type, a range over the rows of each region."""
    places: dict[str, dict[str, list[Price]]] = {}
    for row in rows:
        if row.service == "spot":
            places.setdefault(row.name, {}).setdefault(row.price.region, []).append(row.price)
    return {
        name: tuple(
            SpotRange.of_zones(
                [price.usd for price in prices],
                region=region,
                date=max(price.date for price in prices),
                source="; ".join(dict.fromkeys(price.source for price in prices)),
            )
            for region, prices in regions.items()
        )
        for name, regions in places.items()
    }


@cache
def _storage_rows() -> tuple[dict[str, str], ...]:
    with (DATA / "storage_prices.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def _date(text: str) -> str:
    return text.partition(" (")[0]
