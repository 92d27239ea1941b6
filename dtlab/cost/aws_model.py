"""Is a request one that the service would take? Asked of botocore's own model, offline (lessons 14, 15).

botocore checks names, kinds and least lengths before it sends. It knows more than it checks: the lists of
allowed words (225 instance types for training), largest lengths and patterns. ``problems`` checks all of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from dtlab.errors import UserError

__all__ = ["MISSING", "output_shape", "problems"]

MISSING = "boto3 is not installed; pip install 'dtlab[sagemaker]'"


def problems(
    request: Mapping[str, Any], operation: str = "CreateTrainingJob", service: str = "sagemaker"
) -> list[str]:
    """What is wrong with a request, a line each; [] when botocore's model finds nothing.

    Raises:
        UserError: boto3 is not installed.

    >>> problems({"TrainingJobName": "demo"}, "StopTrainingJob")
    []
    >>> problems({"TrainingJobName": "-"}, "StopTrainingJob")  # doctest: +ELLIPSIS
    ["TrainingJobName = '-': does not have the form ..."]
    """
    shape = _model(service).operation_model(operation).input_shape
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(request, shape)
    found = [" ".join(line.split()) for line in report.generate_report().splitlines() if line]
    return found + list(_beyond(request, shape, ""))


def output_shape(operation: str, service: str = "sagemaker") -> Any:
    """What an operation returns, as botocore's shape.

    Raises:
        UserError: boto3 is not installed.

    >>> output_shape("DescribeTrainingJob").members["ModelArtifacts"].type_name
    'structure'
    """
    return _model(service).operation_model(operation).output_shape


@cache
def _model(service: str) -> Any:
    try:
        from botocore.loaders import Loader
        from botocore.model import ServiceModel
    except ImportError:
        raise UserError(f"{service}: {MISSING}") from None
    return ServiceModel(Loader().load_service_model(service, "service-2"))


def _beyond(value: Any, shape: Any, path: str) -> Iterator[str]:
    """What ``ParamValidator`` passes: words, largest sizes, patterns."""
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure" and isinstance(value, Mapping):
        for name, inner in value.items():
            if name in shape.members:
                yield from _beyond(inner, shape.members[name], f"{path}.{name}" if path else name)
        return
    if kind == "list" and isinstance(value, list):
        yield from _size(len(value), limits, path, "entries")
        for number, inner in enumerate(value):
            yield from _beyond(inner, shape.member, f"{path}[{number}]")
        return
    if kind == "map" and isinstance(value, Mapping):
        yield from _size(len(value), limits, path, "entries")
        for name, inner in value.items():
            yield from _beyond(name, shape.key, f"{path} key")
            yield from _beyond(inner, shape.value, f"{path}.{name}")
        return
    if kind == "string" and isinstance(value, str):
        yield from _size(len(value), limits, path, "characters")
        yield from _word(value, shape, path)
    elif kind in ("integer", "long") and isinstance(value, int):
        yield from _size(value, limits, path, "")


def _word(value: str, shape: Any, path: str) -> Iterator[str]:
    words, pattern = shape.enum, shape.metadata.get("pattern")
    if words and value not in words:
        near = difflib.get_close_matches(value, words, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(words[:12])}"
        yield f"{path} = {value!r}: unknown to the service; {hint}"
    elif pattern and not words:
        try:
            fits = re.fullmatch(pattern, value, re.DOTALL) is not None
        except re.error:  # Java's \p{L}, which Python does not have
            return
        if not fits:
            yield f"{path} = {value!r}: does not have the form {pattern}"


def _size(size: int, limits: Mapping[str, Any], path: str, unit: str) -> Iterator[str]:
    most = limits.get("max")
    if most is not None and size > most:
        yield f"{path}: {size:,} {unit}".rstrip() + f", the service takes {most:,}"
