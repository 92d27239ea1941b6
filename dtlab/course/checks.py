"""Exercises and their checks: integers first, then equality, and a message that says where to look.

- `@exercise("02-ring", ...)` in `dtlab/course/lessons/l02.py` registers a check function.
- `check("02-ring", answer)` in the notebook runs it. Unsolved prints "to do: ..." and returns False.
  A wrong answer raises CheckFailed, whose traceback in a notebook is only its message, with what the answer
  printed on rank 0. A right answer prints what was compared, is recorded, and returns True.
- With DTLAB_COURSE_STRICT=1 (solution notebooks) an exercise that is still to do fails.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dtlab.course.compare import describe, difference
from dtlab.course.copies import copied_name
from dtlab.course.failure import stable
from dtlab.course.prints import RankPrints
from dtlab.course.progress import record_solved
from dtlab.course.running import running
from dtlab.course.told import told
from dtlab.errors import UserError


class CheckFailed(AssertionError):
    """An answer is wrong: what was compared, what came, what was expected, where to look."""

    def _render_traceback_(self) -> list[str]:
        return [f"Not yet. {self}"]


class ToDo(Exception):
    """An answer is still the stub."""


class Verdict(int):
    """1 when right, 0 when to do: as good as a bool, but shows nothing as the last line of a cell."""

    def _ipython_display_(self) -> None:
        pass


@dataclass(frozen=True)
class Exercise:
    """One registered exercise. `todo` finishes the sentence "to do: ..."."""

    name: str
    function: Callable[..., None]
    todo: str
    hints: tuple[str, str]
    references: tuple[str, ...]


_EXERCISES: dict[str, Exercise] = {}
_SOLVED: set[str] = set()


def exercise(
    name: str, *, todo: str, hints: tuple[str, str], references: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated `function(checks, answer, *context)` as the check of exercise `name`.

    - `name`: "NN-word", NN the lesson.
    - `todo`: what to do, shown while the exercise is unsolved.
    - `hints`: two texts of growing help.
    - `references`: dotted names of functions that do the job already ("dtlab.collectives.ring_all_reduce");
      handing one in, or calling it from the answer, is refused.
    """
    if len(hints) != 2:
        raise ValueError(f"exercise {name!r} needs two hints, has {len(hints)}")

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _EXERCISES[name] = Exercise(name, function, todo, hints, tuple(references))
        return function

    return register


def find_exercise(name: str) -> Exercise:
    """The registered exercise. Loads the module of its lesson first; raises UserError with near names."""
    if name not in _EXERCISES:
        _load(name[:2])
    if name not in _EXERCISES:
        near = difflib.get_close_matches(name, _EXERCISES, n=3) or sorted(_EXERCISES)
        raise UserError(f"exercise {name!r} is unknown; known here: {', '.join(near) or 'none'}")
    return _EXERCISES[name]


def _load(lesson: str) -> None:
    """Register the exercises of a lesson, "02"; one that has none of its own is no error."""
    module = f"dtlab.course.lessons.l{lesson}"
    try:
        if lesson.isdigit():
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise


def exercises_of(lesson: str) -> list[str]:
    """Names of the exercises of a lesson ("02"), in the order in which they were registered."""
    _load(lesson)
    return [name for name in _EXERCISES if name.startswith(f"{lesson}-")]


def solved(name: str) -> bool:
    """True when `check` accepted this exercise in this kernel: guards the cells that use the answer."""
    return name in _SOLVED


class Checks:
    """What a check function compares with: `integer` for counts, then `equal` for values.

    Counts come first because they say what went wrong ("6 messages, expected 3"), where a wrong value only
    says that something did. An integer after an `equal` is an error of the check's author.
    """

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._values_began = False

    def integer(self, what: str, got: Any, expected: int, *, look: str = "") -> None:
        """Compare a count exactly. `what` names it, `look` says where to look when it is wrong."""
        if self._values_began:
            raise RuntimeError(f"check {what!r}: integers come before values")
        _refuse_stub(got)
        if isinstance(got, bool) or not hasattr(got, "__index__"):
            raise CheckFailed(_message(what, f"expected the integer {expected}, got {describe(got)}", look))
        if int(got) != expected:
            raise CheckFailed(_message(what, f"got {int(got)}, expected {expected}", look))
        self.passed.append(f"{what}: {expected}")

    def equal(self, what: str, got: Any, expected: Any, *, tolerance: float = 0.0, look: str = "") -> None:
        """Compare values: numbers, text, tensors, arrays, and lists, tuples and dicts of them.

        `tolerance` is absolute and relative (as in `numpy.isclose`); 0 asks for exact equality.
        """
        self._values_began = True
        _refuse_stub(got)
        wrong = difference(got, expected, tolerance)
        if wrong:
            raise CheckFailed(_message(what, wrong, look))
        self.passed.append(what)

    def true(self, what: str, holds: bool, *, look: str = "") -> None:
        """Require a relation that is neither a count nor an equality ("orders of two epochs differ")."""
        self._values_began = True
        if not isinstance(holds, bool):
            raise RuntimeError(f"check {what!r}: give a bool, not {describe(holds)}")
        if not holds:
            raise CheckFailed(f"not so: {what}." + (f"\nWhere to look: {look}" if look else ""))
        self.passed.append(what)


def _message(what: str, wrong: str, look: str) -> str:
    return f"{what}: {wrong}." + (f"\nWhere to look: {look}" if look else "")


def _refuse_stub(got: Any) -> None:
    if got is None or got is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if got is None else "..."))


def require_float(what: str, got: Any) -> None:
    """Refuse what is no plain number, a tensor above all: it may hold the graph of a whole step."""
    _refuse_stub(got)
    if isinstance(got, bool) or not isinstance(got, Real):
        look = "loss.item() gives a float; a tensor keeps the graph of its step alive"
        raise CheckFailed(_message(what, f"expected a float, got {describe(got)}", look))


def is_stub(answer: Any) -> bool:
    """True for None, `...`, and a list, tuple or dict that still holds `...` or holds nothing but None."""
    if answer is None or answer is ...:
        return True
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, list | tuple) and len(answer):
        return any(item is ... for item in answer) or all(item is None for item in answer)
    return False


def check(name: str, answer: Any, *context: Any, **named: Any) -> Verdict:
    """Check an answer; extra arguments are handed on to the check function.

    Returns a true Verdict when right (and prints what was compared), a false one when still to do. Raises
    CheckFailed when wrong, UserError when the exercise is unknown or takes another number of arguments.
    """
    found = find_exercise(name)
    _require_arguments(found, answer, *context, **named)
    _SOLVED.discard(name)
    checks = Checks()
    if is_stub(answer):
        return _todo(found, "")
    copied = copied_name(answer, found.references)
    if copied:
        raise CheckFailed(f"the answer is {copied} itself, or calls it. Write it out: {found.todo}")
    with RankPrints() as prints, running("the check"):
        try:
            found.function(checks, prints.watched(answer), *map(prints.watched, context), **named)
        except ToDo as error:
            return _todo(found, str(error))
        except CheckFailed as error:
            raise _with(prints, str(error)) from error.__cause__
        except Exception as error:
            if _is_not_implemented(error):
                return _todo(found, "")
            raise _with(prints, told(error)) from error
    if not checks.passed:
        raise RuntimeError(f"the check of exercise {name!r} compared nothing")
    _SOLVED.add(name)
    record_solved(name, checks.passed)
    print(f"Right: {name}.")
    print("\n".join(f"  {line}" for line in checks.passed))
    return Verdict(True)


def _require_arguments(found: Exercise, *given: Any, **named: Any) -> None:
    signature = inspect.signature(found.function)
    try:
        signature.bind(None, *given, **named)
    except TypeError as error:
        _, first, *others = signature.parameters
        wanted = ", ".join([f"your {first}", *others])
        raise UserError(f"check({found.name!r}, ...): {error}; after the name it takes {wanted}") from None


def _with(prints: RankPrints, message: str) -> CheckFailed:
    printed = prints.shown()
    return CheckFailed(stable(message) + (f"\n{printed}" if printed else ""))


def _is_not_implemented(error: BaseException) -> bool:
    # An answer that runs on ranks comes back as a RankError that names the type of the rank's error.
    kind = getattr(error, "exception_type", None)
    names = (getattr(kind, "__name__", kind), type(error).__name__)
    return "NotImplementedError" in names


def _todo(found: Exercise, why: str) -> Verdict:
    message = f"to do: {found.todo}" + (f" ({why})" if why else "")
    if os.environ.get("DTLAB_COURSE_STRICT") == "1":
        raise CheckFailed(message)
    print(f"{message}\nHelp: hint({found.name!r})")
    return Verdict(False)
