"""``dtlab prices``: where prices come from, and how to bring them up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from cyclopts import App

from dtlab.errors import UserError

app = App(name="prices", help="Which prices are in use; bring them up to date from AWS.")


@app.command
def show() -> int:
    """Say which price file is in use, and how old its figures are."""
    from dtlab.cost import price_file

    path = price_file.active_path()
    if path is None:
        print(
            f"prices of the package; no price file (dtlab prices refresh writes {price_file.default_path()})"
        )
        return 0
    rows = price_file.read_price_file(path)
    print(f"{path}: {len(rows)} prices, which go before those of the package")
    for row in rows:
        print(f"  {row.service:<9}  {row.name:<20}  {row.price.line()}")
    return 0


@app.command
def refresh(
    *instances: str,
    region: tuple[str, ...] = ("us-east-1",),
    service: Literal["both", "sagemaker", "ec2"] = "both",
    output: Path | None = None,
) -> int:
    """Ask AWS's price list and write a price file that goes before the package's figures.

    Needs boto3 and credentials with the right pricing:GetProducts; starts nothing and costs nothing.

    Parameters
    ----------
    instances
        Machine types; by default every type of the catalogue that has a GPU and is still sold.
    region
        Regions, for example --region us-east-1 --region eu-west-1.
    service
        Whose prices: SageMaker training, EC2 on demand, or both.
    output
        File to write; rows that it has and AWS was not asked for are kept.
    """
    from dtlab.cost import catalogue, price_file
    from dtlab.cost.price_refresh import fetch_prices

    path = output or price_file.default_path()
    old = price_file.read_price_file(path) if path.is_file() else ()
    names = instances or tuple(
        found.name for found in catalogue.instances(include_retired=False) if found.gpus
    )
    rows, missing = fetch_prices(
        names,
        region,
        services=("sagemaker", "ec2") if service == "both" else (service,),
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if not rows:
        raise UserError(f"{', '.join(missing[:3])}: AWS lists no price; check the type and the region")
    price_file.write_price_file(path, price_file.merged(old, rows))
    print(f"{path}: {len(rows)} prices written" + (f", {len(missing)} not listed" if missing else ""))
    return 0
