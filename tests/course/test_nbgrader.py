"""Lessons as nbgrader assignments: its rules for metadata hold, and where it is installed it marks them."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from dtlab.cli import main
from dtlab.course.mutants import check_calls
from dtlab.course.nbgrader import POINTS, assignment, export
from dtlab.course.source import lessons, read_lesson
from dtlab.errors import UserError

SAMPLE = Path(__file__).parent / "sample"
ROOT = Path(__file__).parents[2]
# The rules of nbgrader's own schema and validator, version 3 (nbgrader/nbgraderformat/v3.json and v3.py).
KINDS = {
    "grade": bool,
    "grade_id": str,
    "locked": bool,
    "schema_version": int,
    "solution": bool,
    "task": bool,
}


def roles(notebook):
    return [(cell, cell.metadata.nbgrader) for cell in notebook.cells if "nbgrader" in cell.metadata]


def faults(notebook):
    found, ids = [], set()
    for cell, role in roles(notebook):
        wanted = KINDS | ({"points": int} if role["grade"] else {})
        if {name: type(value) for name, value in role.items()} != wanted or role["schema_version"] != 3:
            found.append(f"{role}: not the fields of version 3")
        if (
            not role["grade_id"].isascii()
            or not role["grade_id"].replace("-", "").isalnum()
            or role["grade_id"] in ids
        ):
            found.append(f"{role['grade_id']}: empty, taken, or with other letters")
        ids.add(role["grade_id"])
        if cell.cell_type != "code":
            found.append(f"{role['grade_id']}: only code has a role here")
        if ("### BEGIN SOLUTION" in cell.source) != role["solution"]:
            found.append(f"{role['grade_id']}: solution markers and role differ")
        if ("### BEGIN HIDDEN TESTS" in cell.source) != role["grade"]:
            found.append(f"{role['grade_id']}: hidden tests and role differ")
    return found


def test_every_lesson_keeps_nbgraders_rules_and_marks_every_exercise():
    for lesson in lessons((), ROOT / "notebooks"):
        notebook = assignment(lesson)
        nbformat.validate(notebook)
        assert faults(notebook) == []
        marked = {role["grade_id"]: role["points"] for _, role in roles(notebook) if role["grade"]}
        assert marked == dict.fromkeys(check_calls(lesson), POINTS)


def test_a_copy_of_a_role_is_a_fault():
    notebook = assignment(read_lesson(SAMPLE / "src" / "98_sample.py"))
    cell = next(cell for cell, role in roles(notebook) if role["grade"])
    notebook.cells.append(cell)
    assert faults(notebook) == ["98-messages: empty, taken, or with other letters"]


def test_command_writes_a_course_whole_and_never_over_marks(tmp_path, monkeypatch, capsys):
    shutil.copytree(SAMPLE, tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    assert main(["course", "export", "--nbgrader", "marks", "98"]) == 0
    assert "nbgrader generate_assignment 98_sample" in capsys.readouterr().out
    assert (tmp_path / "marks/source/98_sample/98_sample.ipynb").is_file()
    compile((tmp_path / "marks/nbgrader_config.py").read_text(), "nbgrader_config.py", "exec")
    for words, said in (
        (["--nbgrader", "marks", "98"], "is not empty"),
        (["98"], "give --nbgrader DIR"),
        (["98", "--learners", "x"], "only with --nbgrader"),
        (["--nbgrader", "x", "77"], "lesson '77' has no source"),
    ):
        assert main(["course", "export", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "notebooks"]


@pytest.mark.parametrize("command", ["export --nbgrader", "export --learners"])
def test_without_jupytext_one_line_says_what_to_install(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    assert main(["course", *command.split(), str(tmp_path / "course")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "jupytext" in line
    assert "pip install 'dtlab[dev]'" in line
    assert list(tmp_path.iterdir()) == []


def test_a_broken_source_leaves_nothing(tmp_path):
    shutil.copytree(SAMPLE, tmp_path / "notebooks")
    source = tmp_path / "notebooks/src/98_sample.py"
    source.write_text(source.read_text().replace("### END SOLUTION", ""))
    with pytest.raises(UserError, match="never closed"):
        export(tmp_path / "marks", root=tmp_path / "notebooks")
    assert not (tmp_path / "marks").exists()


@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed")
def test_nbgrader_gives_full_marks_to_the_solution_and_none_to_the_stub(tmp_path):
    course, name = tmp_path / "marks", "98_sample"
    export(course, root=SAMPLE)
    # nbgrader calls alembic by its name
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def nbgrader(*words):
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *words],
            cwd=course,
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    nbgrader("generate_assignment", name)
    released = json.loads((course / "release" / name / f"{name}.ipynb").read_text())
    source = json.loads((course / "source" / name / f"{name}.ipynb").read_text())
    text = "".join("".join(cell["source"]) for cell in released["cells"])
    assert "n * (n - 1)\n\n" not in text
    assert "HIDDEN TESTS" not in text
    solutions = {
        cell["metadata"]["nbgrader"]["grade_id"]: cell["source"]
        for cell in source["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution")
    }
    for who in ("stub", "solved"):
        folder = course / "submitted" / who / name
        folder.mkdir(parents=True)
        for cell in released["cells"] if who == "solved" else ():
            cell["source"] = solutions.get(
                cell["metadata"].get("nbgrader", {}).get("grade_id"), cell["source"]
            )
        (folder / f"{name}.ipynb").write_text(json.dumps(released))
    nbgrader("autograde", name)
    nbgrader("export", "--to", "marks.csv")
    rows = [line.split(",") for line in (course / "marks.csv").read_text().splitlines()]
    at = {column: rows[0].index(column) for column in ("student_id", "score", "max_score")}
    marks = {
        row[at["student_id"]]: (float(row[at["score"]]), float(row[at["max_score"]])) for row in rows[1:]
    }
    assert marks == {"stub": (0.0, POINTS), "solved": (POINTS, POINTS)}
