"""The completion report says what was compared, when and by which version; it is written whole."""

import json

import pytest

from dtlab import __version__
from dtlab.cli import main
from dtlab.course.checks import _EXERCISES, CheckFailed, Checks, check, exercise
from dtlab.course.completion import completion, html, markdown, write_report
from dtlab.course.curriculum import LESSONS
from dtlab.course.progress import record, record_solved
from dtlab.errors import UserError


def of_lesson(report, number):
    return next(lesson for lesson in report["lessons"] if lesson["number"] == number)


def test_every_lesson_is_there_and_nothing_is_claimed_at_the_start():
    report = completion()
    assert [lesson["number"] for lesson in report["lessons"]] == list(LESSONS)
    assert (report["solved"], report["finished"]) == (0, 0)
    assert report["exercises"] > 40
    assert {lesson["state"] for lesson in report["lessons"]} == {"not begun"}


def test_an_accepted_answer_is_reported_with_what_was_compared_and_a_refused_one_is_not():
    @exercise("02-seven", todo="seven", hints=("a", "b"))
    def seven(checks: Checks, answer) -> None:
        checks.integer("messages of a <ring> of 4_ranks", answer, 7)

    try:
        with pytest.raises(CheckFailed):
            check("02-seven", 6)
        assert completion()["solved"] == 0
        assert check("02-seven", 7)
        found = of_lesson(completion(), "02")["exercises"][-1]
        assert found["facts"] == ["messages of a <ring> of 4_ranks: 7"]
        assert found["version"] == __version__
        assert found["when"].startswith("20")
        assert "messages of a \\<ring> of 4\\_ranks: 7" in markdown(completion())
        assert "messages of a &lt;ring&gt; of 4_ranks: 7" in html(completion())
    finally:
        _EXERCISES.pop("02-seven")


def test_an_answer_of_an_older_version_is_reported_without_facts():
    record("solved", "02-ring", "2026-01-01")
    text = markdown(completion())
    assert "- **02-ring**: solved 2026-01-01; accepted by a version that did not keep" in text


def test_a_lesson_is_finished_only_with_all_of_its_exercises():
    record("finished", "02")
    record_solved("02-ring", ["a fact"])
    assert of_lesson(completion(), "02")["state"] == "begun"
    for name in ("02-who", "02-seconds"):
        record_solved(name, ["a fact"])
    assert of_lesson(completion(), "02")["state"] == "finished"
    assert "## 02 Ranks" in markdown(completion())


def test_odd_entries_of_the_progress_file_are_survived(own_progress):
    own_progress.write_text(json.dumps({"solved": {"02-ring": 3}, "checked": {"02-ring": [], "x": 1}}))
    found = next(e for e in of_lesson(completion(), "02")["exercises"] if e["name"] == "02-ring")
    assert (found["when"], found["version"], found["facts"]) == ("3", None, [])


@pytest.mark.parametrize("ending", ["md", "html"])
def test_the_command_writes_the_report_and_the_same_as_json(tmp_path, capsys, ending):
    record_solved("02-ring", ["a fact that was compared"])
    path = tmp_path / f"mine.{ending}"
    assert main(["course", "report", str(path)]) == 0
    assert "exercises solved" in capsys.readouterr().out
    assert "a fact that was compared" in path.read_text()
    kept = json.loads((tmp_path / "mine.json").read_text())
    assert kept["solved"] == 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_another_ending_and_a_place_that_cannot_be_written_are_refused(tmp_path, capsys):
    with pytest.raises(UserError, match=r"give a name that ends in \.md or \.html"):
        write_report(tmp_path / "mine.txt")
    (tmp_path / "mine.json").mkdir()
    assert main(["course", "report", str(tmp_path / "mine.md")]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert not (tmp_path / "mine.md").exists()
