"""Tests the checks themselves: the solution in the source passes, every wrong answer is refused.

- The solution and the arguments of `check(...)` are taken from the lesson source: the statements that the
  check needs are found by name, so a check is tested with what the notebook really runs.
- A mutant is `edit(old, new)`, applied to the exercise cells of the source, or any value or function.
- Every exercise is also tried with answers that need no thought: None, `...`, constants, an echo of the
  input, and the references themselves. None of them may pass.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import linecache
import symtable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtlab.course.checks import CheckFailed, check, find_exercise
from dtlab.course.source import Lesson, bound_names
from dtlab.course.source import check_calls as calls_in

MIN_MUTANTS = 3


@dataclass(frozen=True)
class Edit:
    """A wrong answer made from the solution by replacing text in its exercise cells."""

    old: str
    new: str


def edit(old: str, new: str) -> Edit:
    """The solution with `old` replaced by `new`; `old` must occur in an exercise cell."""
    return Edit(old, new)


def check_calls(lesson: Lesson) -> dict[str, tuple[ast.Call, int]]:
    """Every `check("NN-name", answer, ...)` of the source: the call and the number of its cell."""
    return {
        name: (call, cell.number)
        for cell in lesson.cells
        if cell.kind == "code"
        for name, call in calls_in(cell.solution_text)
    }


def answer_of(lesson: Lesson, name: str, change: Edit | None = None) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of exercise `name`'s check, answer first, evaluated from the source (with an edit).

    Raises ValueError when the edit does not fit the source or there is no such check.
    """
    calls = check_calls(lesson)
    if name not in calls:
        raise ValueError(f"{lesson.name} has no check({name!r}, answer)")
    call, last = calls[name]
    needed = _names_read(call) - {"check"}
    pieces: list[tuple[str, ast.stmt]] = []
    edited = False
    for cell in reversed([c for c in lesson.cells if c.kind == "code" and c.number <= last]):
        text = cell.solution_text
        changes = change is not None and "exercise" in cell.tags and change.old in text
        if change is not None and changes:
            text = text.replace(change.old, change.new)
        for statement in reversed(ast.parse(text).body):
            bound = set(bound_names(ast.Module([statement], []), 0, statement.end_lineno or 0))
            if bound & needed:
                pieces.insert(0, (text, statement))
                needed |= _names_read(statement)
                edited |= changes
    if change is not None and not edited:
        raise ValueError(f"edit({change.old!r}, ...) occurs nowhere in the exercise cells that {name} checks")
    return _evaluate(lesson, name, pieces, call)


def _names_read(node: ast.stmt | ast.expr) -> set[str]:
    """Global names that a statement reads; names local to a function do not count."""
    names: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "<lesson>", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
        tables += table.get_children()
    return names


def _evaluate(
    lesson: Lesson, name: str, pieces: list[tuple[str, ast.stmt]], call: ast.Call
) -> tuple[list[Any], dict[str, Any]]:
    # A module name that cannot be imported makes cloudpickle send the functions by value, as from a notebook.
    space: dict[str, Any] = {"__name__": f"lesson_{lesson.name}"}
    with contextlib.redirect_stdout(io.StringIO()):
        for number, (text, statement) in enumerate(pieces):
            file = f"<{name} {number}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(ast.Module([statement], []), file, "exec"), space)

        def value(node: ast.expr) -> Any:
            return eval(compile(ast.Expression(node), "<check>", "eval"), space)

        arguments = [value(node) for node in call.args[1:]]
        return arguments, {k.arg: value(k.value) for k in call.keywords if k.arg}


def verdict(name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> str:
    """ "passed", "to do", or "refused: message"."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return "passed" if check(name, *arguments, **keywords) else "to do"
        except CheckFailed as error:
            return f"refused: {error}"


def thoughtless_answers(name: str, right: Any) -> dict[str, Any]:
    """Answers that nobody thought about, shaped like the right one."""
    answers: dict[str, Any] = {"None": None, "...": ..., "0": 0, "1": 1, "empty list": [], "empty text": ""}
    if isinstance(right, Mapping):
        answers |= {"the right keys, all 0": dict.fromkeys(right, 0), "all None": dict.fromkeys(right)}
    elif isinstance(right, list | tuple):
        answers |= {"all 0": [0] * len(right), "all None": [None] * len(right)}
    elif callable(right):
        answers |= {
            "returns None": lambda *a, **k: None,
            "returns 0": lambda *a, **k: 0,
            "returns True": lambda *a, **k: True,
            "returns its input": lambda *a, **k: a[0] if a else None,
        }
    for dotted in find_exercise(name).references:
        module, _, attribute = dotted.rpartition(".")
        reference = getattr(importlib.import_module(module), attribute)
        answers[f"the reference {dotted}"] = reference
        if callable(reference):
            answers[f"calls {dotted}"] = _caller(reference)
    return answers


def _caller(reference: Any) -> Any:
    def answer(*arguments: Any, **keywords: Any) -> Any:
        return reference(*arguments, **keywords)

    answer.__module__ = "answer"  # the reader's, not dtlab's: calls of library code are its own affair
    return answer


def problems(lesson: Lesson, mutants: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Everything wrong with the checks of one lesson, one line each; empty when all is well."""
    found = [
        f"{name}: has mutants but no check in {lesson.name}"
        for name in set(mutants) - set(check_calls(lesson))
    ]
    for name in check_calls(lesson):
        find_exercise(name)
        wrong = mutants.get(name, {})
        if len(wrong) < MIN_MUTANTS:
            found.append(f"{name}: {len(wrong)} wrong answers, at least {MIN_MUTANTS} are needed")
        found += exercise_problems(lesson, name, wrong)
    return found


def exercise_problems(lesson: Lesson, name: str, wrong: Mapping[str, Any]) -> list[str]:
    """What is wrong with one check, given its wrong answers by a name that says what is wrong with each."""
    arguments, keywords = answer_of(lesson, name)
    found = []
    said = verdict(name, arguments, keywords)
    if said != "passed":
        return [f"{name}: the solution in {lesson.name} is not accepted: {said}"]
    for label, mutant in wrong.items():
        if isinstance(mutant, Edit):
            given, named = answer_of(lesson, name, mutant)
        else:
            given, named = [mutant, *arguments[1:]], keywords
        said = verdict(name, given, named)
        if not said.startswith("refused: "):
            found.append(f"{name}: wrong answer {label!r} gives {said!r}, not a refusal")
    for label, answer in thoughtless_answers(name, arguments[0]).items():
        if verdict(name, [answer, *arguments[1:]], keywords) == "passed":
            found.append(f"{name}: accepts an answer without thought: {label}")
    return found
