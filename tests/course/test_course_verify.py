"""`verify`: drift between source and built files, and outputs that no other machine would give."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4

import dtlab
from dtlab.course.build import build
from dtlab.course.source import notebooks_root
from dtlab.course.verify import output_problems, verify

REPOSITORY = Path(dtlab.__file__).parent.parent


def change(path, edit):
    notebook = json.loads(path.read_text())
    edit(notebook)
    path.write_text(json.dumps(notebook))


def test_a_fresh_build_verifies_also_when_executed_again(sample):
    assert verify(root=sample, run=True) == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda n: n["cells"][4].update(source=["x = 1"]), "cell 5 (98-{id}): source is not"),
        (lambda n: n["cells"][4].update(id="hand-made"), "cell 5 (98-{id}): id is not"),
        (lambda n: n["cells"][4]["metadata"].update(tags=["varies"]), "cell 5 (98-{id}): metadata is not"),
        (lambda n: n["cells"].pop(), "cells, its source gives"),
        (lambda n: n["metadata"].update(instance_type="ml.t3.medium"), "notebook metadata is"),
        (lambda n: n["metadata"]["kernelspec"].update(name="conda-env"), "notebook metadata is"),
    ],
    ids=["source", "id", "tags", "cell missing", "instance metadata", "kernelspec"],
)
@pytest.mark.parametrize("name", ["98_sample.ipynb", "solutions/98_sample.ipynb"])
def test_every_kind_of_hand_edit_is_named_by_notebook_and_cell(sample, name, edit, said):
    path = sample / name
    wanted = json.loads(path.read_text())["cells"][4]["id"].removeprefix("98-")
    change(path, edit)
    problems = verify(root=sample)
    assert any(said.format(id=wanted) in p and "98_sample.ipynb" in p for p in problems), problems


def test_a_changed_source_without_a_build_is_named(sample):
    source = sample / "src" / "98_sample.py"
    source.write_text(source.read_text().replace("goal([", "goal( ["))
    problems = verify(root=sample)
    assert len(problems) == 2
    assert problems[0].startswith("notebooks/98_sample.ipynb cell 3 (98-")
    assert problems[1].startswith("solutions/98_sample.ipynb cell 3 (98-")


def test_outputs_in_a_learner_copy_and_execution_out_of_order_are_named(sample):
    change(sample / "98_sample.ipynb", lambda n: n["cells"][4].update(execution_count=3))
    change(sample / "solutions" / "98_sample.ipynb", lambda n: n["cells"][4].update(execution_count=9))
    problems = verify(root=sample)
    assert "notebooks/98_sample.ipynb cell 5: a learner's notebook holds no outputs" in problems
    assert any("execution count 9, not 3" in p for p in problems)


def test_a_missing_notebook_says_how_to_build_it(sample):
    (sample / "98_sample.ipynb").unlink()
    assert verify(root=sample) == [
        "notebooks/98_sample.ipynb: not built; run: python -m dtlab.course build 98"
    ]


LESSON = """\
# %% [markdown]
# # A constant

# %% tags=["nbval-check-output"]
from dtlab.course.shape import MAX_LINES
print("a cell has at most", MAX_LINES, "lines")
"""


def test_a_constant_changed_in_the_package_fails_the_strict_check_by_notebook_and_cell(tmp_path):
    root = tmp_path / "notebooks"
    (root / "src").mkdir(parents=True)
    (root / "src" / "00_constant.py").write_text(LESSON)
    build(root=root)
    package = shutil.copytree(
        REPOSITORY / "dtlab", tmp_path / "dtlab", ignore=shutil.ignore_patterns("__pycache__")
    )
    shape = package / "course" / "shape.py"
    shape.write_text(shape.read_text().replace("MAX_LINES = 25", "MAX_LINES = 24"))
    ran = subprocess.run(
        [sys.executable, "-m", "dtlab.course", "verify", "--execute"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "solutions/00_constant.ipynb cell 2 (00-" in ran.stdout
    assert "stored 'a cell has at most 25 lines', now 'a cell has at most 24 lines'" in ran.stdout


def test_a_compared_cell_that_gives_something_else_the_second_time_is_named(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "00_count.py").write_text(
        "# %% [markdown]\n# # Title\n\n# %%\nseen = []\n\n"
        '# %% tags=["nbval-check-output"]\nseen.append(1)\nprint(len(seen))\n'
    )
    build(root=tmp_path)
    (problem,) = verify(root=tmp_path, run=True)
    assert "cell 3 (00-" in problem
    assert "run a second time, output differs: stored '1', now '2'" in problem


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("<object at 0x7f3a2c1d9e50>", "an address"),
        ("saved to /tmp/run_1/log", "a temporary path"),
        ("killed pid 4711", "a process id"),
        ("PID: 4711", "a process id"),
        ("listening on 127.0.0.1:40123", "a port"),
        ("port 40123", "a port"),
        ("loss 0.693147180559", "a float of more than 8 digits"),
        ("rate 12345678.912", "a float of more than 8 digits"),
        ("took 1.25 s", "a time"),
        ("took 12 ms", "a time"),
        ("at 12:34:56", "a time"),
    ],
)
def test_volatile_text_in_stored_outputs_is_found_unless_the_cell_varies(printed, found):
    for output in (
        v4.new_output("stream", text=printed),
        v4.new_output("display_data", data={"text/html": f"<b>{printed}</b>".replace("<object", "object")}),
    ):
        cell = v4.new_code_cell("x", outputs=[output])
        assert [p for p in output_problems(cell) if f"output holds {found}:" in p], output
        cell.metadata.tags = ["varies"]
        assert output_problems(cell) == []


@pytest.mark.parametrize(
    "printed",
    ["auc 0.7345", "bytes 1234567890", "timeout after 10 s", "$1,234.56", "rank 1 of 2", "2.75 min"],
)
def test_counts_short_floats_and_stated_limits_are_not_volatile(printed):
    assert output_problems(v4.new_code_cell("x", outputs=[v4.new_output("stream", text=printed)])) == []


def test_a_computed_time_may_stand_in_a_cell_whose_output_is_compared():
    cell = v4.new_code_cell("x", outputs=[v4.new_output("stream", text="bubble 1.5 s")])
    cell.metadata.tags = ["nbval-check-output"]
    assert output_problems(cell) == []


def test_a_warning_on_stderr_is_named_unless_the_cell_is_tagged():
    warned = v4.new_output("stream", name="stderr", text="FutureWarning: will change\n")
    cell = v4.new_code_cell("x", outputs=[warned])
    assert "wrote to stderr: 'FutureWarning: will change'" in output_problems(cell)[0]
    for tag in ("varies", "lab-failure"):
        cell.metadata.tags = [tag]
        assert output_problems(cell) == []


def test_the_notebooks_of_this_checkout_are_what_their_sources_give():
    root = notebooks_root()
    assert verify(root=root) == []
