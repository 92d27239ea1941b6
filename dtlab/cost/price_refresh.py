"""Prices from AWS's own price list, into the user's price file (lesson 14).

The API `pricing:GetProducts` answers in us-east-1 for every region and needs no instance of yours, only
credentials with that right. SageMaker and EC2 are asked apart: the two prices differ by a factor of 1.15 to
1.40. Spot prices are not in the price list.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dtlab.cost import aws
from dtlab.cost.catalogue import instance
from dtlab.cost.instance import Service
from dtlab.cost.price_file import PriceRow
from dtlab.cost.prices import Price
from dtlab.errors import UserError

API_REGION = "us-east-1"
_CODES = {"sagemaker": "AmazonSageMaker", "ec2": "AmazonEC2"}


def fetch_prices(
    names: Sequence[str],
    regions: Sequence[str],
    *,
    services: Sequence[Service] = ("sagemaker", "ec2"),
    pricing: Any = None,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[list[PriceRow], list[str]]:
    """On-demand prices of machine types in regions; also what the price list does not have, one line each.

    Args:
        names: types of the catalogue, with or without "ml.".
        pricing: a boto3 client of "pricing"; made here if not given.

    Raises:
        UserError: an unknown type, boto3 missing, or a call that failed.
    """
    for service in services:
        if service not in _CODES:
            raise UserError(f"service = {service!r}: use 'sagemaker' or 'ec2'")
    for region in regions:
        if not region or region != region.strip().lower():
            raise UserError(f"region = {region!r}: give a region's code, for example eu-west-1")
    wanted = [instance(name) for name in names]
    made = aws.client("pricing", API_REGION) if pricing is None else pricing
    rows, missing = [], []
    for found in wanted:
        for service in services:
            if service == "sagemaker" and not found.on_sagemaker:
                continue
            for region in regions:
                price = _price(made, service, found.name, region)
                label = f"{found.name}, {service}, {region}"
                progress(f"{label}: {'no price' if price is None else price.line()}")
                if price is None:
                    missing.append(label)
                else:
                    rows.append(PriceRow(found.name, service, price))
    return rows, missing


def _price(made: Any, service: Service, name: str, region: str) -> Price | None:
    fields = {"regionCode": region, "instanceType": name}
    if service == "ec2":
        fields |= {
            "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
        }  # fmt: skip
    else:
        fields |= {"instanceType": f"ml.{name}", "platoinstancetype": "Training"}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
    products: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        answer = aws.call(made, "get_products", ServiceCode=_CODES[service], Filters=filters, **token)
        products += [json.loads(text) for text in answer.get("PriceList", ())]
        if not answer.get("NextToken"):
            break
        token = {"NextToken": answer["NextToken"]}
    prices = {
        price: date
        for product in products
        if _is_on_demand_use(product, service)
        for price, date in _hourly(product)
    }
    if len(prices) > 1:
        raise UserError(
            f"prices of {name} in {region}: {_CODES[service]} lists several on-demand prices per hour "
            f"({', '.join(f'${price:g}' for price in sorted(prices))}); put yours into a price file"
        )
    for price, date in prices.items():
        return Price(price, "USD/h", region, date, f"AWS Price List API, {_CODES[service]}", "on-demand")
    return None


def _is_on_demand_use(product: dict[str, Any], service: Service) -> bool:
    """Training and plain use, not spot training, reservations or dedicated hosts."""
    usage = product.get("product", {}).get("attributes", {}).get("usagetype", "")
    kind = usage.rpartition(":")[0].rpartition("-")[2]  # EUW1-Train:ml.g5.xlarge, BoxUsage:g5.xlarge
    return kind == ("Train" if service == "sagemaker" else "BoxUsage")


def _hourly(product: dict[str, Any]) -> Iterable[tuple[float, str]]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0) or 0)
            if usd > 0 and dimension.get("unit") in ("Hrs", "Hours", "hours", "hrs"):
                yield usd, str(product.get("publicationDate") or term.get("effectiveDate", ""))[:10]
