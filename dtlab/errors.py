"""The two kinds of message that dtlab addresses to its user."""

from __future__ import annotations

import os


class UserError(ValueError):
    """Something the user gave is wrong.

    The message is one line that names the field, its value and the way out. The command line prints it
    as it is and ends with exit code 2; a notebook shows it with the line of the cell that led to it.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message and the user's own line; dtlab's frames help nobody."""
        line = users_line(self)
        return [f"{type(self).__name__}: {self}", *([f"  {line}"] if line else [])]


class DtlabWarning(UserWarning):
    """Every warning of dtlab has this category, so that one filter reaches all of them."""


def users_line(error: BaseException) -> str:
    """`line 3: launch(train, 0)`, the innermost line that was not written in dtlab or a library; or ""."""
    import linecache
    import sysconfig
    import traceback

    folders = (os.path.dirname(os.path.abspath(__file__)), sysconfig.get_path("stdlib"))
    others = ("<frozen", *(folder + os.sep for folder in folders))
    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        library = file.startswith(others) or f"{os.sep}site-packages{os.sep}" in file
        source = "" if library else linecache.getline(file, number, frame.f_globals).strip()
        if source:
            found = f"line {number}: {source}"
    return found
