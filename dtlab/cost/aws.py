"""boto3 and botocore, loaded only when asked for, and requests held against AWS's own model (lesson 14).

`checked` sends nothing: it holds a request against the service model that botocore ships, so that
a wrong field is found without an account and without a network.
"""

import importlib
import sys
from typing import Any

from dtlab.errors import UserError

MISSING = "boto3 is not installed; pip install 'dtlab[sagemaker]'"


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
        raise UserError(f"{operation}: {error}; {hint}") from None


def checked(service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    """The request, if botocore's model of the service accepts it: names, types, lengths, patterns of values.

    Raises:
        UserError: the request is wrong, with every fault named; or botocore is not installed.
    """
    loaders = _package("botocore.loaders", f"{service}.{operation}")
    model = importlib.import_module("botocore.model").ServiceModel(
        loaders.Loader().load_service_model(service, "service-2")
    )
    shape = model.operation_model(operation).input_shape
    report = importlib.import_module("botocore.validate").ParamValidator().validate(request, shape)
    faults = [report.generate_report()] if report.has_errors() else []
    faults += _values(request, shape, operation)
    if faults:
        raise UserError(f"{service}.{operation}: {'; '.join(' '.join(fault.split()) for fault in faults)}")
    return request


def _values(value: Any, shape: Any, where: str) -> list[str]:
    """Enumerations and patterns, which botocore leaves to the server."""
    import re

    if shape.type_name == "structure" and isinstance(value, dict):
        inner = [(v, shape.members[k], f"{where}.{k}") for k, v in value.items() if k in shape.members]
    elif shape.type_name == "list" and isinstance(value, list | tuple):
        inner = [(v, shape.member, f"{where}[{n}]") for n, v in enumerate(value)]
    elif shape.type_name == "map" and isinstance(value, dict):
        inner = [(v, shape.value, f"{where}.{k}") for k, v in value.items()]
    else:
        inner = []
        allowed = getattr(shape, "enum", None)
        if allowed and value not in allowed:
            return [f"{where} = {value!r}: give one of {', '.join(allowed)}"]
        pattern = shape.metadata.get("pattern")
        if pattern and isinstance(value, str) and not _matches(re, pattern, value):
            return [f"{where} = {value!r} does not match {pattern}"]
    return [fault for v, s, w in inner for fault in _values(v, s, w)]


def _matches(re: Any, pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value, re.DOTALL) is not None
    except re.error:  # Java's dialect: leave it to the server
        return True


def _package(name: str, asker: str) -> Any:
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError:
        raise UserError(f"{asker}: {MISSING}") from None
