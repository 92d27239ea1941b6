"""Says "running ..." in a cell that takes longer than two seconds, and takes it back when it is done.

Only a live notebook shows it: not a build, not a test, not a terminal, so that nothing of it is stored.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any

from dtlab.course.display import in_notebook
from dtlab.figures.style import is_static

AFTER_SECONDS = 2.0


class running:
    """Context manager around work that may take a while. `what` is what the reader waits for.

    >>> with running("the check"):
    ...     pass
    """

    def __init__(self, what: str, *, after: float = AFTER_SECONDS) -> None:
        self.what, self.after = what, after
        self._shown: Any = None
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> running:
        self._timer: threading.Timer | None = None
        if in_notebook() and not is_static():
            self._timer = threading.Timer(self.after, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock, contextlib.suppress(Exception):  # a message must not fail the work it is about
            self._over = True
            if self._shown is not None:
                self._shown.update({"text/plain": "", "text/html": ""}, raw=True)

    def _show(self) -> None:
        from IPython.display import display

        text = f"running {self.what} ..."
        with self._lock, contextlib.suppress(Exception):
            if not self._over:
                page = {"text/plain": text, "text/html": f"<em>{text}</em>"}
                self._shown = display(page, raw=True, display_id=True)
