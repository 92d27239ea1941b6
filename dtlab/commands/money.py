"""``dtlab cost`` and ``dtlab instances``: prices with their region, date and kind."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Literal

from cyclopts import App

from dtlab.cost import billing, catalogue
from dtlab.cost.price_file import prices_from
from dtlab.errors import UserError

app = App(name="cost", help="Price of a run: instance, hours, how many; fit: what your own runs tell.")
app.command("dtlab.commands.fit:fit", name="fit", help="Fit a step's time to runs; predict other ranks.")


@app.default
def cost(
    instance: str,
    /,
    *,
    hours: float = 1.0,
    count: int = 1,
    kind: Literal["sagemaker", "ec2", "spot"] = "sagemaker",
    region: str = "us-east-1",
    prices: Path | None = None,
    json: bool = False,
) -> None:
    """What a run costs: whole instances, billed by the second.

    Parameters
    ----------
    instance
        Instance type, with or without ml., for example ml.g5.12xlarge.
    hours
        How long the run takes.
    count
        How many instances.
    kind
        Which price: SageMaker training, EC2 on demand, or an estimate of EC2 spot.
    region
        AWS region.
    prices
        A price file of your own, whose figures go before the package's.
    json
        Print one JSON object instead of a line.
    """
    if not 0 <= hours < float("inf"):
        raise UserError(f"hours = {hours}: give 0 or more")
    if hours * 3600 > billing.MOST_SECONDS:
        raise UserError(f"hours = {hours}: is more than a thousand years; give the hours of one run")
    with prices_from(prices):
        bill = billing.cost(instance, hours * 3600, count=count, kind=kind, region=region)
    if not json:
        print(bill.line())
        return
    price = {name: getattr(bill.price, name) for name in ("usd", "unit", "region", "date", "source", "kind")}
    print(
        json_module.dumps(
            {"usd": round(bill.usd, 6), "billed_seconds": bill.billed_seconds, "count": count, "price": price}
        )
    )


def instances(
    *, gpus: int | None = None, region: str = "us-east-1", prices: Path | None = None, json: bool = False
) -> None:
    """List the known instances with the SageMaker training price of each, and what the price rests on.

    Parameters
    ----------
    gpus
        Only machines with this many cards.
    region
        AWS region.
    prices
        A price file of your own, whose figures go before the package's.
    json
        Print one JSON array instead of a table.
    """
    with prices_from(prices):
        catalogue.check_region(region)
        rows = [_row(found, region) for found in catalogue.instances(gpus=gpus)]
    if not rows:
        raise UserError(f"gpus = {gpus}: no instance has that many; see dtlab instances")
    if json:
        names = ("instance", "gpus", "memory_per_gpu", "price")
        print(json_module.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(row[column].ljust(widths[column]) for column in range(3)) + "  " + row[3])


def _row(found: catalogue.Instance, region: str) -> tuple[str, str, str, str]:
    try:
        price = found.price("sagemaker", region).line()
    except UserError:
        price = "no SageMaker price known"
    memory = f"{found.gpu_memory_gib:g} GiB" if found.gpu_memory_gib else "-"
    name = found.sagemaker_name if found.on_sagemaker else found.name
    return name, f"{found.gpus} x {found.gpu}" if found.gpus else "-", memory, price
