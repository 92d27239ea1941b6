"""What of a training job's request lands where in the container (lesson 15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dtlab.errors import UserError
from dtlab.figures.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INTO, _BACK, _BOTH, _SIGNAL = "into", "back", "both", "signal"
_LOOK = {_INTO: (BLUE, "-|>"), _BACK: (GREEN, "<|-"), _BOTH: (ORANGE, "<|-|>"), _SIGNAL: (RED, "-|>")}
_MEANING = {
    _INTO: "before the start",
    _BACK: "packed at the end",
    _BOTH: "kept equal with S3",
    _SIGNAL: "when the time is over",
}


def landings(request: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(field of the request, place in the container, what a script reads, direction), line by line.

    Raises:
        UserError: not a ``CreateTrainingJob`` request.

    >>> landings({"HyperParameters": {"lr": "0.1"}, "TrainingJobName": "a"})[0][:2]
    ('HyperParameters: lr', 'input/config/hyperparameters.json')
    """
    if "TrainingJobName" not in request:
        raise UserError("request: has no TrainingJobName; give the dict of CreateTrainingJob")
    found: list[tuple[str, str, str, str]] = []
    parameters = list(request.get("HyperParameters", {}))
    if parameters:
        shown = ", ".join(parameters[:3]) + (", ..." if len(parameters) > 3 else "")
        place = "input/config/hyperparameters.json"
        found.append((f"HyperParameters: {shown}", place, "SM_HPS, SM_HP_<NAME>: text", _INTO))
    for one in request.get("InputDataConfig", []):
        name = one["ChannelName"]
        variable = f"SM_CHANNEL_{name.upper().replace('-', '_')}"
        reads = "unpacked to code/: SM_SOURCE_DIR" if name == "code" else variable
        found.append((f"InputDataConfig: {name}", f"input/data/{name}/", reads, _INTO))
    if "ResourceConfig" in request:
        hosts = request["ResourceConfig"].get("InstanceCount", 1)
        words = f"ResourceConfig: {hosts} host{'s' if hosts > 1 else ''}"
        place = "input/config/resourceconfig.json"
        found.append((words, place, "SM_HOSTS, SM_CURRENT_HOST", _INTO))
    algorithm = request.get("AlgorithmSpecification", {})
    if "ContainerEntrypoint" in algorithm:
        script = (algorithm.get("ContainerArguments") or ["?"])[-1]
        found.append(("ContainerEntrypoint, -Arguments", "process 1", f"starts torchrun {script}", _INTO))
    if request.get("Environment"):
        names = ", ".join(list(request["Environment"])[:2])
        found.append(("Environment", "variables of process 1", names, _INTO))
    if "CheckpointConfig" in request:
        found.append(
            ("CheckpointConfig: S3Uri", "checkpoints/", "what the run saves and resumes from", _BOTH)
        )
    if "OutputDataConfig" in request:
        found.append(("OutputDataConfig: model.tar.gz", "model/", "SM_MODEL_DIR, of the first host", _BACK))
    if "StoppingCondition" in request:
        found.append(("StoppingCondition", "process 1", "SIGTERM, 120 s later SIGKILL", _SIGNAL))
    return found


def container_figure(request: Mapping[str, Any]) -> Figure:
    """Three columns: the request's fields, their place under /opt/ml, what the script reads.

    >>> figure = container_figure({"TrainingJobName": "a", "HyperParameters": {"lr": "0.1"}})
    """
    lines = landings(request)
    fig, ax = new_figure(
        "Folder and variable carry the channel's name; hyper-parameters arrive as text",
        alt="Each line: field of the request, place under /opt/ml, what the script reads. "
        + " ".join(f"{field}: {place}; {reads} ({_MEANING[kind]})." for field, place, reads, kind in lines),
        size=(9.6, 0.9 + 0.42 * len(lines)),
    )
    ax.set_axis_off()
    ax.set(xlim=(0, 10), ylim=(len(lines) + 0.3, -1.0))
    for x, words in ((0.0, "request"), (3.9, "in each container, under /opt/ml"), (7.25, "the script reads")):
        ax.text(x, -0.65, words, fontsize=9, fontweight="bold", va="center")
    for row, (field, place, reads, kind) in enumerate(lines):
        colour, arrow = _LOOK[kind]
        ax.text(0.0, row, field, fontsize=8.5, va="center", color=BLACK)
        ax.text(
            3.9, row, place, fontsize=8.5, va="center", family="monospace",
            bbox={"facecolor": "white", "edgecolor": colour, "pad": 2.5},
        )  # fmt: skip
        ax.text(7.25, row, reads, fontsize=8.5, va="center")
        ax.annotate(
            "", (3.8, row), (3.15, row), arrowprops={"arrowstyle": arrow, "color": colour, "linewidth": 1.6}
        )
    kinds = [kind for kind in _LOOK if any(line[3] == kind for line in lines)]
    step = 10 / max(3, len(kinds))
    for number, kind in enumerate(kinds):
        colour, arrow = _LOOK[kind]
        x, y = number * step, len(lines)
        ax.annotate(
            "", (x + 0.5, y), (x, y), arrowprops={"arrowstyle": arrow, "color": colour, "linewidth": 1.6}
        )
        ax.text(x + 0.6, y, _MEANING[kind], fontsize=8, va="center")
    return fig
