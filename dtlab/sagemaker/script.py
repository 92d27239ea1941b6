"""``dtlab train`` as the entry script of a training job: settings from SM_HPS, folders from SM_* (lesson 15).

Hyper-parameters are named as the flags of ``dtlab train`` (``optim.lr``); ``config`` names a TOML file beside
the script that lies under them. The run goes on from /opt/ml/checkpoints, where SageMaker puts the
checkpoints of an earlier attempt, and the finished model goes to /opt/ml/model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from dtlab.errors import UserError, one_line
from dtlab.files import appears_whole
from dtlab.sagemaker.hyperparameters import from_environment, read
from dtlab.sagemaker.rank_script import put_back
from dtlab.settings_file import near_name, read_settings
from dtlab.train.config import TrainConfig
from dtlab.train.mlflow_live import is_installed

__all__ = ["folder_of", "main", "refuse", "train_config"]

RUN = "run"
# A stop by signal, as a shell reports it: the platform stopped the job, the script did not fail.
STOPPED = {"SIGTERM": 143, "spot notice": 143, "SIGINT": 130}


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Train on the ranks of this job; the exit code."""
    put_back(os.environ)
    try:
        return _train(environ)
    except UserError as error:
        return refuse(error)


def refuse(error: UserError) -> int:
    """Say what the user must mend, once for all ranks and where the launcher reports it; the exit code, 2."""
    from dtlab.ranks.agent_errors import tell_agent_after_rank_0

    line = one_line(str(error), most=10_000)
    tell_agent_after_rank_0(line)
    print(f"dtlab: {line}", flush=True)
    return 2


def train_config(environ: Mapping[str, str]) -> TrainConfig:
    """The run that the hyper-parameters and folders of the container ask for.

    Raises:
        UserError: a name that no run has, a value that is not of its kind.

    >>> train_config({"SM_HPS": '{"optim.lr": "1e-3", "data.name": "clicks"}'}).optim.lr
    0.001
    """
    texts = from_environment(environ)
    file = texts.pop("config", None)
    values = read_settings(str(file), "config", "recommender.toml") if file is not None else {}
    hints = {name: get_type_hints(type(table)) for name, table in vars(TrainConfig()).items()}
    kinds = {f"{table}.{name}": _kind(hint) for table, known in hints.items() for name, hint in known.items()}
    for name in texts:
        if name not in kinds:
            near = near_name(name, kinds)
            hint = f"did you mean {near}?" if near else "write table.name, as in dtlab train --optim.lr"
            raise UserError(f"hyperparameters.{name}: no run has it; {hint}")
    for name in values:
        if name not in hints:
            raise UserError(f"config = {str(file)!r}: unknown table {name!r}; there are {', '.join(hints)}")
    for name, value in read(texts, kinds).items():
        table, _, field = name.partition(".")
        values[table] = {**values.get(table, {}), field: value}
    for (table, field), value in _of_container(environ, values).items():
        values[table] = {field: value, **values.get(table, {})}
    return TrainConfig.from_dict(values)


def folder_of(environ: Mapping[str, str], name: str) -> Path:
    """A folder of the container, ``"checkpoints"`` or ``"model"``, from where the script runs.

    Relative: on every host the same words name the host's own folder, as ranks tell each other paths.
    """
    base = Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    return Path(os.path.relpath(base / name))


def _train(environ: Mapping[str, str]) -> int:
    from dtlab.ranks.worlds import world
    from dtlab.train.job import run
    from dtlab.train.resume import MODEL

    config = train_config(environ)
    folder = config.run.folder
    assert folder is not None
    with world(seed=config.run.seed) as w:
        is_done, otherwise = w.broadcast(_finished(folder, config) if w.is_main else (False, ""))
        if otherwise:
            raise UserError(otherwise)
        if not is_done:
            report = run(config)
            if report["stopped_by"] is not None:
                return STOPPED.get(report["stopped_by"], 0)
            if w.is_main:
                _print_metrics(report)
        elif w.is_main:
            w.log.info("%s holds the finished run: nothing is left to train", folder)
        if w.is_main:
            with appears_whole(folder_of(environ, "model") / MODEL, "SM_MODEL_DIR") as beside:
                shutil.copytree(folder / MODEL, beside)
        w.barrier()
    return 0


def _finished(folder: Path, config: TrainConfig) -> tuple[bool, str]:
    """Whether the folder holds a finished run, and why that is not the run of this job."""
    from dtlab.train.package import DESCRIPTION
    from dtlab.train.resume import MODEL, finished_otherwise

    if not (folder / MODEL / DESCRIPTION).is_file():
        return False, ""
    try:
        differ = finished_otherwise(folder, config)
    except UserError as error:
        return True, str(error)
    if not differ:
        return True, ""
    return True, (
        f"checkpoints: a finished run lies there with other settings ({', '.join(differ)}); give this job a "
        "checkpoint address of its own"
    )


def _of_container(environ: Mapping[str, str], values: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Where the container keeps what a run needs."""
    found: dict[tuple[str, str], Any] = {
        ("run", "folder"): str(folder_of(environ, "checkpoints") / RUN),
        ("data", "root"): str(folder_of(environ, "data")),
    }
    if values.get("data", {}).get("name") == "parquet" and environ.get("SM_CHANNEL_TRAIN"):
        found["data", "path"] = os.path.relpath(environ["SM_CHANNEL_TRAIN"])
    if environ.get("SM_CHANNEL_FEATURES"):  # what the features step of a pipeline left
        found["data", "root"] = os.path.relpath(environ["SM_CHANNEL_FEATURES"])
        found["data", "cache"] = "disk"
    if environ.get("DTLAB_CHECKPOINT_SECONDS"):
        found["checkpoint", "every_seconds"] = float(environ["DTLAB_CHECKPOINT_SECONDS"])
    if environ.get("MLFLOW_TRACKING_URI"):
        if is_installed("mlflow"):
            found["run", "mlflow"] = "env"
        else:
            print(
                "dtlab: MLFLOW_TRACKING_URI is set, mlflow is not in requirements.txt: nothing is sent there"
            )
    return found


def _kind(hint: Any) -> Any:
    """bool, int, float, str or list for the annotation of a field."""
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(kind for kind in get_args(hint) if kind is not type(None)))
    if get_origin(hint) is tuple:
        return list
    return hint if hint in (bool, int, float) else str


def _print_metrics(report: Mapping[str, Any]) -> None:
    """One ``name=value`` a line, by rank 0 alone: what the job's metric definitions look for."""
    for name in ("auc", "log_loss", "samples_per_second", "communication_share"):
        if report.get(name) is not None:
            print(f"{name}={report[name]:.6g}", flush=True)
