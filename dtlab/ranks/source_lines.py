"""The user's source lines around a place in a stack, also when they exist only in a notebook cell."""

import linecache
import os
import sysconfig

from dtlab.ranks.rank_state import Frame, short_file

_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)
_DTLAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The broken trainers of lesson 12 stand for a user's script: their lines are what the reader must see.
_SCRIPTS = {os.path.join(_DTLAB, "course", "clinic.py")}


def is_users(file: str) -> bool:
    """Whether a file is the user's own: not Python's, not an installed package's, not dtlab's."""
    if file.startswith("<frozen"):
        return False
    path = os.path.realpath(file)
    if path in _SCRIPTS:
        return True
    return not path.startswith((*_LIBRARIES, _DTLAB)) and f"{os.sep}site-packages{os.sep}" not in path


def is_dtlabs(file: str) -> bool:
    """Whether a file is part of dtlab, the trainers of lesson 12 included."""
    return os.path.realpath(file).startswith(_DTLAB)


def place(frame: Frame) -> str:
    """``Cell In[3], line 5, in train`` or ``train.py, line 5, in train``."""
    return f"{short_file(frame.file)}, line {frame.line}, in {frame.function}"


def with_cell_names(text: str) -> str:
    """A rank knows a notebook's cell by a number only; here it gets its name, ``Cell In[3]``."""
    for file in linecache.cache:
        short, plain = short_file(file), os.path.basename(file)
        if short != plain and plain in text:
            text = text.replace(plain, short)
    return text


def excerpt(frame: Frame, around: int = 2) -> list[str]:
    """Numbered lines around the frame's line, that one marked with ``-->``; empty without a source."""
    lines = linecache.getlines(frame.file)
    if not lines:
        return [f"--> {frame.line} {frame.source}"] if frame.source else []
    first = max(1, frame.line - around)
    last = min(len(lines), frame.line + around)
    width = len(str(last))
    return [
        f"{'-->' if number == frame.line else '   '} {number:>{width}} {lines[number - 1].rstrip()}".rstrip()
        for number in range(first, last + 1)
    ]
