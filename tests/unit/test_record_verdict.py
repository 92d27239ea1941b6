"""What the launcher saw of a failure reaches the record; a run without a step or an end is not sound."""

import json

import pytest

from dtlab.cli import main
from dtlab.diagnose.record_file import read_record
from dtlab.ranks import launcher
from dtlab.ranks.report import RankError

START = {"event": "start", "config": {}}
RESET = {"event": "failed", "error": "RuntimeError: Connection reset by peer"}


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """``dtlab train`` whose ranks leave ``text`` as their record and fail with ``error``."""

    def run(text, error):
        def launch(*_args, **_options):
            if text is not None:
                (tmp_path / "runs/own").mkdir(parents=True)
                (tmp_path / "runs/own/record.jsonl").write_text(text)
            raise error

        monkeypatch.setattr(launcher, "launch", launch)
        code = main(["train", "--nproc", "2", "--run.output", str(tmp_path / "runs")])
        return code, tmp_path / "runs/own"

    return run


def killed():
    return RankError(
        "rank 1 of 2 was killed by SIGKILL\n  rank 0 lost its connection", rank=1, world_size=2,
        exception_type="", message="", cell_lines=[], reports=[],
    )  # fmt: skip


@pytest.mark.parametrize("torn", ["", '{"event": "epo'])
def test_doctor_names_the_rank_that_was_killed_and_not_the_survivor_that_lost_it(failing, torn, capsys):
    code, run = failing(f"{json.dumps(START)}\n{json.dumps(RESET)}\n{torn}", killed())
    assert code == 1
    assert main(["doctor", "--run", str(run)]) == 1
    told = capsys.readouterr().out
    assert "failed: rank 1 of 2 was killed by SIGKILL" in told
    assert "Connection reset" not in told


def test_a_run_that_failed_before_its_record_is_told_as_before(failing, capsys):
    code, run = failing(None, killed())
    assert (code, run.exists()) == (1, False)
    assert "killed by SIGKILL" in capsys.readouterr().err


def test_what_all_ranks_refused_stands_once_in_the_record(failing):
    error = RankError(
        "rank 0 of 2 failed", rank=0, world_size=2, exception_type="UserError", message="optim.lr = 0",
        cell_lines=[], reports=[],
    )  # fmt: skip
    code, run = failing(f"{json.dumps(START)}\n{json.dumps(RESET)}\n", error)
    assert code == 2
    assert len(read_record(run).of("failed")) == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (None, "killed, or still running"),
        ({"event": "end", "optimizer_steps": 0, "samples": 0, "stopped_by": "SIGTERM"}, "no step"),
    ],
)
def test_a_run_without_a_step_or_an_end_is_not_sound(end, words, tmp_path, capsys):
    lines = [START] if end is None else [START, end]
    (tmp_path / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["doctor", "--run", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert words in told
    assert "the run is not sound" in told
