"""Reads the Python stacks that ``faulthandler`` writes when a rank crashes in C code or gets a signal."""

import linecache
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtlab.ranks.rank_state import Frame

_THIS_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.+)')
_UNLIKE_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_STACK = re.compile(r"(Current thread|Thread|Stack) .*\(most recent call first\):")


@dataclass(frozen=True)
class Dump:
    """A stack found in a rank's output, innermost frame last, and the lines that came before it."""

    frames: tuple[Frame, ...]
    before: list[str]


def read(text: str) -> Dump:
    """Split output into what the rank printed and the last stack in it: faulthandler puts the one that
    matters last.

    Example:
        >>> dump = read('hello\\nFatal Python error: Aborted\\n\\nStack (most recent call first):\\n'
        ...             '  File "a.py", line 3 in step\\n')
        >>> dump.before, dump.frames[-1].function
        (['hello'], 'step')
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    starts = [number for number, line in enumerate(lines) if _STACK.match(line)]
    if not starts:
        return Dump((), _printed(lines))
    frames = []
    for line in lines[starts[-1] + 1 :]:
        found = _FRAME.match(line)
        if found is None:
            break
        file, number, function = found[1], int(found[2]), found[3]
        if os.path.dirname(file) == _THIS_PACKAGE or file == "<string>":
            break
        frames.append(Frame(file, number, function, linecache.getline(file, number).strip()))
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return Dump(tuple(reversed(frames)), _printed(lines[: min(fatal + starts)]))


def told(path: Path) -> bytes:
    """What a rank's crash file says, as lines for its log: each fatal error with the one stack that matters.

    That is the stack of the thread that crashed, or of the main thread where a thread of C++ code did.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return b""
    found = []
    for block in re.split(r"^(?=Fatal Python error)", text, flags=re.MULTILINE)[1:]:
        fatal, _, rest = block.partition("\n")
        stacks = [part for part in re.split(r"\n\s*\n", rest) if _STACK.match(part.strip())]
        current = [
            part for part in stacks if part.strip().startswith("Current thread") and _FRAME.search(part)
        ]
        chosen = [*stacks, *current][-1:]
        found.append("\n".join([fatal, "", *(part.strip("\n") for part in chosen), ""]))
    return "\n".join(found).encode()


def unlike_sizes(lines: Sequence[str]) -> str | None:
    """In words, what gloo says before it ends a process that was sent more than it expected; else None.

    Example:
        >>> unlike_sizes(["what(): ... op.preamble.length <= op.nbytes. 8 vs 4. Received data size ..."])
        'the ranks gave tensors of unlike sizes to the same collective (8 bytes came where 4 were expected)'
    """
    for line in lines:
        sizes = _UNLIKE_SIZES.search(line)
        if sizes is not None:
            return (
                "the ranks gave tensors of unlike sizes to the same collective "
                f"({sizes[1]} bytes came where {sizes[2]} were expected)"
            )
    return None


def read_file(path: Path) -> tuple[Frame, ...]:
    """The stack in a file, empty if there is none."""
    try:
        return read(path.read_text(errors="replace")).frames
    except OSError:
        return ()


def _printed(lines: list[str]) -> list[str]:
    # after a carriage return a terminal writes over the line
    return [line.rsplit("\r", 1)[-1] for line in lines if line.strip()]
