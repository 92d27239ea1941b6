"""Output of the ranks: taken at the file descriptor, shown as ``[Rank r] ...`` lines, kept in a bounded file.

- Everything a rank writes is caught, also from C++ libraries, because the rank's descriptors 1 and 2 are a
  pipe.
- Lines are printed through the caller's ``sys.stdout``, by the thread that called launch: so they reach the
  right notebook cell, also where the kernel does not capture descriptors.
- A rank's file holds the first ``FILE_LIMIT`` bytes and, when there was more, the last ``TAIL_LIMIT``.
"""

import collections
import contextlib
import re
import sys
from pathlib import Path

FILE_LIMIT = 8 << 20  # bytes from the start of a rank's output that its file keeps
TAIL_LIMIT = 64 << 10  # bytes from the end that it keeps besides
CELL_LIMIT = 1 << 20  # bytes per rank that go into one notebook cell
_LINE_LIMIT = 64 << 10  # an unfinished line longer than this is shown in pieces

# torch warns so on a machine without name service, on every rank; nothing is wrong.
_NOISE = re.compile(rb"^\[W[^\n]*The hostname of the client socket cannot be retrieved[^\n]*\n", re.M)
_NOISE_LIMIT = 512  # bytes of an unfinished line that may still become that warning

_PREFIXED = re.compile(r"\[Rank \d+\]")


class RankOutput:
    """The output of one rank."""

    def __init__(self, rank: int, path: Path, echo: bool) -> None:
        self.rank = rank
        self.path = path
        self._echo = echo
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()
        self._kept = 0
        self._dropped = 0
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_size = 0
        self._pending = b""
        self._held = b""
        self._room = CELL_LIMIT if _in_notebook() else None

    def feed(self, data: bytes) -> None:
        """Take what was read from the pipe: keep it, and print the lines that it completes."""
        data, self._held = self._held + data, b""
        start = data.rfind(b"\n") + 1
        if data[start : start + 2] == b"[W" and len(data) - start < _NOISE_LIMIT:
            data, self._held = data[:start], data[start:]
        self._take(_NOISE.sub(b"", data))

    def _take(self, data: bytes) -> None:
        self._keep(data)
        if not self._echo:
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _LINE_LIMIT:
            lines.append(self._pending)
            self._pending = b""
        self._show(lines)

    def close(self) -> None:
        """Print an unfinished last line and finish the file."""
        if self._file.closed:
            return
        held, self._held = self._held, b""
        self._take(held)
        if self._pending:
            self._show([self._pending])
            self._pending = b""
        if self._dropped:
            tail = b"".join(self._tail)
            gap = self._dropped - len(tail)
            self._file.write(f"\n[dtlab: {max(gap, 0)} bytes left out]\n".encode() + tail)
        self._file.close()

    def text(self) -> str:
        """What the file holds."""
        self._file.flush() if not self._file.closed else None
        return self.path.read_bytes().decode("utf-8", "replace")

    def tail(self) -> str:
        """The end of the output, for a rank that died without a report."""
        return b"".join(self._tail).decode("utf-8", "replace")

    def _keep(self, data: bytes) -> None:
        head = data[: max(0, FILE_LIMIT - self._kept)]
        self._file.write(head)
        self._kept += len(head)
        self._dropped += len(data) - len(head)
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= TAIL_LIMIT:
            self._tail_size -= len(self._tail.popleft())

    def _show(self, lines: list[bytes]) -> None:
        shown: list[str] = []
        for raw in lines:
            line = _visible(raw.decode("utf-8", "replace"))
            if self._room is not None:
                self._room -= len(line)
                if self._room < 0:
                    shown.append(f"[Rank {self.rank}] (more in {self.path})")
                    self._echo = False
                    break
            # dtlab's own logger has the prefix already
            shown.append(line if _PREFIXED.match(line) else f"[Rank {self.rank}] {line}")
        if shown:
            say("\n".join(shown))


def say(text: str) -> None:
    """Print for the user. A closed stdout must not end a running launch."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _visible(line: str) -> str:
    """What a terminal would show of a line that a progress bar rewrote with carriage returns."""
    parts = [part for part in line.rstrip("\r").split("\r") if part]
    return parts[-1] if parts else ""


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None
