"""boto3 and botocore, loaded only when asked for, and requests held against AWS's own model (lesson 14).

`checked` sends nothing: it holds a request against the service model that botocore ships, so that
a wrong field is found without an account and without a network.
"""

import importlib
import sys
from typing import Any

from dtlab.cost.aws_model import MISSING, problems
from dtlab.errors import UserError


def client(service: str, region: str) -> Any:
    """A boto3 client for a service of AWS in a region.

    Raises:
        UserError: boto3 is not installed, or it cannot make the client.
    """
    boto3 = _package("boto3", f"client = {service!r}")
    try:
        return boto3.client(service, region_name=region)
    except Exception as error:  # an unknown region or a broken ~/.aws/config
        raise UserError(f"region = {region!r}: boto3 makes no client for {service}: {error}") from None


def call(made: Any, operation: str, **request: Any) -> dict[str, Any]:
    """Call an operation; what AWS or the credentials refuse becomes one line.

    Raises:
        UserError: the call failed; the message holds AWS's own words.
    """
    exceptions = _package("botocore.exceptions", operation)
    try:
        return getattr(made, operation)(**request)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        hint = "set AWS credentials" if "redential" in str(error) else "see the rights of your AWS role"
        if isinstance(
            error, exceptions.HTTPClientError | exceptions.ConnectionError
        ):  # no answer: it does not connect, or waits too long
            hint = "see the network, the proxy and the region"
        raise UserError(f"{operation}: {error}; {hint}") from None


def checked(service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    """The request, if botocore's model of the service accepts it: names, types, lengths, patterns of values.

    Raises:
        UserError: the request is wrong, with every fault named; or botocore is not installed.
    """
    faults = problems(request, operation, service)
    if faults:
        raise UserError(f"{service}.{operation}: {'; '.join(faults)}")
    return request


def _package(name: str, asker: str) -> Any:
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError:
        raise UserError(f"{asker}: {MISSING}") from None
