"""Why a job failed, in the words of the rank that failed first: /opt/ml/output/failure (lesson 15).

SageMaker shows the first 1,024 characters of that file as the job's FailureReason. The SDK's driver writes
its own traceback there, which says that torchrun ended with 1.

Standard library only: this runs in the container's first process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["reason", "write_failure"]

MOST = 1024


def reason(error_file: Path, tail: Sequence[str], exit_code: int) -> str:
    """What to tell.

    Args:
        error_file: where torchrun's agent copies the root cause, if the rank left one.
        tail: the last lines that torchrun wrote to stderr.
        exit_code: of torchrun.

    >>> reason(Path("none"), ["x", "Root Cause (first observed failure):", "[0]:", "  exitcode  : -9"], 1)
    'a rank failed: exitcode  : -9'
    """
    try:
        message = json.loads(error_file.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return _from_report(tail, exit_code)
    if isinstance(message, str):
        return message
    first = str(message.get("message", ""))
    stack = str((message.get("extraInfo") or {}).get("py_callstack") or "").strip()
    return f"{first}\n\n{stack[-MOST:]}" if stack else first


def write_failure(output: Path, text: str) -> None:
    """Write the file; a disk that takes no more must not hide the exit code."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "failure").write_text(text + "\n", encoding="utf-8")
    except OSError:
        pass


def _from_report(tail: Sequence[str], exit_code: int) -> str:
    """From torchrun's own report, when the rank was killed and could leave nothing."""
    tail = list(tail)  # a deque takes no slice
    starts = [number for number, line in enumerate(tail) if line.startswith("Root Cause")]
    if starts:
        facts = [line.strip() for line in tail[starts[-1] + 1 :]]
        kept = [line for line in facts if re.match(r"(rank|host|exitcode|traceback)\s*:", line)]
        if kept:
            return "a rank failed: " + ", ".join(kept)
    said = [line for line in tail if line.strip()]
    return f"torchrun ended with exit code {exit_code}" + (f": {said[-1].strip()}" if said else "")
