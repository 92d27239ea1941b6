"""Builds a lesson's two notebooks from its source: the learner's copy, and the executed solution.

- The learner's copy has stubs and no outputs; cells tagged `solution` are left out of it.
- The solution is executed from top to bottom in a fresh kernel, on the CPU, in strict mode (a check that is
  still to do fails). Text output of cells tagged `varies` is replaced by a note, since it differs every time.
- Both hold the plain `python3` kernelspec and no other metadata, and are written beside and renamed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dtlab.course.source import Lesson, cell_ids, lessons
from dtlab.errors import UserError

CELL_TIMEOUT_SECONDS = 120
VARIES_NOTE = "(differs on every machine and run: run the cell to see yours)\n"
METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def learner_notebook(lesson: Lesson) -> Any:
    """The learner's notebook (nbformat 4.5), a pure function of the source."""
    return _assemble(lesson, learner=True)


def solution_notebook(lesson: Lesson) -> Any:
    """The solution notebook before execution, a pure function of the source."""
    return _assemble(lesson, learner=False)


def _assemble(lesson: Lesson, learner: bool) -> Any:
    from nbformat import v4

    ids = cell_ids(lesson)
    cells = []
    for cell in lesson.cells:
        if learner and "solution" in cell.tags:
            continue
        text = cell.learner_text if learner else cell.solution_text
        metadata: dict[str, Any] = {"tags": list(cell.tags)} if cell.tags else {}
        if {"hide-input", "remove-cell"} & set(cell.tags):
            metadata["jupyter"] = {"source_hidden": True}
        make = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
        cells.append(make(text, id=ids[cell.number], metadata=metadata))
    return v4.new_notebook(cells=cells, metadata=METADATA)


def course_environment(strict: bool, progress: Path) -> dict[str, str]:
    """Environment in which notebooks are executed for a build or in CI: CPU, one thread, no front end."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "DTLAB_PRICES": "",  # the figures of the package, not those of whoever builds
        "DTLAB_COURSE_STRICT": "1" if strict else "0",
        "DTLAB_PROGRESS": str(progress),
        "DTLAB_STATIC": "1",
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def execute(
    notebook: Any,
    folder: Path,
    *,
    strict: bool = True,
    timeout: int = CELL_TIMEOUT_SECONDS,
    numbers: list[int] | None = None,
) -> Any:
    """Run every cell of `notebook` in a fresh kernel with working directory `folder`; returns the notebook.

    `numbers` gives the number under which each cell is reported, when it is not its place.

    Raises UserError naming the cell and its error when a cell fails or takes longer than `timeout` seconds.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=course_environment(strict, Path(scratch) / "progress.json"))
        except CellExecutionError as error:
            place, cell = next(
                (i, c)
                for i, c in enumerate(notebook.cells)
                if any(o.output_type == "error" for o in c.get("outputs", ()))
            )
            number = numbers[place] if numbers else place + 1
            raise UserError(f"cell {number} ({cell.id}) failed: {error.ename}: {error.evalue}") from error
        except (CellTimeoutError, DeadKernelError) as error:
            raise UserError(
                f"the notebook stopped: {type(error).__name__}: {str(error).splitlines()[0]}"
            ) from error
    return notebook


def clean_outputs(notebook: Any) -> Any:
    """Strip what differs between two runs of the same notebook; join streams that arrived in pieces."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "display_data":
                output.pop("transient", None)
        if "varies" in cell.metadata.get("tags", ()):
            cell.outputs = _without_text(cell.outputs)
    notebook.metadata = type(notebook.metadata)(METADATA)
    return notebook


def _joined(outputs: Iterable[Any]) -> list[Any]:
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _without_text(outputs: Iterable[Any]) -> list[Any]:
    from nbformat import v4

    images = [o for o in outputs if any(key.startswith("image/") for key in o.get("data", {}))]
    dropped = len(images) < len(list(outputs))
    return ([v4.new_output("stream", name="stdout", text=VARIES_NOTE)] if dropped else []) + images


def write_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook as JSON beside `path` and rename it into place."""
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(nbformat.writes(notebook, version=4, indent=1).rstrip("\n") + "\n", encoding="utf-8")
    os.replace(beside, path)


def build(numbers: Iterable[str] = (), *, root: Path | None = None, run: bool = True) -> list[Path]:
    """Build the notebooks of these lessons (all when none is named) and return the files written.

    With `run=False` only the learner's notebooks are built. Raises UserError, naming the lesson and the
    cell, when the source breaks an author's rule or a solution cell fails; nothing is written then.
    """
    from dtlab.course.shape import author_errors

    written = []
    for lesson in lessons(tuple(numbers), root):
        errors = author_errors(lesson)
        if errors:
            raise UserError("\n".join(errors))
        learner = learner_notebook(lesson)
        solution = None
        if run:
            solution = executed_solution(lesson)
        write_notebook(learner, lesson.learner_path)
        written.append(lesson.learner_path)
        if solution is not None:
            write_notebook(solution, lesson.solution_path)
            written.append(lesson.solution_path)
    return written


def executed_solution(lesson: Lesson) -> Any:
    """The solution notebook of `lesson`, executed in its own folder and cleaned."""
    lesson.solution_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return clean_outputs(execute(solution_notebook(lesson), lesson.solution_path.parent))
    except UserError as error:
        raise UserError(f"{lesson.name}: {error}") from error.__cause__


def summary(paths: Iterable[Path]) -> Mapping[str, int]:
    """Size in bytes of each built file by its name, for the command line."""
    return {str(path): path.stat().st_size for path in paths}
