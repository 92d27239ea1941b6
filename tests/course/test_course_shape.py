"""Rules for authors: parts, headings, tags, cell length."""

from pathlib import Path

import pytest

from dtlab.course.build import build
from dtlab.course.shape import PARTS, author_errors
from dtlab.course.source import read_lesson
from dtlab.errors import UserError

SAMPLE = (Path(__file__).parent / "sample" / "src" / "98_sample.py").read_text()


def errors_of(tmp_path, text, name="98_sample.py"):
    path = tmp_path / name
    path.write_text(text)
    return author_errors(read_lesson(path))


def test_the_sample_breaks_no_rule(tmp_path):
    assert errors_of(tmp_path, SAMPLE) == []


@pytest.mark.parametrize("part", PARTS)
def test_each_missing_part_is_named(tmp_path, part):
    found = errors_of(tmp_path, SAMPLE.replace(f"# ## {part}\n", "# ### Something else\n"))
    assert any(f"missing parts: '## {part}'" in e for e in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# ## Recap", "# ## Afterword", "'## Afterword' names none of the ten parts"),
        ("# ## Look", "# # Look", "a second '#' title"),
        ("# ## Look", "# #### Look", "has level 4"),
        ("# # Counting messages", "# ## Counting messages", "must start with the title"),
        ('tags=["varies"]', 'tags=["variess"]', "unknown tag 'variess'"),
        ('tags=["varies"]', 'tags=["raises-exception"]', "unknown tag 'raises-exception'"),
        ('tags=["varies"]', "editable=false", "cell metadata 'editable' is not allowed"),
        ('tags=["varies"]', 'tags=["varies", "nbval-check-output"]', "exclude each other"),
        ('# %% tags=["exercise"]\n### BEGIN', "# %%\n### BEGIN", "not the tag 'exercise'"),
        ("    ### END SOLUTION\n\n\n", "\n\n", "is never closed"),
        ('print("nothing changes")', "%time x", "magics are not allowed"),
        ('print("nothing changes")', "\n".join(f"x{i} = {i}" for i in range(26)), "26 lines; split it"),
        ('print("nothing changes")', f'print("{"a" * 110}")', "119 characters in 'print"),
        ('check("98-messages", messages, [1, 2, 4])', "messages(3)", "calls no check"),
        ('"lab-failure", ', "", "no cell is tagged 'lab-failure'"),
    ],
)
def test_each_broken_rule_is_named(tmp_path, old, new, said):
    assert old in SAMPLE
    found = errors_of(tmp_path, SAMPLE.replace(old, new, 1))
    assert any(said in e for e in found), found


def test_parts_out_of_order_are_named(tmp_path):
    swapped = (
        SAMPLE.replace("# ## Look", "# ## X")
        .replace("# ## Break it", "# ## Look")
        .replace("# ## X", "# ## Break it")
    )
    assert any("part '## Look' (cell 6) is out of order" in e for e in errors_of(tmp_path, swapped))


def test_a_part_may_come_back_and_carry_a_subtitle(tmp_path):
    text = SAMPLE.replace("# ## Build it", "# ## Build it: the count").replace(
        "# ## The real thing", "# ## Build it: again\n#\n# ## Check: again\n#\n# ## The real thing"
    )
    assert errors_of(tmp_path, text) == []


def test_a_hash_in_a_fenced_block_is_no_heading(tmp_path):
    text = SAMPLE.replace("# The second clerk", "# ```\n# # a comment\n# ```\n# The second clerk")
    assert errors_of(tmp_path, text) == []


def test_build_refuses_a_source_that_breaks_a_rule(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "98_sample.py").write_text(SAMPLE.replace("# ## Recap", "# ## Afterword"))
    with pytest.raises(UserError, match="Afterword"):
        build(root=tmp_path, run=False)
    assert not (tmp_path / "98_sample.ipynb").exists()
