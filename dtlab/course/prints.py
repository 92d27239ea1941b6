"""Keeps what an answer prints on rank 0, so that a check that refuses it can show it.

The ranks of a check run with `echo=False`: what they print goes to log files that a reader never sees. A
`print` is how people debug, so the answer that the check runs on ranks notes its prints on rank 0 beside.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TextIO

MOST_LINES = 20
_MOST_TEXT = 100_000  # a loop that prints for ever must not fill the disk


class RankPrints:
    """Context manager: `.watched(answer)` behaves as the answer; `.shown()` is what rank 0 printed in it."""

    def __enter__(self) -> RankPrints:
        self._folder = tempfile.TemporaryDirectory(prefix="dtlab-prints-")
        self._file = Path(self._folder.name) / "rank0"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def watched(self, answer: Any) -> Any:
        """The answer, noting its prints when it is a function; anything else as it is."""
        return _watched(answer, str(self._file), os.getpid()) if isinstance(answer, FunctionType) else answer

    def shown(self) -> str:
        """`your prints, rank 0:` and the first lines; empty when nothing was printed on a rank."""
        try:
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        if not lines:
            return ""
        more = len(lines) - MOST_LINES
        kept = [f"  {line[:200]}" for line in lines[:MOST_LINES]]
        return "\n".join(
            ["your prints, rank 0:", *kept, *([f"  ... and {more} more lines"] if more > 0 else [])]
        )


def _watched(answer: FunctionType, file: str, parent: int) -> Any:
    @functools.wraps(answer)
    def noted(*arguments: Any, **named: Any) -> Any:
        if os.getpid() == parent or os.environ.get("RANK") != "0":
            return answer(*arguments, **named)
        with _noting(file):
            return answer(*arguments, **named)

    return noted


@contextlib.contextmanager
def _noting(file: str) -> Iterator[None]:
    with open(file, "a", encoding="utf-8") as notes, contextlib.redirect_stdout(_Both(sys.stdout, notes)):
        yield


class _Both:
    """Standard output that also goes to a file; written through, since a rank may be killed."""

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out, self._notes = out, notes

    def write(self, text: str) -> int:
        if self._notes.tell() < _MOST_TEXT:
            self._notes.write(text)
            self._notes.flush()
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)
