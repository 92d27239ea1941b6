"""A pipeline's definition played on this machine: each step in a container's folders, S3 as a folder.

What is played is the definition itself: its references are resolved, its containers are started with their
own entry points, arguments and variables, and its condition decides which branch runs. Only the training step
is made small, as ``[rehearsal]`` says (lesson 16).
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtlab.errors import UserError, one_line
from dtlab.files import require_writable_folder
from dtlab.sagemaker import drivers
from dtlab.sagemaker.client import split_s3
from dtlab.sagemaker.hosts import Container, make_container, python, stop_all, variables_of_host, wait_for
from dtlab.sagemaker.job import TrainingJob
from dtlab.sagemaker.pipeline import make_pipeline_plan
from dtlab.sagemaker.pipeline_check import order
from dtlab.sagemaker.rehearsal import free_port
from dtlab.sagemaker.request import ARCHIVE, BOOTSTRAP
from dtlab.sagemaker.small_data import write_clicks
from dtlab.sagemaker.source import pack

__all__ = ["Played", "rehearse_pipeline"]

BASE = "/opt/ml"


@dataclass(frozen=True)
class Played:
    """Attributes:
    steps: that ran, in their order, with the seconds of each.
    auc: of the model on the test rows.
    ended_by: None, or the message of a Fail step.
    registered: what RegisterModel was asked for, with all references resolved; None where it did not run.
    archive: the packaged model on this machine; None where there is none, or its folder has gone.
    """

    steps: dict[str, float]
    auc: float | None
    ended_by: str | None
    registered: dict[str, Any] | None
    archive: Path | None

    @property
    def passed(self) -> bool:
        """Whether a model was registered."""
        return self.registered is not None


def rehearse_pipeline(
    job: TrainingJob,
    *,
    folder: Path | None = None,
    timeout: float = 300.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Played:
    """Play one execution of the job's pipeline.

    Args:
        job: as read from its file.
        folder: where containers and "S3" are made and stay; default: a temporary one that goes.
        timeout: seconds for each step.
        tell: called with a line as each step begins.

    Raises:
        UserError: the definition is refused, or a step failed, with its own words.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="dtlab-pipeline-") as scratch:
            return replace(_Stage(job, Path(scratch), timeout, tell).play(), archive=None)
    require_writable_folder(folder, "folder")
    folder.mkdir(parents=True, exist_ok=True)
    return _Stage(job, folder.resolve(), timeout, tell).play()


class _Stage:
    def __init__(self, job: TrainingJob, root: Path, timeout: float, tell: Callable[[str], None]) -> None:
        small = {**job.hyperparameters, **job.rehearsal.hyperparameters}
        self.plan = make_pipeline_plan(replace(job, hyperparameters=small))
        self.job, self.root, self.timeout, self.tell = self.plan.job, root, timeout, tell
        self.known: dict[str, Any] = {"Execution.PipelineExecutionId": "rehearsal"}
        for each in self.plan.definition["Parameters"]:
            self.known[f"Parameters.{each['Name']}"] = each["DefaultValue"]

    def play(self) -> Played:
        """Every step in its order, or in the branch that the condition takes."""
        self._upload()
        steps = {step["Name"]: step for step in self._flat(self.plan.definition["Steps"])}
        taken: set[str] | None = None
        seconds: dict[str, float] = {}
        ended_by, registered = None, None
        for name in order(self.plan.definition):
            step = steps[name]
            if taken is not None and name not in taken:
                continue
            began = time.monotonic()
            self.tell(f"{name}: {step['Type']}")
            if step["Type"] == "Processing":
                self._process(step)
            elif step["Type"] == "Training":
                self._train(step)
            elif step["Type"] == "Condition":
                taken = self._branch(step)
            else:
                arguments = self._resolved(step["Arguments"])
                if step["Type"] == "Fail":
                    ended_by = arguments["ErrorMessage"]
                else:
                    registered = arguments
            seconds[name] = round(time.monotonic() - began, 1)
        archive = None
        if registered is not None:
            archive = self._local(registered["InferenceSpecification"]["Containers"][0]["ModelDataUrl"])
        metrics = self._local(
            self._get("Steps.Evaluate.ProcessingOutputConfig.Outputs['output'].S3Output.S3Uri")
        )
        auc = json.loads((metrics / "metrics.json").read_text(encoding="utf-8"))["auc"]
        return Played(seconds, auc, ended_by, registered, archive)

    def _upload(self) -> None:
        """The code, and small data, where the definition looks for them."""
        code = self._local(self.plan.code)
        if (self.root / "s3").exists():
            shutil.rmtree(self.root / "s3")
        code.mkdir(parents=True)
        pack(self.job.source.folder, code / ARCHIVE)
        shutil.copyfile(Path(__file__).with_name(BOOTSTRAP), code / BOOTSTRAP)
        data, own = self._local(self.known["Parameters.TrainData"]), self.job.rehearsal.channels.get("train")
        if own is None:
            write_clicks(data, self.job.rehearsal.rows)
        else:
            shutil.copytree(own, data)

    def _process(self, step: dict[str, Any]) -> None:
        """A processing job: inputs are laid out, the container's process runs, its outputs go to "S3"."""
        arguments = self._resolved(step["Arguments"])
        container = self._container(step["Name"])
        for each in arguments["ProcessingInputs"]:
            source, target = self._local(each["S3Input"]["S3Uri"]), each["S3Input"]["LocalPath"]
            place = container.base / Path(target).relative_to(BASE)
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, place)
            else:
                place.mkdir()
                shutil.copy(source, place)
        specification = arguments["AppSpecification"]
        words = [*specification["ContainerEntrypoint"], *specification["ContainerArguments"]]
        command = python([word.replace(BASE, str(container.base)) for word in words])
        container.start(
            command, variables_of_host(container, arguments["Environment"], job="pipeline", port=0)
        )
        self._wait([container], "message")
        for each in arguments["ProcessingOutputConfig"]["Outputs"]:
            output = each["S3Output"]
            shutil.copytree(
                container.base / Path(output["LocalPath"]).relative_to(BASE), self._local(output["S3Uri"])
            )
            uri = (
                f"Steps.{step['Name']}.ProcessingOutputConfig.Outputs['{each['OutputName']}'].S3Output.S3Uri"
            )
            self.known[uri] = output["S3Uri"]

    def _train(self, step: dict[str, Any]) -> None:
        """The training job on as many hosts and ranks as [rehearsal] says; its model goes to "S3"."""
        arguments, plan = self._resolved(step["Arguments"]), self.job.rehearsal
        count = plan.hosts or min(2, arguments["ResourceConfig"]["InstanceCount"])
        hosts = [f"algo-{number + 1}" for number in range(count)]
        channels = {
            each["ChannelName"]: self._local(each["DataSource"]["S3DataSource"]["S3Uri"])
            for each in arguments["InputDataConfig"]
        }
        given, port = (
            {**arguments["Environment"], "DTLAB_RANKS_PER_HOST": str(plan.ranks_per_host)},
            free_port(),
        )
        place = self.root / step["Name"]
        if place.exists():
            shutil.rmtree(place)
        containers = [
            make_container(
                place / host,
                host,
                hosts,
                instance_type=arguments["ResourceConfig"]["InstanceType"],
                hyperparameters=arguments["HyperParameters"],
                channels=channels,
            )
            for host in hosts
        ]
        try:
            for container in containers:
                environ = variables_of_host(container, given, job="pipeline", port=port)
                container.start(
                    *drivers.command("dtlab", container.base, environ, self.job.source.entry_script)
                )
            self._wait(containers, "failure")
        finally:
            stop_all(containers)
        uri = f"{arguments['OutputDataConfig']['S3OutputPath'].rstrip('/')}/rehearsal/output/model.tar.gz"
        target = self._local(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as tar:
            for entry in sorted((containers[0].base / "model").iterdir()):
                tar.add(entry, entry.name)
        self.known[f"Steps.{step['Name']}.ModelArtifacts.S3ModelArtifacts"] = uri

    def _branch(self, step: dict[str, Any]) -> set[str]:
        """The names of the steps that the condition lets run."""
        arguments = step["Arguments"]
        compare = {
            "GreaterThanOrEqualTo": lambda left, right: left >= right,
            "LessThan": lambda left, right: left < right,
        }
        holds = all(
            compare[each["Type"]](self._resolved(each["LeftValue"]), self._resolved(each["RightValue"]))
            for each in arguments["Conditions"]
        )
        return {inner["Name"] for inner in arguments["IfSteps" if holds else "ElseSteps"]}

    def _resolved(self, value: Any) -> Any:
        """``value`` with what each reference stands for in this execution."""
        if isinstance(value, dict):
            if set(value) == {"Get"}:
                return self._get(value["Get"])
            if set(value) == {"Std:Join"}:
                return value["Std:Join"]["On"].join(
                    str(self._resolved(each)) for each in value["Std:Join"]["Values"]
                )
            if set(value) == {"Std:JsonGet"}:
                return self._from_property_file(value["Std:JsonGet"])
            return {key: self._resolved(inner) for key, inner in value.items()}
        return [self._resolved(inner) for inner in value] if isinstance(value, list) else value

    def _from_property_file(self, asked: Mapping[str, Any]) -> Any:
        _, name, _, file = asked["PropertyFile"]["Get"].split(".")
        steps = {step["Name"]: step for step in self._flat(self.plan.definition["Steps"])}
        (about,) = (each for each in steps[name]["PropertyFiles"] if each["PropertyFileName"] == file)
        uri = f"Steps.{name}.ProcessingOutputConfig.Outputs['{about['OutputName']}'].S3Output.S3Uri"
        found = json.loads((self._local(self._get(uri)) / about["FilePath"]).read_text(encoding="utf-8"))
        for key in asked["Path"].split("."):
            found = found[key]
        return found

    def _get(self, name: str) -> Any:
        if name not in self.known:
            raise UserError(f"{name}: is asked for before its step has run")
        return self.known[name]

    def _flat(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        inner = [each["Arguments"].get(branch, []) for each in steps for branch in ("IfSteps", "ElseSteps")]
        return [*steps, *(step for branch in inner for step in branch)]

    def _container(self, name: str) -> Container:
        base = self.root / name
        if base.exists():
            shutil.rmtree(base)
        base.mkdir(parents=True)
        return Container(name, base, self.root / f"{name}.log")

    def _wait(self, containers: list[Container], file: str) -> None:
        """Until all have ended well; else what the first that failed left in output/``file``."""
        try:
            wait_for(containers, self.timeout)
        finally:
            stop_all(containers)
        for container in containers:
            assert container.process is not None
            if container.process.returncode:
                told = container.base / "output" / file
                words = told.read_text("utf-8") if told.is_file() else container.last_lines(4)
                raise UserError(f"step {container.name}: {one_line(words, 500)}")

    def _local(self, uri: str) -> Path:
        bucket, key = split_s3(uri)
        return self.root / "s3" / bucket / key.rstrip("/")
