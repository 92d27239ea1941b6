"""AWS's price list, as botocore's Stubber plays it: what is asked, what is taken, and what is refused."""

import builtins
import json
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.stub import ANY, Stubber  # noqa: E402

from dtlab.cli import main  # noqa: E402
from dtlab.cost import aws  # noqa: E402
from dtlab.cost.price_file import prices_from, read_price_file  # noqa: E402
from dtlab.cost.price_refresh import fetch_prices  # noqa: E402
from dtlab.errors import UserError  # noqa: E402


def product(usage: str, usd: str, unit: str = "Hrs") -> str:
    return json.dumps(
        {
            "product": {"attributes": {"usagetype": usage}},
            "publicationDate": "2026-11-28T10:00:00Z",
            "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": {
                "unit": unit, "pricePerUnit": {"USD": usd}}}}}},
        }
    )  # fmt: skip


@pytest.fixture
def pricing():
    client = boto3.client(
        "pricing", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    with Stubber(client) as stubber:
        yield client, stubber


def expected(service: str, *, token: str | None = None, **fields: str) -> dict[str, Any]:
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
    request: dict[str, Any] = {"ServiceCode": service, "Filters": filters}
    return request if token is None else {**request, "NextToken": token}


SAGEMAKER = {"regionCode": "eu-west-1", "instanceType": "ml.g5.12xlarge", "platoinstancetype": "Training"}
EC2 = {
    "regionCode": "eu-west-1", "instanceType": "g5.12xlarge", "operatingSystem": "Linux", "tenancy": "Shared",
    "preInstalledSw": "NA", "capacitystatus": "Used",
}  # fmt: skip


def test_both_services_are_asked_and_spot_and_reservations_left_aside(pricing):
    client, stubber = pricing
    answer = [product("EUW1-SpotTrain:ml.g5.12xlarge", "2.1"), product("EUW1-Train:ml.g5.12xlarge", "7.909")]
    stubber.add_response("get_products", {"PriceList": answer}, expected("AmazonSageMaker", **SAGEMAKER))
    answer = [product("EUW1-UnusedBox:g5.12xlarge", "6.0"), product("EUW1-BoxUsage:g5.12xlarge", "6.327")]
    stubber.add_response("get_products", {"PriceList": answer}, expected("AmazonEC2", **EC2))
    rows, missing = fetch_prices(["ml.g5.12xlarge"], ["eu-west-1"], pricing=client)
    assert missing == []
    assert [(row.service, row.price.usd, row.price.region, row.price.date) for row in rows] == [
        ("sagemaker", 7.909, "eu-west-1", "2026-11-28"),
        ("ec2", 6.327, "eu-west-1", "2026-11-28"),
    ]
    assert rows[0].price.source == "AWS Price List API, AmazonSageMaker"
    stubber.assert_no_pending_responses()


def test_pages_are_followed_to_the_end(pricing):
    client, stubber = pricing
    first = {"PriceList": [], "NextToken": "more"}
    stubber.add_response("get_products", first, expected("AmazonSageMaker", **SAGEMAKER))
    second = {"PriceList": [product("EUW1-Train:ml.g5.12xlarge", "7.9")]}
    stubber.add_response("get_products", second, expected("AmazonSageMaker", token="more", **SAGEMAKER))
    rows, _ = fetch_prices(["g5.12xlarge"], ["eu-west-1"], services=["sagemaker"], pricing=client)
    assert rows[0].price.usd == 7.9


def test_what_aws_does_not_list_is_reported_and_never_zero(pricing):
    client, stubber = pricing
    zero = {"PriceList": [product("Train:ml.g5.12xlarge", "0.0000000000")]}
    stubber.add_response("get_products", zero, {"ServiceCode": ANY, "Filters": ANY})
    rows, missing = fetch_prices(["g5.12xlarge"], ["eu-west-1"], services=["sagemaker"], pricing=client)
    assert rows == []
    assert missing == ["g5.12xlarge, sagemaker, eu-west-1"]


def test_several_prices_are_refused_and_not_chosen_from(pricing):
    client, stubber = pricing
    two = {"PriceList": [product("Train:ml.g5.12xlarge", "7.0"), product("X-Train:ml.g5.12xlarge", "8.0")]}
    stubber.add_response("get_products", two, {"ServiceCode": ANY, "Filters": ANY})
    with pytest.raises(UserError, match=r"several on-demand prices per hour \(\$7, \$8\)"):
        fetch_prices(["g5.12xlarge"], ["eu-west-1"], services=["sagemaker"], pricing=client)


def test_type_that_sagemaker_does_not_have_is_asked_of_ec2_only(pricing):
    client, stubber = pricing
    stubber.add_response(
        "get_products", {"PriceList": [product("BoxUsage:g4dn.metal", "7.824")]},
        {"ServiceCode": "AmazonEC2", "Filters": ANY},
    )  # fmt: skip
    rows, missing = fetch_prices(["g4dn.metal"], ["us-east-1"], pricing=client)
    assert (len(rows), missing) == (1, [])


def test_refusal_of_aws_is_one_line(pricing):
    client, stubber = pricing
    stubber.add_client_error("get_products", "AccessDeniedException", "not authorized: pricing:GetProducts")
    with pytest.raises(UserError, match=r"get_products: .*AccessDenied.*rights of your AWS role"):
        fetch_prices(["g5.12xlarge"], ["us-east-1"], pricing=client)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["g5.12xlage"], "g5.12xlarge"),
        (["g5.xlarge", "--region", "US East"], "region = 'US East'"),
    ],
)
def test_bad_words_are_named_before_aws_is_asked(capsys, words, said):
    assert main(["prices", "refresh", *words]) == 2
    assert said in capsys.readouterr().err


def test_refresh_writes_a_file_that_goes_first_and_keeps_other_rows(pricing, tmp_path, monkeypatch, capsys):
    client, stubber = pricing
    monkeypatch.setattr(aws, "client", lambda service, region: client)
    path = tmp_path / "prices.csv"
    path.write_text("name,service,region,usd\ng6.xlarge,ec2,us-east-1,0.9\ng5.12xlarge,ec2,us-east-1,1\n")
    stubber.add_response(
        "get_products", {"PriceList": [product("BoxUsage:g5.12xlarge", "5.7")]},
        {"ServiceCode": ANY, "Filters": ANY},
    )  # fmt: skip
    words = ["prices", "refresh", "g5.12xlarge", "--service", "ec2", "--output", str(path)]
    assert main(words) == 0
    assert "1 prices written" in capsys.readouterr().out
    assert {row.name: row.price.usd for row in read_price_file(path)} == {
        "g6.xlarge": 0.9,
        "g5.12xlarge": 5.7,
    }
    with prices_from(path):
        assert main(["cost", "g5.12xlarge", "--kind", "ec2"]) == 0
    assert capsys.readouterr().out.startswith("$5.70 = ")


def test_without_boto3_there_is_a_line_that_says_how_to_get_it(monkeypatch, capsys):
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "boto3":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.delitem(__import__("sys").modules, "boto3")
    monkeypatch.setattr(aws.importlib, "import_module", missing)
    assert main(["prices", "refresh", "g5.xlarge"]) == 2
    assert "boto3 is not installed; pip install 'dtlab[sagemaker]'" in capsys.readouterr().err
