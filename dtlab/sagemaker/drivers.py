"""Who starts the ranks in a rehearsal: dtlab's first process, or the SageMaker SDK's own driver (lesson
15)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtlab.errors import UserError
from dtlab.sagemaker.container import cluster_of, variables
from dtlab.sagemaker.request import BOOTSTRAP

__all__ = ["command", "sdk_driver"]


def command(
    driver: str, base: Path, environ: Mapping[str, str], entry_script: str
) -> tuple[list[str], dict[str, str]]:
    """Command and variables of process 1 in the container under ``base``.

    Raises:
        UserError: an unknown driver, or the SDK is not installed.
    """
    if driver == "dtlab":
        script = base / "input" / "data" / "code" / BOOTSTRAP
        return [sys.executable, str(script), entry_script], dict(environ)
    if driver != "sdk":
        raise UserError(f"driver = {driver!r}: choose 'dtlab' or 'sdk'")
    return _of_sdk(base, environ, entry_script)


def sdk_driver() -> Path:
    """The SDK's torchrun driver, which it copies into containers.

    Raises:
        UserError: the SDK is not installed.
    """
    try:
        found = importlib.util.find_spec("sagemaker.train")
    except ModuleNotFoundError:
        found = None
    for place in (found.submodule_search_locations or []) if found is not None else []:
        file = Path(place) / "container_drivers" / "distributed_drivers" / "torchrun_driver.py"
        if file.is_file():
            return file
    raise UserError("driver = 'sdk': the SageMaker SDK is not installed: pip install 'dtlab[sagemaker-sdk]'")


def _of_sdk(base: Path, environ: Mapping[str, str], entry_script: str) -> tuple[list[str], dict[str, str]]:
    """What the SDK's shell script does: unpacked code, SM_* variables, its driver. No pip."""
    driver = sdk_driver()
    code = base / "code"
    shutil.unpack_archive(base / "input/data/code/source.tar.gz", code, filter="data")
    own: dict[str, Any] = {**environ, **variables(base, environ, 0)}
    cluster = cluster_of(own)
    own |= {
        "SM_ENTRY_SCRIPT": entry_script,
        "SM_MASTER_ADDR": environ["SM_MASTER_ADDR"],
        "SM_MASTER_PORT": environ["SM_MASTER_PORT"],
        "SM_DISTRIBUTED_CONFIG": json.dumps({"process_count_per_node": cluster.ranks_per_host, "smp": None}),
        "PYTHONPATH": str(code),
        "GLOO_SOCKET_IFNAME": cluster.interface or "lo",
        "PATH": f"{Path(sys.executable).parent}:{environ.get('PATH', '')}",
    }
    shell = f'cd "{code}" && exec "{sys.executable}" "{driver}"'
    return ["/bin/bash", "-c", shell], own
