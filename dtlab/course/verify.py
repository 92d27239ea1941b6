"""Finds where the built notebooks are not what their sources give, and what they should not hold.

- Sources, ids, tags and metadata are compared exactly; outputs only in cells tagged `nbval-check-output`,
  and only when asked to execute.
- Stored outputs outside `varies` cells may hold no address, temporary path, process id, port, long float
  or time: nobody else will get the same. A time is fine in a cell whose output is compared: it is computed.
- A solution's cells were run in order: execution counts are 1..n. When asked to execute, each launch and each
  compared cell runs twice in a row and must give the same both times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from dtlab.course.build import clean_outputs, execute, learner_notebook, solution_notebook
from dtlab.course.shape import author_errors
from dtlab.course.source import Lesson, lessons
from dtlab.errors import UserError

CHECKED = "nbval-check-output"
VOLATILE = {
    "an address": re.compile(r"\b0x[0-9a-fA-F]{6,}"),
    "a temporary path": re.compile(r"/tmp/|/var/folders/|[\\/]Temp[\\/]|ipykernel_\d+"),
    "a process id": re.compile(r"\bpid\b\W{0,3}\d+", re.IGNORECASE),
    "a port": re.compile(r"(127\.0\.0\.1|localhost|\[?::1\]?):\d{2,}|\bport\W{0,3}\d{4,}", re.IGNORECASE),
    "a float of more than 8 digits": re.compile(r"\b\d+\.\d{9,}|\b(?=[\d.]{10,}\b)\d+\.\d+"),
}
TIME = re.compile(
    r"\b\d+\.\d+ ?(s|sec|seconds)\b|\b\d+(\.\d+)? ?(ms|us|µs|ns)\b|\b\d\d:\d\d:\d\d\b", re.IGNORECASE
)


def verify(
    numbers: Iterable[str] = (), *, root: Path | None = None, run: bool = False, author: bool = True
) -> list[str]:
    """Every problem of these lessons, one line each, naming notebook and cell; empty when all is well.

    With `run=True` each solution is executed again and the outputs of its compared cells must come out
    as they are stored. `author=False` leaves out the rules for authors.
    """
    problems = []
    for lesson in lessons(tuple(numbers), root):
        broken = author_errors(lesson)
        problems += broken if author else []
        if any("not plain Python" in error or "###" in error for error in broken):
            continue  # no notebook can be made from this source
        problems += _against_source(lesson.learner_path, learner_notebook(lesson), outputs=False)
        stored = _against_source(lesson.solution_path, solution_notebook(lesson), outputs=True)
        problems += stored
        if run and not stored:
            problems += _against_execution(lesson)
    return problems


def _read(path: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise UserError(f"{path.name} is not a notebook ({type(error).__name__}): build it again") from error


def _label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _against_source(path: Path, expected: Any, outputs: bool) -> list[str]:
    name, found = _label(path), _read(path)
    if found is None:
        return [f"{name}: not built; run: python -m dtlab.course build {path.name[:2]}"]
    problems = []
    if dict(found.metadata) != dict(expected.metadata):
        problems.append(
            f"{name}: notebook metadata is {dict(found.metadata)}; only kernelspec python3 belongs there"
        )
    if len(found.cells) != len(expected.cells):
        problems.append(
            f"{name}: {len(found.cells)} cells, its source gives {len(expected.cells)}; build it again"
        )
    for number, (cell, want) in enumerate(zip(found.cells, expected.cells, strict=False), 1):
        for key in ("cell_type", "source", "id", "metadata"):
            if cell.get(key) != want.get(key):
                what = f"{key} is not what its source gives"
                problems.append(f"{name} cell {number} ({want.id}): {what}; build it again")
                break
    code = [(n, c) for n, c in enumerate(found.cells, 1) if c.cell_type == "code"]
    if not outputs:
        stored = [n for n, c in code if c.outputs or c.execution_count is not None]
        return problems + [f"{name} cell {n}: a learner's notebook holds no outputs" for n in stored]
    for count, (number, cell) in enumerate(code, 1):
        if cell.execution_count != count:
            problems.append(
                f"{name} cell {number} ({cell.id}): execution count {cell.execution_count}, not {count}"
            )
        problems += [f"{name} cell {number} ({cell.id}): {p}" for p in output_problems(cell)]
    return problems


def texts(output: Any) -> Iterator[str]:
    """The texts of one output as a reader sees them: streams, text/plain, and HTML without its tags."""
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield "\n".join([output.ename, output.evalue, *output.traceback])
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            yield re.sub(r"<[^>]*>", " ", value) if kind == "text/html" else value


def output_problems(cell: Any) -> list[str]:
    """What the stored outputs of a solution cell hold that they should not."""
    tags = set(cell.metadata.get("tags", ()))
    if "varies" in tags:
        return []
    problems = []
    for output in cell.outputs:
        if output.output_type == "error":
            problems.append(f"stored an error: {output.ename}: {output.evalue}")
        if output.output_type == "stream" and output.name == "stderr" and "lab-failure" not in tags:
            first = output.text.strip().split("\n")[0]
            problems.append(f"wrote to stderr: {first!r}; fix the cause or tag the cell 'varies'")
        patterns = VOLATILE if CHECKED in tags else {**VOLATILE, "a time": TIME}
        for text in texts(output):
            for what, pattern in patterns.items():
                hit = pattern.search(text)
                if hit:
                    problems.append(f"output holds {what}: {hit[0]!r}; leave it out or tag the cell 'varies'")
    return problems


def _against_execution(lesson: Lesson) -> list[str]:
    """Run the solution with every launch and every compared cell run twice in a row; compare both times."""
    notebook, name = solution_notebook(lesson), _label(lesson.solution_path)
    plan = [
        (n, c, again) for n, c in enumerate(notebook.cells, 1) for again in range(2 if _runs_twice(c) else 1)
    ]
    notebook.cells = [_copy(cell) if again else cell for _, cell, again in plan]
    try:
        clean_outputs(execute(notebook, lesson.solution_path.parent, numbers=[n for n, _, _ in plan]))
    except UserError as error:
        return [f"{name} {error}"]
    stored = clean_outputs(_read(lesson.solution_path)).cells
    problems = []
    for (number, _, again), fresh in zip(plan, notebook.cells, strict=True):
        old = stored[number - 1]
        if CHECKED in old.metadata.get("tags", ()) and comparable(old) != comparable(fresh):
            what = "run a second time, output differs" if again else "output differs from the stored one"
            problems.append(f"{name} cell {number} ({old.id}): {what}: {_first_difference(old, fresh)}")
    return problems


def _runs_twice(cell: Any) -> bool:
    return cell.cell_type == "code" and ("launch(" in cell.source or CHECKED in cell.metadata.get("tags", ()))


def _copy(cell: Any) -> Any:
    again = deepcopy(cell)
    again.id = f"{cell.id}-again"
    return again


def comparable(cell: Any) -> list[Any]:
    """The outputs of a cell without images and counters."""
    kept: list[Any] = []
    for output in cell.outputs:
        if output.output_type == "stream":
            kept.append((output.name, output.text))
        elif "data" in output:
            kept.append({k: v for k, v in output.data.items() if not k.startswith("image/")})
    return kept


def _first_difference(old: Any, new: Any) -> str:
    before = "\n".join(t for o in old.outputs for t in texts(o)).split("\n")
    after = "\n".join(t for o in new.outputs for t in texts(o)).split("\n")
    for one, other in zip(before, after, strict=False):
        if one != other:
            return f"stored {one!r}, now {other!r}"
    return f"stored {len(before)} lines, now {len(after)}"
