"""Building notebooks from a source: stubs, ids, metadata, what is stored."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from dtlab.course.build import VARIES_NOTE, build
from dtlab.course.source import lessons, read_lesson, stub
from dtlab.errors import UserError

SAMPLE = Path(__file__).parent / "sample"


def load(path):
    return json.loads(path.read_text())


def text(cell):
    return "".join(cell["source"])


def tagged(notebook, tag):
    return [c for c in notebook["cells"] if tag in c["metadata"].get("tags", ())]


def test_learner_copy_has_stubs_no_outputs_and_no_solution_cells(built_sample):
    notebook = load(built_sample / "98_sample.ipynb")
    everything = "\n".join(map(text, notebook["cells"]))
    assert "SOLUTION" not in everything
    assert "return n * (n - 1)\n" not in text(tagged(notebook, "exercise")[0])
    assert 'raise NotImplementedError("to do")' in text(tagged(notebook, "exercise")[0])
    assert text(tagged(notebook, "exercise")[1]).endswith("largest = ...")
    assert not tagged(notebook, "solution")
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(code) == 13
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in code)


def test_solution_is_executed_in_order_without_markers_and_without_varying_text(built_sample):
    notebook = load(built_sample / "solutions" / "98_sample.ipynb")
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, 15))
    assert "SOLUTION" not in "\n".join(map(text, notebook["cells"]))
    assert text(tagged(notebook, "exercise")[0]).endswith("return n * (n - 1)")
    (varies,) = tagged(notebook, "varies")
    assert ["".join(o["text"]) for o in varies["outputs"]] == [VARIES_NOTE]


def test_metadata_is_the_plain_kernelspec_and_folded_cells_say_so(built_sample):
    for path in (built_sample / "98_sample.ipynb", built_sample / "solutions" / "98_sample.ipynb"):
        notebook = load(path)
        assert notebook["metadata"] == {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        for cell in notebook["cells"]:
            assert set(cell["metadata"]) <= {"tags", "jupyter"}
        assert tagged(notebook, "hide-input")[0]["metadata"]["jupyter"] == {"source_hidden": True}


def test_two_builds_give_the_same_bytes(built_sample, tmp_path):
    again = tmp_path / "elsewhere" / "notebooks"
    shutil.copytree(SAMPLE, again)
    build(root=again)
    for name in ("98_sample.ipynb", "solutions/98_sample.ipynb"):
        assert (again / name).read_bytes() == (built_sample / name).read_bytes()


def test_an_edit_changes_the_id_of_its_cell_only(sample):
    before = [c["id"] for c in load(sample / "98_sample.ipynb")["cells"]]
    source = sample / "src" / "98_sample.py"
    source.write_text(source.read_text().replace("costs as much as the first", "costs the same"))
    build(root=sample, run=False)
    after = [c["id"] for c in load(sample / "98_sample.ipynb")["cells"]]
    assert len(set(after)) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_equal_cells_get_different_ids(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "00_twice.py").write_text(
        "# %% [markdown]\n# # Title\n\n# %%\nx = 1\n\n# %%\nx = 1\n"
    )
    build(root=tmp_path, run=False)
    ids = [c["id"] for c in load(tmp_path / "00_twice.ipynb")["cells"]]
    assert len(set(ids)) == 3


def test_a_failing_solution_names_lesson_and_cell_and_writes_nothing(sample):
    source = sample / "src" / "98_sample.py"
    source.write_text(
        source.read_text().replace("    return n * (n - 1)\n    ###", "    return n * n\n    ###")
    )
    before = (sample / "98_sample.ipynb").read_bytes()
    with pytest.raises(
        UserError, match=r"98_sample: cell 14 \(98-\w+\) failed: CheckFailed: messages of 1 ranks"
    ):
        build(root=sample)
    assert (sample / "98_sample.ipynb").read_bytes() == before


def test_an_unsolved_exercise_fails_the_strict_build(sample):
    source = sample / "src" / "98_sample.py"
    source.write_text(
        source.read_text().replace("    return n * (n - 1)\n    ###", "    return ...\n    ###")
    )
    with pytest.raises(UserError, match="CheckFailed: to do: return how many messages"):
        build(root=sample)


def test_unknown_lesson_and_bad_name_are_user_errors(sample):
    with pytest.raises(UserError, match="lesson '77' has no source"):
        lessons(["77"], sample)
    bad = sample / "src" / "98-Bad.py"
    bad.write_text("# %%\n1\n")
    with pytest.raises(UserError, match="name it NN_slug"):
        read_lesson(bad)


def test_stub_keeps_what_stands_outside_the_markers():
    source = textwrap.dedent("""\
        def total(values):
            result = 0
            ### BEGIN SOLUTION
            for value in values:
                result += value
            ### END SOLUTION
            return result
        ### BEGIN SOLUTION
        first, second = 1, 2
        import math
        ### END SOLUTION""")
    assert stub(source) == textwrap.dedent("""\
        def total(values):
            result = 0
            # to do: your code
            raise NotImplementedError("to do")
            return result
        # to do: your code
        first = ...
        second = ...
        math = ...""")
