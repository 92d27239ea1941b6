"""Run the entry script as one rank, so that its own error is what torchrun and SageMaker report (lesson 15).

``python -m dtlab.sagemaker.rank_script train.py --lr 0.1``: the script is ``__main__``, with its arguments
and its folder on the path, as if it had been started itself.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from dtlab.ranks.agent_errors import tell_agent
from dtlab.ranks.worker import leave

__all__ = ["put_back", "run"]

WANTED = "DTLAB_SET_"


def put_back(environ: MutableMapping[str, str]) -> None:
    """Variables of the job that a driver of the SDK has overwritten take their values again.

    To be called before the ranks join: NCCL reads them then.

    >>> environ = {"NCCL_DEBUG": "WARN", "DTLAB_SET_NCCL_DEBUG": "INFO"}
    >>> put_back(environ)
    >>> environ["NCCL_DEBUG"]
    'INFO'
    """
    for name in list(environ):
        if name.startswith(WANTED):
            environ[name.removeprefix(WANTED)] = environ[name]


def run(words: Sequence[str]) -> None:
    """Run the script ``words[0]`` with the arguments that follow."""
    put_back(os.environ)
    script = words[0]
    sys.argv = list(words)
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            tell_agent(stop.code)
        raise


if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        record(run)(sys.argv[1:])
    except SystemExit as stop:
        if stop.code:
            raise
    leave(0)
