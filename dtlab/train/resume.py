"""Which folder a run writes to, and whether it goes on there (lesson 13).

A run that is started again by its launcher finds its own folder by the name of the job: ``dtlab launch``,
torchrun's agent (give ``--rdzv-id``) and Slurm's requeue keep that name over restarts. A folder with a
finished model is never continued.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.files import require_writable_folder
from dtlab.train.arguments import require_alike
from dtlab.train.checkpoint_store import candidates, newest_complete
from dtlab.train.config import TrainConfig
from dtlab.train.package import DESCRIPTION
from dtlab.train.record import RECORD, append_line, new_run_folder

__all__ = [
    "CHECKPOINTS", "after_failure", "beginning", "changes", "check_places", "check_settings_alike",
    "job_name", "record_verdict", "run_folder",
]  # fmt: skip

CHECKPOINTS, MODEL, _JOB = "checkpoints", "model", "job.json"
_MOST_LOOKED_AT = 200
_TICK_SECONDS = 0.01  # of 100 ticks a second, the fewest of Linux: a file may be dated so much too early
# A run may go on with these changed, and a line says so; what the weights or the samples are, it may not.
_FIXED = ("data", "model", "run.seed", "run.dtype", "run.refit", "optim.name")
_PLACES = ("data.root", "data.path")
_FREE = (
    "run.output", "run.folder", "run.resume", "run.prefetch", "run.log_every", "data.workers", "data.cache",
    "data.cache_max_age_hours", "run.mlflow",
)  # fmt: skip


def job_name(environ: Mapping[str, str]) -> str | None:
    """The name under which a launcher starts a job again; None where there is none.

    >>> job_name({"DTLAB_LAUNCH": "3f2a.1"})
    '3f2a'
    """
    if environ.get("DTLAB_LAUNCH"):
        return environ["DTLAB_LAUNCH"].split(".")[0]
    agent = environ.get("TORCHELASTIC_RUN_ID", "none")
    if agent not in ("", "none"):
        return f"torchrun-{agent}"
    return f"slurm-{environ['SLURM_JOB_ID']}" if environ.get("SLURM_JOB_ID") else None


def check_places(config: TrainConfig) -> None:
    """Refuse before data are read what :func:`run_folder` would refuse after it; nothing is made.

    Raises:
        UserError: as there.
    """
    run = config.run
    if run.folder is not None:
        require_writable_folder(run.folder, "run.folder")
        if _is_finished(run.folder):
            raise UserError(f"run.folder = {str(run.folder)!r}: holds a finished run; name another folder")
    elif run.output is not None:
        require_writable_folder(run.output, "run.output")
    if run.resume and run.folder is None:
        run_folder(config)  # which only looks


def run_folder(config: TrainConfig) -> Path | None:
    """The folder of this run, new or found again; rank 0 calls it. None when nothing is to be written.

    Raises:
        UserError: the folder holds a finished run, there is nothing to resume, or it cannot be made.
    """
    run = config.run
    if run.folder is not None:
        try:
            if _is_finished(run.folder):
                raise UserError(
                    f"run.folder = {str(run.folder)!r}: holds a finished run; name another folder"
                )
            run.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"run.folder = {str(run.folder)!r}: {error.strerror}; name a folder that can be written"
            ) from None
        return run.folder
    if run.output is None:
        if run.resume:
            raise UserError("run.resume = True: needs run.output or run.folder, where the run is looked for")
        return None
    known = _newest(run.output)
    if run.resume:
        for folder in known:
            if candidates(folder / CHECKPOINTS) and not _is_finished(folder):
                return folder
        raise UserError(
            f"run.resume = True: no interrupted run with a checkpoint in {str(run.output)!r}; a finished run "
            "does not go on: leave --resume out to start a new one"
        )
    name = job_name(os.environ)
    mine = {"job": name, "config": _comparable(config)}
    for folder in known if name is not None else []:
        if _read(folder / _JOB) == mine and not _is_finished(folder):
            return folder
    folder = new_run_folder(run.output)
    if name is not None:
        (folder / _JOB).write_text(json.dumps(mine), encoding="utf-8")
    return folder


def beginning(config: TrainConfig, folder: Path | None, *, was_restarted: bool) -> str | None:
    """What to say where a run that was to go on found nothing to go on from; None for a first start."""
    if folder is None or not (config.run.resume or was_restarted):
        return None
    return f"{folder} holds no complete checkpoint: beginning at step 0"


def after_failure(config: TrainConfig, since: float) -> list[str]:
    """Which checkpoint a run that failed has left, and how to go on; one line each.

    Args:
        config: of the run.
        since: ``time.time()`` before it was started: without ``run.folder`` its folder is the one whose
            record was written since.
    """
    run, every, what = config.run, config.checkpoint, "last complete checkpoint: "
    if run.folder is None and run.output is None:
        return [f"{what}none, the run has no folder"]
    recorded = _recorded_since(config, since)
    if run.folder is None and len(recorded) > 1:
        return [f"{what}see the folders in {run.output}, where {len(recorded)} runs were going on"]
    folder = run.folder or (recorded[0] if recorded else None)
    if folder is None or not folder.is_dir():
        return []  # it failed before it had a folder
    info = newest_complete(folder / CHECKPOINTS)
    if info is not None:
        return [f"{what}step {info.step}, in {folder}", "go on with the same command and --resume"]
    set_to = [f"checkpoint.{name} = {value:g}"
              for name in ("every_steps", "every_seconds") if (value := getattr(every, name))]  # fmt: skip
    why = ", ".join(set_to) or "checkpoint.every_steps and checkpoint.every_seconds are not set"
    return [f"{what}none yet ({why})", "begin again with the same command"]


def record_verdict(config: TrainConfig, since: float, verdict: str) -> None:
    """Append what the launcher saw to the record of a run that failed: a survivor only lost its peer.

    Args:
        config, since: as for :func:`after_failure`.
        verdict: one line, for example "rank 1 of 2 was killed by SIGKILL".
    """
    folders = _recorded_since(config, since) if config.run.folder is None else [config.run.folder]
    if len(folders) != 1 or not _written_since(folders[0] / RECORD, since):
        return  # it failed before its first line, or another run was going on: nobody can tell which is ours
    try:
        append_line(folders[0] / RECORD, {"event": "failed", "by": "launcher", "error": verdict})
    except (OSError, UserError):
        return  # the verdict is on the screen already; a full disk must not hide it


def _recorded_since(config: TrainConfig, since: float) -> list[Path]:
    output = config.run.output
    return [f for f in _newest(output) if _written_since(f / RECORD, since)] if output else []


def changes(saved_job: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    """What differs between the saved configuration and this one, as ``optim.lr 0.1 -> 0.2``.

    Raises:
        UserError: something differs with which a run cannot go on, the data above all.
    """
    lacking = [name for name in job if name not in saved_job]
    if lacking or not isinstance(saved_job["config"], Mapping):
        raise UserError(
            f"the checkpoint does not say {(*lacking, 'config')[0]!r} of its run, so it cannot go on: name "
            "another folder, or start a new run"
        )
    if saved_job["data_version"] != job["data_version"]:
        raise UserError(
            f"data: version {job['data_version']} now, the interrupted run saw {saved_job['data_version']}; "
            "bring the old data back, or start a new run"
        )
    saved, now = saved_job["config"], job["config"]
    found = []
    for table in now:
        for name, value in now[table].items():
            field, before = f"{table}.{name}", saved.get(table, {}).get(name, value)
            if field in _FREE or before == value:
                continue
            if table in _FIXED or field in _FIXED:
                raise UserError(
                    f"{field} = {value!r}: the interrupted run had {before!r}; give that value, or start a "
                    "new run in another folder"
                )
            found.append(f"{field} {before!r} -> {value!r}")
    return found


def finished_otherwise(folder: Path, config: TrainConfig) -> list[str]:
    """How the settings of the finished run in ``folder`` differ from ``config``, as ``optim.lr 0.1 -> 0.2``.

    Places are not compared: a container may find the same data elsewhere.

    Raises:
        UserError: the description of the finished model cannot be read.
    """
    place = folder / MODEL / DESCRIPTION
    try:
        saved = json.loads(place.read_text())["config"]
        now = _comparable(config)
        return [
            f"{table}.{name} {saved[table][name]!r} -> {value!r}"
            for table, values in json.loads(json.dumps(now)).items()
            for name, value in values.items()
            if f"{table}.{name}" not in _PLACES and saved.get(table, {}).get(name, value) != value
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place} cannot be read ({error}): name another folder for this run") from None


def check_settings_alike(config: TrainConfig) -> None:
    """Refuse ranks that were started with other settings; where each finds its data may differ (collective).

    Raises:
        UserError: on every rank, with the setting and what each has.
    """
    own = {*_PLACES, *_FREE} - {"run.log_every"}  # all ranks of a run log together
    fields = {f"{table}.{name}": repr(value)
              for table, values in config.to_dict().items() for name, value in values.items()}  # fmt: skip
    require_alike("", {name: value for name, value in fields.items() if name not in own})


def _comparable(config: TrainConfig) -> dict[str, Any]:
    tables = config.to_dict()
    return {t: {n: v for n, v in values.items() if f"{t}.{n}" not in _FREE} for t, values in tables.items()}


def _is_finished(folder: Path) -> bool:
    return (folder / MODEL / DESCRIPTION).is_file()


def _newest(output: Path) -> list[Path]:
    try:
        found = [path for path in output.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_LOOKED_AT]


def _written_since(path: Path, since: float) -> bool:
    """Also where the system dates files by its last tick, which came before ``since``."""
    try:
        return path.stat().st_mtime >= since - _TICK_SECONDS
    except OSError:
        return False


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
