"""Reads one lesson source, `notebooks/src/NN_slug.py`, and gives the cells of its two notebooks.

- A source is py:percent text. Tags are the only cell metadata an author writes.
- Code between `### BEGIN SOLUTION` and `### END SOLUTION` goes to the solution notebook; the learner's
  copy gets a stub instead: inside a function it raises NotImplementedError, elsewhere every name that the
  region assigns becomes `...`, so that "restart and run all" still works.
- Cell ids come from the lesson and the cell's text, so an edit changes one id and no other.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from dtlab.errors import UserError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
TODO = "# to do: your code"
TAGS = frozenset(
    {
        "exercise",
        "hint",
        "solution",
        "check",
        "lab-failure",
        "gpu-optional",
        "hide-input",
        "remove-cell",
        "nbval-check-output",
        "varies",
    }
)


@dataclass(frozen=True)
class Cell:
    """One cell of a source: its place (from 1), kind ("code" or "markdown"), text and tags."""

    number: int
    kind: str
    text: str
    tags: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()  # metadata keys other than tags: an author's error

    @property
    def solution_text(self) -> str:
        """The text without the marker lines."""
        return "\n".join(x for x in self.text.split("\n") if x.strip() not in (BEGIN, END))

    @property
    def learner_text(self) -> str:
        """The text with every solution region replaced by its stub."""
        return stub(self.text) if self.kind == "code" else self.text


@dataclass(frozen=True)
class Lesson:
    """One lesson source and where its notebooks go."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def learner_path(self) -> Path:
        return self.path.parent.parent / f"{self.name}.ipynb"

    @property
    def solution_path(self) -> Path:
        return self.path.parent.parent / "solutions" / f"{self.name}.ipynb"


def notebooks_root() -> Path:
    """The folder `notebooks/` of this checkout, found from the working directory, then from the package."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            found = folder / "notebooks"
            if (found / "src").is_dir() or built_notebooks(found):
                return found
    raise UserError("notebooks/ not found: run this inside a checkout of the course")


def built_notebooks(folder: Path) -> list[Path]:
    """The learners' notebooks in `folder`, in the order of the lessons."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def read_lesson(path: Path) -> Lesson:
    """Read one source. Raises UserError: a file not named NN_slug.py or not py:percent; no jupytext."""
    from dtlab.course.notebook_format import import_nbformat

    import_nbformat()
    try:
        import jupytext
    except ImportError:
        raise UserError(
            "jupytext, which reads the sources of the lessons, is not installed; pip install 'dtlab[dev]'"
        ) from None
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem):
        raise UserError(f"lesson source {path.name!r}: name it NN_slug.py, for example 02_collectives.py")
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    cells = []
    for number, cell in enumerate(notebook.cells, 1):
        tags = tuple(cell.metadata.get("tags", ()))
        extra = tuple(key for key in cell.metadata if key not in ("tags", "lines_to_next_cell"))
        cells.append(Cell(number, cell.cell_type, cell.source, tags, extra))
    if not cells:
        raise UserError(f"lesson source {path.name!r} has no cells: start a cell with '# %%'")
    return Lesson(path, tuple(cells))


def lessons(numbers: tuple[str, ...] | list[str] = (), root: Path | None = None) -> list[Lesson]:
    """The lessons with these numbers ("02", "2" or "02_slug"), or all, in order."""
    folder = (root or notebooks_root()) / "src"
    if not folder.is_dir():
        raise UserError(f"{folder} not found: this copy of the course has no sources; take a whole checkout")
    paths = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not numbers:
        return [read_lesson(path) for path in paths]
    chosen = []
    for number in numbers:
        found = [p for p in paths if p.stem == number or p.stem[:2] == number.zfill(2)]
        if not found:
            have = ", ".join(p.stem[:2] for p in paths) or "none"
            raise UserError(f"lesson {number!r} has no source in {folder.name}/; there are: {have}")
        chosen += found
    return [read_lesson(path) for path in chosen]


def cell_ids(lesson: Lesson) -> dict[int, str]:
    """Id of every cell by its number: from lesson name, kind and text; repeats get their count mixed in."""
    seen: dict[tuple[str, str], int] = {}
    ids = {}
    for cell in lesson.cells:
        key = (cell.kind, cell.text)
        seen[key] = seen.get(key, 0) + 1
        digest = hashlib.sha256("\x00".join((lesson.name, *key, str(seen[key]))).encode()).hexdigest()
        ids[cell.number] = f"{lesson.number}-{digest[:12]}"
    return ids


def regions(text: str) -> list[tuple[int, int]]:
    """Line numbers (from 0) of each BEGIN and END marker. Raises ValueError when they do not pair up."""
    found: list[tuple[int, int]] = []
    opened: int | None = None
    for index, line in enumerate(text.split("\n")):
        if line.strip() == BEGIN:
            if opened is not None:
                raise ValueError(f"line {index + 1}: '{BEGIN}' inside a region that is still open")
            opened = index
        elif line.strip() == END:
            if opened is None:
                raise ValueError(f"line {index + 1}: '{END}' without '{BEGIN}'")
            found.append((opened, index))
            opened = None
    if opened is not None:
        raise ValueError(f"line {opened + 1}: '{BEGIN}' is never closed by '{END}'")
    return found


def stub(text: str) -> str:
    """The learner's text of a code cell: regions replaced by to-do stubs of the same indentation."""
    lines, pairs = text.split("\n"), regions(text)
    if not pairs:
        return text
    tree = ast.parse(text)
    for begin, end in reversed(pairs):
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        if _inside_function(tree, begin + 1):
            body = [TODO, 'raise NotImplementedError("to do")']
        else:
            body = [TODO, *[f"{name} = ..." for name in bound_names(tree, begin + 1, end + 1)]]
        lines[begin : end + 1] = [indent + line for line in body]
    return "\n".join(lines)


def assigned_at_top(text: str) -> list[str]:
    """Names that the solution regions outside functions bind, in order: what a stub must still define."""
    tree = ast.parse(text)
    outside = [pair for pair in regions(text) if not _inside_function(tree, pair[0] + 1)]
    return [name for begin, end in outside for name in bound_names(tree, begin + 1, end + 1)]


def check_calls(text: str) -> list[tuple[str, ast.Call]]:
    """Every `check("NN-name", answer, ...)` in a code cell's text: the exercise's name and the call."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check" and len(node.args) > 1:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.append((name.value, node))
    return found


def _inside_function(tree: ast.Module, line: int) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(node, functions) and node.lineno < line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def bound_names(tree: ast.AST, first: int, last: int) -> list[str]:
    """Names bound on lines `first` to `last`, outside functions and classes, in order of appearance."""
    names: list[str] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            here = first <= getattr(child, "lineno", first) <= last
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if here:
                    names.append(child.name)
                continue
            if isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                continue
            if here and isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.append(child.id)
            if here and isinstance(child, ast.Import | ast.ImportFrom):
                names.extend((a.asname or a.name).split(".")[0] for a in child.names)
            visit(child)

    visit(tree)
    return list(dict.fromkeys(names))
