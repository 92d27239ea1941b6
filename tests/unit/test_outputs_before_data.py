"""A place that cannot be written is refused before data are read."""

from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.ranks import launcher


@pytest.fixture
def refused(monkeypatch, capsys):
    """The one line of ``dtlab train``; ranks must not start."""

    def launch(*_args, **_options):
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launcher, "launch", launch)

    def run(*words):
        assert main(["train", *map(str, words)]) == 2
        return capsys.readouterr().err.strip()

    return run


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
@pytest.mark.parametrize(
    ("flag", "place"),
    [
        ("--report", "/proc/x/report.json"),
        ("--run.output", "/proc/x/runs"),
        ("--run.folder", "/proc/x/run"),
    ],
)
def test_a_place_whose_rights_promise_too_much_is_refused_before_ranks_start(refused, flag, place):
    assert "'/proc' cannot be written" in refused(flag, place)


@pytest.mark.parametrize("flag", ["--run.output", "--run.folder"])
def test_a_file_where_a_folder_belongs_is_called_a_file(refused, tmp_path, flag):
    file = tmp_path / "notes.txt"
    file.touch()
    assert refused(flag, file).endswith("is a file; name a folder")
    assert "is a file; name another place" in refused(flag, file / "below")


def test_a_finished_run_is_refused_before_ranks_start(refused, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.json").touch()
    assert "holds a finished run" in refused("--run.folder", tmp_path)


def test_nothing_to_resume_is_refused_before_ranks_start(refused, tmp_path):
    assert "no interrupted run" in refused("--resume", "--run.output", tmp_path)
    assert list(tmp_path.iterdir()) == []
