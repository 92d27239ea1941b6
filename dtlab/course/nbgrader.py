"""Lessons as nbgrader assignments: what an instructor hands out, collects and marks with nbgrader.

- `source/NN_slug/NN_slug.ipynb` is what `nbgrader generate_assignment` reads: exercises are solution cells
  with nbgrader's own markers, checks are autograded tests, set-up cells are locked, the rest is the reader's.
- A check that is still to do says so and raises nothing, so that "restart and run all" goes through in the
  copy handed out. The hidden test behind it turns that into 0 points when nbgrader marks.
- A lesson without a check (the start page) is left out. nbgrader itself is not needed to write any of this.

The format: https://nbgrader.readthedocs.io/en/stable/contributor_guide/metadata.html, schema version 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtlab.course.build import CELL_TIMEOUT_SECONDS, METADATA, write_notebook
from dtlab.course.shape import author_errors
from dtlab.course.source import BEGIN, TODO, Cell, Lesson, assigned_at_top, cell_ids, check_calls, lessons
from dtlab.errors import UserError
from dtlab.files import appears_whole, require_writable_folder

__all__ = ["POINTS", "assignment", "export"]

POINTS = 10  # for each exercise
SCHEMA = 3
_LOCKED = {"hide-input", "remove-cell"}

CONFIG = f'''"""nbgrader's settings for this course; written by `python -m dtlab.course export --nbgrader`."""

import os
from pathlib import Path

c = get_config()  # noqa: F821, which nbgrader puts here
c.CourseDirectory.course_id = "dtlab"
c.ClearSolutions.code_stub = {{"python": '{TODO}\\nraise NotImplementedError("to do")'}}
c.Execute.timeout = {CELL_TIMEOUT_SECONDS}  # seconds a cell; a check may start four ranks

# The kernels that nbgrader starts: on the CPU, one thread a rank; the marker's own progress is left alone.
os.environ.update(CUDA_VISIBLE_DEVICES="", DTLAB_STATIC="1", OMP_NUM_THREADS="1", DTLAB_COURSE_STRICT="0")
os.environ["DTLAB_PROGRESS"] = str(Path(__file__).resolve().parent / ".progress.json")
'''


def assignment(lesson: Lesson) -> Any:
    """The lesson as nbgrader's source notebook (nbformat 4.5), a pure function of the source.

    >>> notebook = assignment(lessons(["02"])[0])  # doctest: +SKIP
    >>> notebook.cells[1].metadata.nbgrader.grade_id  # doctest: +SKIP
    '02-setup-1'
    """
    from nbformat import v4

    ids, names = cell_ids(lesson), _GradeIds(lesson)
    cells = []
    for cell in lesson.cells:
        if "solution" in cell.tags:
            continue
        metadata: dict[str, Any] = {"tags": list(cell.tags)} if cell.tags else {}
        if _LOCKED & set(cell.tags):
            metadata["jupyter"] = {"source_hidden": True}
        text, role = cell.text, names.role_of(cell)
        if role is not None:
            metadata["nbgrader"] = role
        if role is not None and role["solution"]:
            text = _with_names_first(text)
        elif role is not None and role["grade"]:
            text = _with_hidden_test(text)
        make = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
        cells.append(make(text, id=ids[cell.number], metadata=metadata))
    return v4.new_notebook(cells=cells, metadata=METADATA)


def export(folder: Path, numbers: Iterable[str] = (), *, root: Path | None = None) -> list[Path]:
    """Write a course folder for nbgrader with these lessons (all when none is named); returns the notebooks.

    Raises:
        UserError: `folder` holds something already (submissions and marks lie there), a source breaks a rule.
    """
    require_writable_folder(folder, "nbgrader")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"nbgrader = {str(folder)!r}: is not empty, and may hold marks; give a new one, copy its source/"
        )
    written = []
    with appears_whole(folder, "nbgrader") as beside:
        for lesson in lessons(tuple(numbers), root):
            errors = author_errors(lesson)
            if errors:
                raise UserError("\n".join(errors))
            if not any(_checked_in(cell) for cell in lesson.cells):
                continue
            place = Path("source", lesson.name, f"{lesson.name}.ipynb")
            write_notebook(assignment(lesson), beside / place)
            written.append(folder / place)
        if not written:
            raise UserError("lessons: none of these has an exercise to mark; name another, such as 02")
        (beside / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    return written


class _GradeIds:
    """nbgrader's metadata for each cell that has a role, with ids that no two cells share."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.checked = [(cell.number, name) for cell in lesson.cells for name in _checked_in(cell)]
        self.taken: dict[str, int] = {}

    def role_of(self, cell: Cell) -> dict[str, Any] | None:
        names = _checked_in(cell)
        if "exercise" in cell.tags:
            after = [name for number, name in self.checked if number > cell.number]
            return self._role(f"{after[0] if after else self.lesson.number}-answer", solution=True)
        if names:
            return {**self._role("-and-".join(names), grade=True), "points": POINTS * len(names)}
        if cell.kind == "code" and _LOCKED & set(cell.tags):
            return self._role(f"{self.lesson.number}-setup")
        return None

    def _role(self, name: str, *, solution: bool = False, grade: bool = False) -> dict[str, Any]:
        self.taken[name] = self.taken.get(name, 0) + 1
        return {
            "grade": grade,
            "grade_id": name if grade else f"{name}-{self.taken[name]}",
            "locked": not solution,
            "schema_version": SCHEMA,
            "solution": solution,
            "task": False,
        }


def _with_hidden_test(text: str) -> str:
    """The check, and what fails in nbgrader's hands when it was not passed."""
    names = [name for name, _ in check_calls(text)]
    lines = [
        "from dtlab.course import solved as _solved",
        *(f"assert _solved({n!r}), '{n}: not solved'" for n in names),
    ]
    return "\n".join([text, "### BEGIN HIDDEN TESTS", *lines, "### END HIDDEN TESTS"])


def _checked_in(cell: Cell) -> list[str]:
    """The exercises that a cell checks."""
    return [name for name, _ in check_calls(cell.text)] if cell.kind == "code" else []


def _with_names_first(text: str) -> str:
    """A region outside functions: its names are `...` before it, since nbgrader's stub only raises."""
    names = assigned_at_top(text)
    if not names:
        return text
    before, _, after = text.partition(BEGIN)
    return before + "\n".join([*(f"{name} = ..." for name in names), BEGIN]) + after
