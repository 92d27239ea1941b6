"""Catches what processes write to the terminal behind the notebook's back (lesson 02).

A child process inherits the file descriptor of standard error, not Python's `sys.stderr`. What it writes
there goes to the kernel's terminal or log, or into the cell, as the front end likes. Here it is caught.
"""

from __future__ import annotations

import os
import sys
import tempfile
from types import TracebackType


class terminal_output:
    """Context manager: `.text` is what this process's children wrote to standard error inside the block.

    >>> import subprocess
    >>> with terminal_output() as terminal:
    ...     _ = subprocess.run(["sh", "-c", "echo gone >&2"])
    >>> terminal.last_line
    'gone'
    """

    def __init__(self) -> None:
        self.text = ""

    @property
    def last_line(self) -> str:
        """The last line that is not blank, or an empty text."""
        return next((line for line in reversed(self.text.splitlines()) if line.strip()), "")

    def __enter__(self) -> terminal_output:
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._saved = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stderr.flush()
        os.dup2(self._saved, 2)
        os.close(self._saved)
        with self._file as file:
            file.seek(0)
            self.text = file.read().decode(errors="replace")
