"""Check of lesson 15's job: a v2 job of the sources as a request that AWS's own model takes."""

from __future__ import annotations

import json
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import difference
from dtlab.course.lessons.on_ranks import require_function

_BASE = {
    "name": "s0-recommender-1",
    "role": "arn:aws:iam::111122223333:role/training",
    "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/torch:2.9",
}
_CHANNELS = {"train": "s3://bucket/clicks/", "code": "s3://bucket/code/"}
JOBS: dict[str, dict[str, Any]] = {
    "on demand, one host": {
        **_BASE, "instance": "ml.g5.12xlarge", "hosts": 1, "hours": 2, "spot": False, "script": "train.py",
        "channels": _CHANNELS, "output": "s3://bucket/models/", "checkpoints": "s3://bucket/checkpoints/",
        "hyperparameters": {"lr": 1e-3, "amp": False, "note": "first"}, "variables": {},
    },
    "spot, two hosts": {
        **_BASE, "name": "s0-recommender-2", "instance": "ml.g6.12xlarge", "hosts": 2, "hours": 5,
        "spot": True, "script": "code/fit.py", "channels": {**_CHANNELS, "validation": "s3://bucket/later/"},
        "output": "s3://other/models/", "checkpoints": "s3://other/saved/",
        "hyperparameters": {"epochs": 15, "hidden": [64, 32]}, "variables": {"NCCL_DEBUG": "WARN"},
    },
}  # fmt: skip


@exercise(
    "15-request",
    todo="hyper-parameters as text, channels, hosts, the longest run; on spot also the wait and checkpoints",
    hints=(
        "SageMaker carries text only: what becomes of False? What does a spot job need that an on-demand job "
        "does not: how long may it wait, and where does it find what it had?",
        '"HyperParameters": {name: value if isinstance(value, str) else json.dumps(value) ...}; '
        '"InputDataConfig": [channel(name, uri) ...]; "ResourceConfig": InstanceType, InstanceCount, '
        'VolumeSizeInGB; "StoppingCondition": {"MaxRuntimeInSeconds": 3600 * hours}; with spot '
        'MaxWaitTimeInSeconds and "CheckpointConfig": {"S3Uri", "LocalPath": "/opt/ml/checkpoints"}.',
    ),
    references=(
        "dtlab.sagemaker.request.create_training_job",
        "dtlab.sagemaker.hyperparameters.encode",
        "dtlab.course.lessons.l15_request.expected",
    ),
)
def request(checks: Checks, answer: Any) -> None:
    """Counts and seconds of two jobs, then every field, then what AWS's model says."""
    require_function(answer)
    given = {name: _ask(answer, job) for name, job in JOBS.items()}
    for name, job in JOBS.items():
        got, wait = given[name], 3600 * job["hours"]
        checks.integer(
            f"{name}: hosts", _at(got, "ResourceConfig", "InstanceCount"), job["hosts"],
            look="ResourceConfig.InstanceCount; ranks are not in the request: each host starts its own",
        )  # fmt: skip
        checks.integer(
            f"{name}: channels",
            len(_at(got, "InputDataConfig")),
            len(job["channels"]),
            look="InputDataConfig: channel(name, uri) for each of job['channels']",
        )
        checks.integer(
            f"{name}: seconds at most",
            _at(got, "StoppingCondition", "MaxRuntimeInSeconds"),
            wait,
            look="StoppingCondition.MaxRuntimeInSeconds: hours are 3600 s. It is the hard stop of lesson 14",
        )
        if job["spot"]:
            checks.integer(
                f"{name}: seconds with waiting",
                _at(got, "StoppingCondition", "MaxWaitTimeInSeconds"),
                2 * wait,
                look="MaxWaitTimeInSeconds includes the run: twice the longest run here",
            )
    for name, job in JOBS.items():
        _texts(name, given[name].get("HyperParameters"), job["hyperparameters"])
        right = expected(job)
        for field in sorted(set(right) - {"HyperParameters"}):
            wrong = difference(_at(given[name], field), right[field])
            if wrong:
                look = _LOOK.get(field, f"fixed(job) gives {field}: leave it as it is")
                raise CheckFailed(f"{name}: {field}: {wrong}.\nWhere to look: {look}.")
        more = sorted(set(given[name]) - set(right))
        if more:
            look = _LOOK.get(more[0], "")
            raise CheckFailed(f"{name}: {more[0]} is there and should not be. {look}".rstrip())
        checks.equal(f"{name}: every field", given[name], right)
    from dtlab.cost.aws_model import problems

    for name in JOBS:
        checks.equal(f"{name}: what AWS's model objects to", problems(given[name]), [])


_LOOK = {
    "CheckpointConfig": "with spot only: S3Uri, and LocalPath /opt/ml/checkpoints",
    "StoppingCondition": "on spot MaxWaitTimeInSeconds too, twice the run; elsewhere the service refuses it",
    "EnableManagedSpotTraining": "a bool: job['spot']",
    "Environment": "job['variables']",
    "InputDataConfig": "channel(name, uri) in the order of job['channels']",
    "ResourceConfig": "InstanceType, InstanceCount and VolumeSizeInGB, 100",
}


def fixed(job: dict[str, Any]) -> dict[str, Any]:
    """What every request has: name, role, image, first process, output."""
    return {
        "TrainingJobName": job["name"],
        "RoleArn": job["role"],
        "AlgorithmSpecification": {
            "TrainingImage": job["image"],
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3"],
            "ContainerArguments": ["/opt/ml/input/data/code/bootstrap.py", job["script"]],
        },
        "OutputDataConfig": {"S3OutputPath": job["output"]},
    }


def channel(name: str, uri: str) -> dict[str, Any]:
    """A folder on S3 that every host gets whole, under /opt/ml/input/data/<name>."""
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def expected(job: dict[str, Any]) -> dict[str, Any]:
    """The right request."""
    seconds = 3600 * job["hours"]
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in job["hyperparameters"].items()
    }
    found = {
        **fixed(job),
        "HyperParameters": texts,
        "InputDataConfig": [channel(name, uri) for name, uri in job["channels"].items()],
        "ResourceConfig": {
            "InstanceType": job["instance"],
            "InstanceCount": job["hosts"],
            "VolumeSizeInGB": 100,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
        "EnableManagedSpotTraining": job["spot"],
        "Environment": job["variables"],
    }
    if job["spot"]:
        found["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * seconds
        found["CheckpointConfig"] = {"S3Uri": job["checkpoints"], "LocalPath": "/opt/ml/checkpoints"}
    return found


def _texts(name: str, got: Any, values: dict[str, Any]) -> None:
    if got is None or got is ...:
        raise CheckFailed(
            f"{name}: the request has no 'HyperParameters'.\nWhere to look: job['hyperparameters']."
        )
    if not isinstance(got, dict):
        raise CheckFailed(f"{name}: HyperParameters is {type(got).__name__}: give a dict, name -> text.")
    for key, value in values.items():
        text = got.get(key)
        if key in got and not isinstance(text, str):
            raise CheckFailed(
                f"{name}: hyper-parameter {key} is {text!r}, a {type(text).__name__}.\nWhere to look: "
                "SageMaker carries text: json.dumps(value) for what is no text yet."
            )
        if isinstance(value, bool) and text == str(value):
            raise CheckFailed(
                f"{name}: hyper-parameter {key} is {text!r}, and bool('False') is True in the script that "
                "reads it.\nWhere to look: json.dumps(False) is 'false'."
            )
        if isinstance(value, str) and text == json.dumps(value):
            raise CheckFailed(
                f"{name}: hyper-parameter {key} is {text!r}, with quotes of its own.\nWhere to look: text "
                f"goes "
                "as it is."
            )
    wrong = difference(got, expected({**JOBS[name], "hyperparameters": values})["HyperParameters"])
    if wrong:
        raise CheckFailed(f"{name}: HyperParameters: {wrong}.\nWhere to look: text, or JSON of the value.")


def _at(request: Any, *path: str) -> Any:
    found, where = request, ""
    for name in path:
        where = f"{where}.{name}" if where else name
        if not isinstance(found, dict) or name not in found:
            look = _LOOK.get(path[0], "the fields named in the task")
            raise CheckFailed(f"the request has no {where!r}.\nWhere to look: {look}.")
        found = found[name]
    return found


def _ask(answer: Any, job: dict[str, Any]) -> dict[str, Any]:
    found = answer(json.loads(json.dumps(job)))
    if found is None or found is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if found is None else "..."))
    if not isinstance(found, dict):
        raise CheckFailed(f"got {type(found).__name__}: give the request, a dict.")
    return found
