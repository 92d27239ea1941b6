"""The learners' copy of the project: nothing of it answers an exercise, and its notebooks run there."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.course.build import build
from dtlab.course.handout import export
from dtlab.course.run import run
from dtlab.course.source import lessons, regions
from dtlab.course.verify import verify
from dtlab.errors import UserError

ROOT = Path(__file__).parents[2]
SHORT = 40  # characters without blanks: a line such as `return gradient` says nothing


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handout") / "course"
    export(folder, root=ROOT / "notebooks")
    return folder


def squeezed(text):
    return "".join(text.split())


def readable(path):
    """What a file shows its reader; of a check module without its hints, which a reader asks for."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    if "lessons" not in path.parts:
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "exercise":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "hints"]
    return ast.unparse(tree)


def solutions():
    for lesson in lessons((), ROOT / "notebooks"):
        for cell in lesson.cells:
            lines = cell.text.split("\n")
            for begin, end in regions(cell.text) if cell.kind == "code" else ():
                body = "\n".join(lines[begin + 1 : end])
                yield f"{lesson.name} cell {cell.number}", body


def test_no_solution_is_left(handout):
    kinds = (".py", ".ipynb", ".md", ".toml", ".json", ".txt")
    texts = {path: squeezed(readable(path)) for path in handout.rglob("*") if path.suffix in kinds}
    long = [(name, squeezed(body)) for name, body in solutions() if len(squeezed(body)) >= SHORT]
    assert len(texts) > 300
    assert len(long) > 40
    left = [
        f"{path.relative_to(handout)}: {name}"
        for name, body in long
        for path, text in texts.items()
        if body in text
    ]
    assert left == []


def test_no_markers_outputs_sources_mutants_or_tests_are_left(handout):
    names = {path.relative_to(handout).as_posix() for path in handout.rglob("*")}
    assert not [name for name in names if name.startswith(("tests", "notebooks/src", "notebooks/solutions"))]
    assert not [name for name in names if "mutant" in name or "__pycache__" in name or "/.git" in name]
    for notebook in (handout / "notebooks").glob("*.ipynb"):
        text = notebook.read_text()
        assert "BEGIN SOLUTION" not in text
        assert '"output_type"' not in text
    assert {"Makefile", "requirements.lock", "data/README.md", "dtlab/cost/data/instances.csv"} <= names


def test_links_of_the_pages_lead_somewhere(handout):
    assert "(docs/coverage.md)" not in (handout / "README.md").read_text()
    assert "(docs/lesson.png)" in (handout / "README.md").read_text()


def test_what_the_pages_and_make_name_is_in_the_copy(handout):
    pages = [page for page in handout.rglob("*.md") if "scaffold" not in page.parts]
    told = {page.relative_to(handout).as_posix(): page.read_text("utf-8") for page in pages}
    told["make help"] = subprocess.run(
        ["make", "help"], cwd=handout, capture_output=True, text=True, check=True
    ).stdout
    assert {"README.md", "CHANGELOG.md", "docs/studio.md", "examples/plans/README.md"} <= set(told)
    path = re.compile(
        r"(?<![\w/.-])(?:(?:tests|notebooks|docs|examples|benchmarks|tools|dtlab|\.ci)/[\w./-]*\w|[A-Z]+\.md)"
    )
    missing = {
        f"{page}: {name}"
        for page, text in told.items()
        for name in path.findall(text)
        if not (handout / name).exists()
    }
    assert missing == set()
    everything = "\n".join(told.values())
    assert "course export --" not in everything
    assert "for learners -->" not in everything
    assert "  make notebooks " not in everything
    assert "  make lab " in everything
    assert "show_progress=False)\n        sampler" in told["README.md"], "code is as it was"
    assert "\n\n\nclass Scores" in told["README.md"], "empty lines of code stay"


def test_parts_that_are_not_for_learners_are_marked_in_pairs():
    for name in ("README.md", "CHANGELOG.md", "examples/plans/README.md", "Makefile"):
        marks = re.findall(r"^(?:<!-- |# )(not for learners|end)(?: -->)?$", (ROOT / name).read_text(), re.M)
        assert marks, name
        assert marks == ["not for learners", "end"] * (len(marks) // 2), name


def test_notebooks_run_in_the_copy(handout):
    done = subprocess.run(
        [sys.executable, "-m", "dtlab.course", "run", "14"],
        cwd=handout,
        env={**os.environ, "PYTHONPATH": str(handout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "learner   14_cost_and_budgets.ipynb" in done.stdout


def test_plain_nbval_runs_a_notebook_of_the_copy_from_another_folder(handout, tmp_path):
    pytest.importorskip("nbval")
    environment = {
        **os.environ, "PYTHONPATH": str(handout), "DTLAB_PROGRESS": str(tmp_path / "progress.json"),
    }  # fmt: skip
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--nbval-lax",
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            "--dist",
            "loadfile",
        ]
        + [str(handout / "notebooks" / f"{name}.ipynb") for name in ("00_start_here", "14_cost_and_budgets")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_what_needs_the_sources_says_so_in_the_copy(handout, tmp_path):
    root = handout / "notebooks"
    for wanted in (
        lambda: build(root=root),
        lambda: verify(root=root),
        lambda: export(tmp_path / "again", root=root),
    ):
        with pytest.raises(UserError, match="this copy of the course has no sources"):
            wanted()
    with pytest.raises(UserError, match="lesson '77' has no notebook"):
        run(["77"], root=root)


def test_folder_that_holds_something_is_left_alone(handout, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["course", "export", "--learners", str(handout)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not empty" in line
