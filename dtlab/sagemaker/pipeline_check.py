"""Is a pipeline definition one that SageMaker would take? Asked offline (lesson 16).

``CreatePipeline`` takes the definition as a text that botocore does not look into. Here its structure is held
against the form of version 2020-12-01; every ``Get`` must name a declared parameter, a variable of the
execution, or a property that the ``Describe`` call of that step returns; and the arguments of each step, with
a sample in the place of each reference, must be a request of the operation behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dtlab.cost import aws_model
from dtlab.errors import UserError

__all__ = ["checked_definition", "definition_problems", "is_age", "order"]

VERSION = "2020-12-01"
_TOP = ("Version", "Metadata", "Parameters", "PipelineExperimentConfig", "Steps")
_NAME = re.compile(r"[A-Za-z0-9\-_]{1,64}")
_AGE = re.compile(r"(?=.)(\d+[ymwd])*(T(\d+[hm])+)?", re.IGNORECASE)
_KINDS: dict[str, Any] = {"String": str, "Integer": int, "Float": (int, float), "Boolean": bool}
# Step -> the operation behind it, what SageMaker adds to its arguments, and the call that describes it.
_OPERATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Processing": ("CreateProcessingJob", {"ProcessingJobName": "sample"}, "DescribeProcessingJob"),
    "Training": ("CreateTrainingJob", {"TrainingJobName": "sample"}, "DescribeTrainingJob"),
    "RegisterModel": ("CreateModelPackage", {}, "DescribeModelPackage"),
    "Model": ("CreateModel", {"ModelName": "sample"}, "DescribeModel"),
}
_KEYS = {"Name", "Type", "Arguments", "DependsOn", "DisplayName", "Description"}
_MORE = {
    "Processing": {"RetryPolicies", "CacheConfig", "PropertyFiles"},
    "Training": {"RetryPolicies", "CacheConfig"},
    "RegisterModel": {"RetryPolicies"},
    "Model": {"RetryPolicies"},
    "Condition": set(),
    "Fail": set(),
}
_EXECUTION = {
    "CurrentDateTime", "PipelineArn", "PipelineExecutionArn", "PipelineExecutionId", "PipelineName",
    "StartDateTime",
}  # fmt: skip
_COMPARISONS = {"Equals", "GreaterThan", "GreaterThanOrEqualTo", "LessThan", "LessThanOrEqualTo"}
_PART = re.compile(r"(\w+)((?:\['[^']+'\]|\[\d+\])*)")


def is_age(text: str) -> bool:
    """Whether SageMaker reads it as how old a cached step may be: 30d, 5y, T12h, 30dT5h."""
    return _AGE.fullmatch(text) is not None


def checked_definition(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition, if nothing is wrong with it.

    Raises:
        UserError: with every fault named; or botocore is not installed.
    """
    faults = definition_problems(definition)
    if faults:
        raise UserError(f"pipeline definition: {'; '.join(faults)}")
    return definition


def definition_problems(definition: Mapping[str, Any]) -> list[str]:
    """What is wrong with a definition, a line each; [] when nothing is.

    Raises:
        UserError: botocore is not installed.

    >>> definition_problems({"Version": "2020-12-01", "Steps": []})
    ['Steps: give one step or more']
    """
    found = [f"{name}: unknown key" for name in definition if name not in _TOP]
    if definition.get("Version") != VERSION:
        found.append(f"Version = {definition.get('Version')!r}: must be {VERSION!r}")
    parameters = {each.get("Name"): each for each in definition.get("Parameters", [])}
    found += _parameter_problems(definition.get("Parameters", []))
    steps = dict(_all_steps(definition.get("Steps", [])))
    if not steps:
        return [*found, "Steps: give one step or more"]
    names = [name for name, _ in _all_steps(definition["Steps"])]
    found += [f"Steps: {name!r} is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for name, step in steps.items():
        found += [f"Steps.{name}: {line}" for line in _step_problems(name, step, steps, parameters)]
    if not found:
        try:
            order(definition)
        except CycleError as error:
            found.append(f"Steps: wait for each other: {' -> '.join(error.args[1])}")
    return found


def order(definition: Mapping[str, Any]) -> list[str]:
    """The steps in an order in which each comes after those that it needs.

    Raises:
        CycleError: steps wait for each other.
    """
    graph: dict[str, set[str]] = {}
    for name, step in _all_steps(definition["Steps"]):
        own = {
            key: value
            for key, value in step.get("Arguments", {}).items()
            if key not in ("IfSteps", "ElseSteps")
        }
        needs = {words[1] for get in _gets(own) if (words := get.split("."))[0] == "Steps"}
        graph.setdefault(name, set()).update(needs | set(step.get("DependsOn", [])))
        if step.get("Type") == "Condition":  # a step in a branch waits for the condition
            for branch in ("IfSteps", "ElseSteps"):
                for inner, _ in _all_steps(step["Arguments"].get(branch, [])):
                    graph.setdefault(inner, set()).add(name)
    return list(TopologicalSorter(graph).static_order())


def _all_steps(steps: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for step in steps:
        yield str(step.get("Name")), step
        for branch in ("IfSteps", "ElseSteps"):
            yield from _all_steps(
                step.get("Arguments", {}).get(branch, []) if step.get("Type") == "Condition" else []
            )


def _parameter_problems(parameters: Any) -> list[str]:
    found, seen = [], set()
    for each in parameters:
        name, kind = each.get("Name"), each.get("Type")
        where = f"Parameters.{name}"
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            found.append(f"{where}: give a name of at most 64 letters, digits, - and _")
        if name in seen:
            found.append(f"{where}: is there twice")
        seen.add(name)
        if kind not in _KINDS:
            found.append(f"{where}.Type = {kind!r}: give one of {', '.join(_KINDS)}")
        elif "DefaultValue" in each:
            value = each["DefaultValue"]
            fits = isinstance(value, _KINDS[kind]) and (kind == "Boolean" or not isinstance(value, bool))
            if not fits:
                found.append(f"{where}.DefaultValue = {value!r}: is no {kind}")
    return found


def _step_problems(
    name: str, step: dict[str, Any], steps: dict[str, dict[str, Any]], parameters: dict[Any, Any]
) -> list[str]:
    kind = step.get("Type")
    if not _NAME.fullmatch(name):
        return ["give a name of at most 64 letters, digits, - and _"]
    if kind not in _MORE:
        return [f"Type = {kind!r}: give one of {', '.join(_MORE)}"]
    found = [f"{key}: unknown key" for key in step if key not in _KEYS | _MORE[kind]]
    if not isinstance(step.get("Arguments"), dict):
        return [*found, "Arguments: missing"]
    found += [
        f"DependsOn: there is no step {other!r}" for other in step.get("DependsOn", []) if other not in steps
    ]
    found += [line for get in _gets(_own(step)) if (line := _get_problem(get, steps, parameters)) is not None]
    cache = step.get("CacheConfig")
    if cache is not None:
        fits = isinstance(cache.get("Enabled"), bool) and set(cache) <= {"Enabled", "ExpireAfter"}
        if not fits or not is_age(str(cache.get("ExpireAfter", "1d"))):
            found.append(f"CacheConfig = {cache}: give Enabled, and ExpireAfter such as '30d'")
    outputs = {each.get("OutputName") for each in _outputs(step)}
    for file in step.get("PropertyFiles", []):
        if set(file) != {"PropertyFileName", "OutputName", "FilePath"} or file["OutputName"] not in outputs:
            found.append(f"PropertyFiles: {file} does not name a file of an output of this step")
    if found:
        return found
    if kind == "Condition":
        return _condition_problems(step["Arguments"])
    if kind == "Fail":
        return [] if set(step["Arguments"]) == {"ErrorMessage"} else ["Arguments: give ErrorMessage alone"]
    operation, added, _ = _OPERATIONS[kind]
    clash = [f"Arguments.{key}: SageMaker gives the name" for key in added if key in step["Arguments"]]
    request = _sampled(step["Arguments"], parameters) | added
    return clash or [f"Arguments: {line}" for line in aws_model.problems(request, operation)]


def _own(step: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step["Arguments"].items() if key not in ("IfSteps", "ElseSteps")}


def _condition_problems(arguments: dict[str, Any]) -> list[str]:
    found = [f"Arguments.{key}: unknown key" for key in arguments
             if key not in ("Conditions", "IfSteps", "ElseSteps")]  # fmt: skip
    for each in arguments.get("Conditions") or [{}]:
        if each.get("Type") not in _COMPARISONS or set(each) != {"Type", "LeftValue", "RightValue"}:
            found.append("Arguments.Conditions: give Type, LeftValue and RightValue of a comparison")
    return found


def _gets(value: Any) -> Iterator[str]:
    """What every ``Get`` in a value names."""
    if isinstance(value, dict):
        if set(value) == {"Get"}:
            yield str(value["Get"])
            return
        for inner in value.values():
            yield from _gets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _gets(inner)


def _get_problem(get: str, steps: dict[str, dict[str, Any]], parameters: dict[Any, Any]) -> str | None:
    words = get.split(".")
    if words[0] == "Parameters" and len(words) == 2:
        return None if words[1] in parameters else f"{get}: there is no such parameter"
    if words[0] == "Execution" and len(words) == 2:
        return None if words[1] in _EXECUTION else f"{get}: an execution has {', '.join(sorted(_EXECUTION))}"
    if words[0] != "Steps" or len(words) < 3:
        return f"{get}: begin with Parameters., Execution. or Steps.<name>."
    step = steps.get(words[1])
    if step is None:
        return f"{get}: there is no step {words[1]!r}"
    if words[2] == "PropertyFiles":
        files = {each.get("PropertyFileName") for each in step.get("PropertyFiles", [])}
        return None if words[3:] and words[3] in files else f"{get}: the step has no such property file"
    if step.get("Type") not in _OPERATIONS:
        return f"{get}: a {step.get('Type')} step has no properties"
    return _property_problem(get, words[2:], step)


def _property_problem(get: str, words: list[str], step: dict[str, Any]) -> str | None:
    """Walk a property through what the ``Describe`` call of the step returns."""
    shape = aws_model.output_shape(_OPERATIONS[step["Type"]][2])
    for word in words:
        match = _PART.fullmatch(word)
        if match is None or shape.type_name != "structure" or match[1] not in shape.members:
            return f"{get}: {_OPERATIONS[step['Type']][2]} returns no {word!r} there"
        shape = shape.members[match[1]]
        for key in re.findall(r"\['([^']+)'\]|\[(\d+)\]", match[2]):
            if shape.type_name not in ("list", "map"):
                return f"{get}: {match[1]} has no entries"
            shape = shape.member if shape.type_name == "list" else shape.value
            if (
                match[1] == "Outputs"
                and key[0]
                and key[0] not in {e.get("OutputName") for e in _outputs(step)}
            ):
                return f"{get}: the step has no output {key[0]!r}"
    return None if shape.type_name not in ("structure", "list", "map") else f"{get}: is no plain value"


def _outputs(step: dict[str, Any]) -> list[dict[str, Any]]:
    return list(step.get("Arguments", {}).get("ProcessingOutputConfig", {}).get("Outputs", []))


def _sampled(value: Any, parameters: dict[Any, Any]) -> Any:
    """``value`` with something of the right kind in the place of each reference."""
    if isinstance(value, dict):
        if set(value) == {"Get"}:
            words = str(value["Get"]).split(".")
            if words[0] == "Parameters":
                each = parameters[words[1]]
                return each.get(
                    "DefaultValue", {"String": "x", "Integer": 1, "Float": 1.0}.get(each["Type"], True)
                )
            return "sample" if words[0] == "Execution" else "s3://bucket/sample"
        if set(value) == {"Std:Join"}:
            join = value["Std:Join"]
            return join["On"].join(str(_sampled(each, parameters)) for each in join["Values"])
        return {key: _sampled(inner, parameters) for key, inner in value.items()}
    return [_sampled(inner, parameters) for inner in value] if isinstance(value, list) else value
