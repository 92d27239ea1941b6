"""The journal of a search: what a kill left is mended, what somebody else wrote is refused and left alone."""

import fcntl
import os

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.tune.space import Choice
from dtlab.tune.study import JOURNAL, StudyPlan, mend_journal

SETTINGS = "[data]\nname = 'clicks'\n[tune.space]\n\"optim.lr\" = [1e-3, 2e-3]\n"


@pytest.fixture
def plan(tmp_path):
    return StudyPlan(folder=tmp_path, space={"optim.lr": Choice((1e-3, 2e-3))})


def test_line_that_a_kill_cut_is_dropped_and_the_trials_before_it_stay(plan):
    plan.open().ask()
    journal = plan.folder / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "wor')
    os.symlink(journal, plan.folder / f"{JOURNAL}.lock")  # as a killed process leaves it
    mend_journal(plan)
    assert journal.read_bytes() == whole
    assert len(plan.open().get_trials()) == 1


@pytest.mark.parametrize(
    "text",
    [b"\0\1", b"{}\n", b"[1]\n", b"null\n", b'{"op_code": 99}\n', b'{"op_code": 0, "worker_id": "x"}\n'],
)
def test_journal_of_somebody_else_is_refused_and_left_as_it_is(text, tmp_path, capsys):
    file, folder = tmp_path / "tune.toml", tmp_path / "search"
    file.write_text(SETTINGS)
    folder.mkdir()
    (folder / JOURNAL).write_bytes(text)
    assert main(["tune", str(file), "--folder", str(folder), "--trials", "1"]) == 2
    told = capsys.readouterr().err
    assert "is damaged" in told
    assert told.count("\n") == 1
    assert (folder / JOURNAL).read_bytes() == text


@pytest.mark.parametrize(
    ("flag", "value"), [("--seed", "-1"), ("--seed", "99999999999"), ("--folder", "/dev/null")]
)
def test_value_that_no_search_can_have_is_one_line(flag, value, tmp_path, capsys):
    file = tmp_path / "tune.toml"
    file.write_text(SETTINGS)
    assert main(["tune", str(file), "--trials", "1", flag, value]) == 2
    assert f"{flag[2:]} = " in capsys.readouterr().err


def test_two_searches_in_one_folder_are_refused(tmp_path, capsys):
    file = tmp_path / "tune.toml"
    file.write_text(SETTINGS)
    with (tmp_path / ".lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(["tune", str(file), "--folder", str(tmp_path), "--trials", "1"]) == 2
    assert "another dtlab tune is in it" in capsys.readouterr().err


def test_folder_of_a_search_the_other_way_is_refused(plan):
    plan.open()
    with pytest.raises(UserError, match="maximum"):
        StudyPlan(folder=plan.folder, space=plan.space, maximize=False).open()


def test_choices_that_the_trials_before_did_not_have_are_refused(tmp_path, capsys):
    plan = StudyPlan(folder=tmp_path / "s", space={"optim.lr": Choice((1e-3, 5e-3))})
    plan.folder.mkdir()
    trial = plan.open().ask()
    trial.suggest_categorical("optim.lr", [1e-3, 5e-3])
    file = tmp_path / "tune.toml"
    file.write_text(SETTINGS)
    assert main(["tune", str(file), "--folder", str(plan.folder), "--trials", "2"]) == 2
    assert "does not fit the trials" in capsys.readouterr().err
