"""A pipeline's step in a processing container: ``python -m dtlab.sagemaker.processing STEP NAME=VALUE...``

The container's folders are SageMaker's: inputs under /opt/ml/processing/input/<name>, and whatever the step
leaves in /opt/ml/processing/output goes to S3. Settings are words, by the names of ``dtlab train``; those of
[pipeline] have ``pipeline.`` in front. The work is that of ``dtlab pipeline`` (``dtlab.workflow.steps``).

What goes wrong stands as one line in /opt/ml/output/message, which SageMaker shows as the job's ExitMessage.
At import standard library only: this runs before the job's packages are installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtlab.errors import UserError, one_line
from dtlab.sagemaker.first_process import install_command

__all__ = ["STEPS", "main"]

STEPS = ("prepare", "features", "evaluate", "package")
_MOST_MESSAGE = 1000


def main(words: Sequence[str]) -> int:
    """Do the step that ``words`` name; the exit code of the container."""
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    command = install_command(os.environ)
    if command is not None and subprocess.run(command, check=False).returncode:
        return _failed(base, "pip could not install requirements.txt; see the output")
    try:
        step, *settings = words
        facts = _do(step, _named(settings), base)
    except (UserError, ValueError, OSError) as error:
        return _failed(base, one_line(f"{words[0] if words else 'no step'}: {error}", most=_MOST_MESSAGE))
    print(json.dumps({"step": step, **facts}, default=str), flush=True)
    return 0


def _do(step: str, settings: dict[str, str], base: Path) -> dict[str, Any]:
    from dtlab.sagemaker.script import train_config
    from dtlab.workflow import steps
    from dtlab.workflow.config import PipelineConfig

    if step not in STEPS:
        raise UserError(f"there is no such step; there are {', '.join(STEPS)}")
    given, out = base / "processing" / "input", base / "processing" / "output"
    out.mkdir(parents=True, exist_ok=True)
    told = {name.removeprefix("pipeline."): value for name, value in settings.items()
            if name.startswith("pipeline.")}  # fmt: skip
    of_run = {name: value for name, value in settings.items() if not name.startswith("pipeline.")}
    environ = {"SM_HPS": json.dumps(of_run), "SM_INPUT_CONFIG_DIR": str(base / "no-such-folder"),
               "SAGEMAKER_BASE_DIR": str(base), "SM_CHANNEL_TRAIN": str(given / "train")}  # fmt: skip
    config = train_config(environ)
    root = {"features": out, "evaluate": given / "features"}.get(step, Path(config.data.root or "."))
    config = replace(config, data=replace(config.data, root=str(root), cache="disk"))
    prepared = given / "prepared"
    if step == "prepare":
        return steps.prepare(config.data, out).facts
    if step == "features":
        return steps.features(config.data, out, refit=steps.refits(config), prepared=prepared).facts
    with tempfile.TemporaryDirectory() as scratch:
        model = _unpacked(given / "model", Path(scratch))
        if step == "package":
            return steps.package(out, model=model, prepared=prepared, evaluated=given / "evaluated").facts
        options = PipelineConfig(**{name: json.loads(value) for name, value in told.items()})
        return steps.evaluate(config, options, out, model=model, prepared=prepared).facts


def _named(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise UserError(f"{word!r}: write name=value")
        found[name] = value
    return found


def _unpacked(folder: Path, scratch: Path) -> Path:
    """The model folder in the archive that SageMaker makes of /opt/ml/model.

    Raises:
        UserError: there is no such archive, or it cannot be read.
    """
    archive = folder / "model.tar.gz"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"model = {str(archive)!r}: cannot be read ({error}); train again") from None
    return scratch / "model"


def _failed(base: Path, line: str) -> int:
    print(f"dtlab: {line}", file=sys.stderr, flush=True)
    try:
        (base / "output").mkdir(parents=True, exist_ok=True)
        (base / "output" / "message").write_text(line[:_MOST_MESSAGE], encoding="utf-8")
    except OSError:
        pass  # the line is in the output
    return 2


def settings_of(values: Mapping[str, str], *names: str) -> list[str]:
    """``name=value`` of the settings whose names begin with one of ``names``.

    >>> settings_of({"data.name": "clicks", "optim.lr": "0.1"}, "data.")
    ['data.name=clicks']
    """
    return [f"{name}={value}" for name, value in values.items() if name.startswith(names)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
