"""Failure labs: `expect_failure` asserts that a run failed, and how, and shows the message it failed with."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import TracebackType

from dtlab.course.running import running


class LabError(AssertionError):
    """A failure lab did not fail as the lesson says. In a notebook only the message is shown."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class NothingFailed(LabError):
    """The block was meant to fail and did not."""


class OtherFailure(LabError):
    """The block failed, but with another error, another message or too late."""


# Two runs of one cell differ in these, and none of them helps the reader.
_VOLATILE = (
    (re.compile(r"[^\s\"\']*ipykernel_\d+/\d+\.py"), "<cell>"),
    (re.compile(r"<ipython-input-[^>]*>"), "<cell>"),
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x..."),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"\(127\.0\.0\.1, \d+\)"), "(127.0.0.1, <port>)"),
    (re.compile(r"\b\d+ ?ms\b"), "<time> ms"),
    (re.compile(r"\bprocess \d+ on [\w.-]+"), "process <pid> on <host>"),
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
)


class expect_failure:
    """Context manager that passes only when its block raises `error` whose message matches `match`.

    - `error`: exception class, or tuple of classes. `match`: regular expression searched in the message.
    - `within`: seconds that the failure may take; a later one is refused, because a lesson that waits
      for a default timeout of minutes teaches nothing.
    - `explain`: what to say about the message, either one text or `{fragment: explanation}`; a fragment
      that is not in the message is refused, so that the explanation cannot drift from the error. Where the
      message depends on which of two ranks is first, the key is a tuple of fragments: each of its messages
      has one of them, and the first that is there is shown.
    - `lines`: most lines of the message to show.

    After the block: `.error`, `.message` (with addresses, ports and cell paths made stable), `.seconds`.
    Raises NothingFailed or OtherFailure.

    >>> with expect_failure(ZeroDivisionError, match="division", within=5) as failure:
    ...     1 / 0
    It failed, as it should. The message at work would be:
      | ZeroDivisionError: division by zero
    """

    def __init__(
        self,
        error: type[BaseException] | tuple[type[BaseException], ...],
        *,
        match: str | None = None,
        within: float | None = None,
        explain: str | Mapping[str | tuple[str, ...], str] | None = None,
        lines: int = 12,
    ) -> None:
        self.expected = error
        self.match = match
        self.within = within
        self.explain = explain
        self.lines = lines
        self.error: BaseException | None = None
        self.message = ""
        self.seconds = 0.0

    def __enter__(self) -> expect_failure:
        self._start = time.perf_counter()
        self._running = running("the failure")
        self._running.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.seconds = time.perf_counter() - self._start
        self._running.__exit__(kind, error, trace)
        wanted = self._wanted()
        if error is None:
            raise NothingFailed(f"this cell was meant to fail with {wanted}, and nothing failed")
        if not isinstance(error, self.expected):
            if not isinstance(error, Exception):
                return False  # KeyboardInterrupt, SystemExit: the reader's, not the lab's
            raise OtherFailure(f"expected {wanted}, got {type(error).__name__}: {error}") from error
        self.error = error
        self.message = stable(str(error))
        if self.match is not None and not re.search(self.match, self.message):
            raise OtherFailure(
                f"{type(error).__name__} came, but its message does not match {self.match!r}: {self.message}"
            ) from error
        if self.within is not None and self.seconds > self.within:
            raise OtherFailure(
                f"{type(error).__name__} came after {self.seconds:.1f} s; the lab allows {self.within:g} s"
            ) from error
        self._print(type(error).__name__)
        # The error is kept for the reader, its frames are not: they hold the tensors of the failed run.
        error.__traceback__ = None
        return True

    def _wanted(self) -> str:
        classes = self.expected if isinstance(self.expected, tuple) else (self.expected,)
        return " or ".join(c.__name__ for c in classes)

    def _print(self, name: str) -> None:
        lines = f"{name}: {self.message}".rstrip().split("\n")
        print("It failed, as it should. The message at work would be:")
        print("\n".join(f"  | {line}".rstrip() for line in lines[: self.lines]))
        if len(lines) > self.lines:
            print(f"  | ... and {len(lines) - self.lines} more lines")
        if isinstance(self.explain, str):
            print(f"\n{self.explain}")
        elif self.explain:
            print("\nReading it:")
            for fragments, meaning in self.explain.items():
                either = (fragments,) if isinstance(fragments, str) else fragments
                said = next((one for one in either if one in "\n".join(lines)), None)
                if said is None:
                    listed = " or ".join(map(repr, either))
                    raise OtherFailure(f"the lab explains {listed}, which the message does not contain")
                print(f'  "{said}": {meaning}')


def stable(message: str) -> str:
    """The message with addresses, ports, colours and kernel paths replaced by fixed words."""
    for pattern, word in _VOLATILE:
        message = pattern.sub(word, message)
    return message
