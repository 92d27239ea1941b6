"""The two kinds of message that dtlab addresses to its user."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Inside, a shown DtlabWarning is its line alone, without the place in dtlab that it came from.

    >>> with plain_warnings():
    ...     warnings.formatwarning(DtlabWarning("disk full"), DtlabWarning, "job.py", 1)
    'dtlab: disk full\\n'
    """
    before = warnings.formatwarning

    def formatted(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, DtlabWarning):
            return f"dtlab: {message}\n"
        return before(message, category, *place, **more)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


def one_line(text: str, most: int = 300) -> str:
    """``text`` on one line, of at most ``most`` characters: what somebody else wrote steers no terminal.

    >>> one_line("two\\nlines, \\x1b[2Ja screen cleared")
    'two lines, ?[2Ja screen cleared'
    """
    line = " ".join(text.split())[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def require_whole(name: str, value: object, least: int, what: str) -> None:
    """Refuse what is no whole number from ``least`` on: 4.0, NaN and True are none.

    Raises:
        UserError: with ``name``, the value, and ``what`` to give.

    >>> require_whole("start", 4, 1, "rows per rank")
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise UserError(f"{name} = {value!r}: give a whole number of {what}, {least} or more")


def require_number(name: str, value: object, fits: Callable[[float], bool], what: str) -> None:
    """Refuse what is no finite number, or one that does not fit.

    Raises:
        UserError: with ``name``, the value, and ``what`` to give.

    >>> require_number("share", 0.9, lambda x: 0 < x <= 1, "a share above 0, at most 1")
    """
    is_number = hasattr(value, "__float__") and not isinstance(value, bool | str)
    try:
        fine = is_number and math.isfinite(number := float(value)) and fits(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several numbers
        fine = False
    if not fine:
        raise UserError(f"{name} = {value!r}: give {what}")


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
