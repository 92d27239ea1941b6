"""Progress, cards and time budget: they inform, and nothing they meet can stop a lesson."""

import json
import os
import resource
import signal
import stat
import threading

import pytest

from dtlab.course import bill, goal, predict, progress_table, recap, time_budget
from dtlab.course.progress import progress_file, read_progress, record
from dtlab.errors import UserError


def test_progress_is_kept_by_rename_and_read_back(own_progress):
    record("solved", "02-ring")
    record("finished", "02")
    data = json.loads(own_progress.read_text())
    assert set(data["solved"]) == {"02-ring"}
    assert set(data["finished"]) == {"02"}
    assert [p.name for p in own_progress.parent.iterdir()] == ["progress.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"solved": 3}', "\x00"])
def test_a_broken_file_counts_as_empty(own_progress, content):
    own_progress.write_text(content)
    assert not any(read_progress().values())
    record("solved", "02-ring")
    assert "02-ring" in read_progress()["solved"]
    assert own_progress.with_name("progress.json.damaged").read_text() == content


def test_a_damaged_file_is_told_in_one_line_and_its_good_parts_are_kept(own_progress, capsys):
    own_progress.write_text('{"solved": {"02-ring": "2026-01-01"}, "finished": 3}')
    read_progress()
    progress_table()
    lines = [line for line in capsys.readouterr().out.splitlines() if "progress.json" in line]
    assert len(lines) == 1
    assert "has no usable finished: that counts as empty" in lines[0]
    record("solved", "02-who")
    assert set(read_progress()["solved"]) == {"02-ring", "02-who"}


def test_what_two_notebooks_solve_at_once_is_all_kept(own_progress):
    names = [f"02-{number}" for number in range(32)]
    threads = [threading.Thread(target=record, args=("solved", name)) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(read_progress()["solved"]) == set(names)


def test_a_home_that_does_not_exist_is_no_error(monkeypatch):
    monkeypatch.setenv("DTLAB_PROGRESS", "~nobody-of-that-name/progress.json")
    assert not any(read_progress().values())


def test_a_file_that_is_fine_is_not_told(own_progress, capsys):
    own_progress.write_text('{"solved": {"02-ring": "2026-01-01"}}')  # of a version without facts
    read_progress()
    record("solved", "02-who")
    assert capsys.readouterr().out == ""
    assert not own_progress.with_name("progress.json.damaged").exists()


def test_a_place_that_cannot_be_written_is_told_once_and_does_not_fail_a_lesson(
    monkeypatch, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DTLAB_PROGRESS", str(tmp_path / "file" / "below" / "progress.json"))
    record("solved", "02-ring")
    record("solved", "02-who")
    lines = [line for line in capsys.readouterr().out.splitlines() if "cannot be written" in line]
    assert len(lines) == 1
    assert "below/progress.json' cannot be written (Not a directory): what you solve is not kept" in lines[0]
    assert "DTLAB_PROGRESS" in lines[0]
    assert read_progress()["solved"] == {}


def test_a_full_disk_is_told_and_leaves_nothing(own_progress, capsys):
    """A limit on the size of files stands for the disk: the write itself fails, as there."""
    own_progress.write_text('{"solved": {"02-ring": "2026-01-01"}}')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        record("solved", "02-who")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "cannot be written (File too large)" in capsys.readouterr().out
    assert set(read_progress()["solved"]) == {"02-ring"}
    assert [path.name for path in own_progress.parent.iterdir()] == ["progress.json"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(os.devnull)])
def test_a_pipe_or_a_device_is_neither_waited_for_nor_replaced(own_progress, capsys, make):
    make(own_progress)
    assert not any(read_progress().values())
    record("solved", "02-ring")
    assert "is no plain file: that counts as empty" in capsys.readouterr().out
    assert not own_progress.is_file()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_link_to_the_file_stays_one(own_progress, tmp_path):
    kept = tmp_path / "synchronised" / "mine.json"
    kept.parent.mkdir()
    own_progress.symlink_to(kept)
    record("solved", "02-ring")
    record("solved", "02-who")
    assert own_progress.is_symlink()
    assert set(json.loads(kept.read_text())["solved"]) == {"02-ring", "02-who"}


def test_two_threads_leave_a_whole_file(own_progress):
    threads = [threading.Thread(target=record, args=("solved", f"02-{i}")) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.loads(own_progress.read_text())


def test_the_file_is_under_the_users_data_home_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("DTLAB_PROGRESS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert progress_file() == tmp_path / "dtlab" / "progress.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress_file() == tmp_path / ".local" / "share" / "dtlab" / "progress.json"


def test_the_table_shows_what_was_solved_and_finished(capsys):
    record("solved", "03-average")
    record("solved", "03-gone")  # an exercise of an older version
    for name in ("02-who", "02-ring", "02-seconds"):
        record("solved", name)
    record("finished", "02")
    record("finished", "01")  # by an older version, which did not ask for the exercises
    progress_table()
    rows = {line[:2]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["02"].endswith("finished")
    assert rows["03"].endswith("1 of 3 solved")
    assert rows["01"].endswith("-")
    assert rows["04"].endswith("-")


def test_a_prediction_is_committed_and_held_against_the_answer(capsys):
    asked = predict("02-hang", "Who waits?", ["nobody", "every rank"])
    asked.commit("A")
    asked.reveal("b", because="a ring of sends has no end")
    out = capsys.readouterr().out
    assert "  a) nobody\n  b) every rank" in out
    assert "Committed: a) nobody" in out
    assert "b) every rank\n  You predicted a) nobody.\n  a ring of sends has no end" in out
    with pytest.raises(UserError, match="answer 'c': choose one of a, b"):
        asked.commit("c")


def test_without_a_prediction_nothing_waits_and_the_answer_is_shown(capsys):
    asked = predict("02-other", "Who waits?", ["nobody", "every rank"])
    asked.reveal("b", because="all of them")
    assert "predicted" not in capsys.readouterr().out


def test_goal_recap_and_budget_as_text(capsys, own_progress):
    goal(["start ranks"], minutes=45, needs=["01"])
    recap("00", ["one", "two", "three"])
    with time_budget(60):
        pass
    out = capsys.readouterr().out
    assert "  - start ranks\n  45 minutes. Lessons before this one: 01. This costs $0 here." in out
    assert "  - three" in out
    assert "s; the lesson allows it 60 s\n" in out
    assert "00" in read_progress()["finished"]
    with pytest.raises(UserError, match="give three lines, not 2"):
        recap("02", ["one", "two"])


def test_the_bill_card_shows_both_runs_and_the_difference(capsys):
    bill("same data", "split data", instance="ml.g5.12xlarge", fault_seconds=28800, fix_seconds=3600)
    out = capsys.readouterr().out
    assert out.startswith("The bill\n  same data: ")
    assert "ml.g5.12xlarge" in out
    assert "The difference: $" in out


def test_a_lesson_is_finished_when_its_exercises_are_solved(capsys):
    record("solved", "02-who")
    recap("02", ["one", "two", "three"])
    out = capsys.readouterr().out
    assert "  1 of 3 exercises solved.\n" in out
    assert "finished when these are solved too: 02-ring, 02-seconds." in out
    assert "02" not in read_progress()["finished"]
    record("solved", "02-ring")
    record("solved", "02-seconds")
    recap("02", ["one", "two", "three"])
    out = capsys.readouterr().out
    assert "  3 of 3 exercises solved.\n  Next: 03 Data parallel from scratch\n" in out
    assert "02" in read_progress()["finished"]


def test_the_recap_links_to_the_next_lesson_beside_it(monkeypatch, tmp_path, capsys):
    shown = []
    monkeypatch.setattr("dtlab.course.cards.show_html", lambda html, text: shown.append(html))
    monkeypatch.chdir(tmp_path)
    recap("00", ["one", "two", "three"])
    (tmp_path / "01_why_distribute.ipynb").write_text("{}")
    recap("00", ["one", "two", "three"])
    recap("99", ["one", "two", "three"])
    assert "Next: 01 Why distribute?" in shown[0]
    assert "<a href='01_why_distribute.ipynb'>01 Why distribute?</a>" in shown[1]
    assert "Next" not in shown[2]


def test_the_command_names_the_file_and_marks_what_is_for_authors(own_progress, capsys):
    from dtlab.cli import main

    assert main(["course", "progress"]) == 0
    shown = capsys.readouterr().out
    assert f"kept in {own_progress}" in shown
    assert "DTLAB_PROGRESS" in shown
    assert main(["course", "--help"]) == 0
    learners, authors = capsys.readouterr().out.split("For authors of lessons")
    assert "progress" in learners
    for command in ("build", "verify", "run"):
        assert f" {command} " in authors
