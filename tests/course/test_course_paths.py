"""The paths through the course name lessons that exist, link to them, and say what is planned."""

from dtlab.course import paths
from dtlab.course.curriculum import LESSONS
from dtlab.course.paths import PATHS, paths_table


def test_each_lesson_of_a_path_is_named_or_planned(capsys):
    paths_table()
    text = capsys.readouterr().out
    for name, path in PATHS.items():
        part = text[text.index(name) :].split("\n")
        for number in path.lessons:
            lines = [line for line in part if number in line]
            assert lines, f"{number} is missing from {name}"
            assert (number in LESSONS) == (LESSONS[number].title in lines[0] if number in LESSONS else False)


def test_no_planned_lesson_is_named_when_all_exist(capsys, monkeypatch):
    monkeypatch.setattr(paths, "PATHS", {"Short": paths.CoursePath("a test", ("01", "02"))})
    paths_table()
    assert "planned" not in capsys.readouterr().out


def test_a_link_leads_to_the_notebook_beside_and_only_when_it_is_there(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr(paths, "show_html", lambda html, text: shown.append(html))
    (tmp_path / "01_why.ipynb").write_text("{}")
    paths_table(tmp_path)
    assert "<a href='01_why.ipynb'>01 Why distribute?</a>" in shown[0]
    assert shown[0].count("<a ") == 1
    assert "02 Ranks" in shown[0]


def test_paths_are_in_the_order_of_the_course():
    for path in PATHS.values():
        assert list(path.lessons) == sorted(set(path.lessons))
