"""SIGTERM and Ctrl-C at ``dtlab train``: the ranks save and the command ends with the signal's code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dtlab.cli import main

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--data.name",
    "clicks",
    "--data.rows",
    "4000",
    "--data.root",
    str(ROOT / "data"),
    "--model.dim",
    "4",
]
FLAGS += ["--model.hidden", "8", "--optim.global-batch", "50", "--optim.max-epochs", "400"]
FLAGS += ["--optim.patience", "400", "--run.log-every", "5"]


def start(folder: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "dtlab.cli", "train", *FLAGS, "--run.folder", str(folder), *flags]
    # Python, not a shell, starts it: a shell's background job would ignore SIGINT.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(condition, seconds: float = 120.0):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.05)
    return found


def readings(folder: Path) -> int:
    record = folder / "record.jsonl"
    return record.read_text().count('"reading"') if record.is_file() else 0


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_the_command_saves_and_the_run_goes_on_with_resume(number, code, tmp_path):
    run = tmp_path / "runs" / "one"
    process = start(run, "--nproc", "2")
    wait_for(lambda: readings(run) >= 3)
    ranks = family(process)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    assert f"stopped by     {number.name}" in output
    assert "Traceback" not in output
    assert not psutil.wait_procs(ranks, timeout=30)[1]
    events = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    saved = [event for event in events if event["event"] == "checkpoint"]
    assert [event["reason"] for event in saved] == [number.name]

    if number == signal.SIGTERM:  # once is enough
        report = tmp_path / "report.json"
        command = [sys.executable, "-m", "dtlab.cli", "train", *FLAGS, "--run.output", str(tmp_path / "runs")]
        command += ["--resume", "--stopping.max-seconds", "1", "--nproc", "1", "--report", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        outcome = json.loads(report.read_text())
        assert outcome["run"] == str(run)
        assert outcome["stopped_by"].startswith("budget: ")
        assert outcome["samples"] >= saved[0]["samples"]


def test_second_interrupt_ends_at_once(tmp_path):
    run = tmp_path / "one"
    process = start(run, "--nproc", "2")
    wait_for(lambda: readings(run) >= 1)
    children = family(process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    for rank in ranks:
        rank.suspend()  # they cannot save, so the grace time would be waited for
    os.kill(process.pid, signal.SIGINT)
    wait_for(lambda: all(is_pending(rank, signal.SIGINT) for rank in ranks))  # the command has handed it on
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 15
    assert not psutil.wait_procs(children, timeout=30)[1]


def ranks_of(command: subprocess.Popen) -> list[psutil.Process]:
    """Ranks lead a process group of their own, and are children of the process that forks them."""
    (server,) = psutil.Process(command.pid).children()
    return [child for child in server.children() if os.getpgid(child.pid) == child.pid]


def is_pending(process: psutil.Process, number: int) -> bool:
    """Whether a signal waits for a process that is suspended."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return any(
        int(line.split()[1], 16) >> (number - 1) & 1
        for line in status.splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    )


def kill_a_rank(process: subprocess.Popen) -> str:
    ranks_of(process)[0].kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    return output


def test_killed_run_names_its_last_checkpoint_and_resume_says_when_there_is_none(tmp_path):
    bare, saved = tmp_path / "bare", tmp_path / "saved"
    process = start(bare, "--nproc", "2")
    wait_for(lambda: readings(bare) >= 1)
    output = kill_a_rank(process)
    assert "last complete checkpoint: none yet (checkpoint.every_seconds = 600)" in output
    again = start(bare, "--nproc", "1", "--resume", "--stopping.max-seconds", "0.5")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert f"{bare} holds no complete checkpoint: beginning at step 0" in output

    every = ("--checkpoint.every-steps", "10", "--checkpoint.keep", "1000")
    process = start(saved, "--nproc", "2", *every)
    wait_for(lambda: len(list(saved.glob("checkpoints/save-*"))) >= 2)
    output = kill_a_rank(process)
    newest = max(saved.glob("checkpoints/save-*")).name
    assert f"last complete checkpoint: step {int(newest.split('-')[-1])}, in {saved}" in output
    assert "go on with the same command and --resume" in output


def test_signal_to_every_process_of_the_job_saves_too(tmp_path):
    """As Slurm and systemd send it: the process that forks the ranks must not end with it."""
    run = tmp_path / "one"
    process = start(run, "--nproc", "2")
    wait_for(lambda: readings(run) >= 3)
    children = family(process)
    for child in children:
        child.terminate()
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "stopped by     SIGTERM" in output
    assert "checkpoint     complete" in output
    assert not psutil.wait_procs(children, timeout=30)[1]


def test_killed_starter_of_the_ranks_is_one_line_and_the_way_on(tmp_path):
    run = tmp_path / "one"
    process = start(run, "--nproc", "2", "--checkpoint.every-steps", "10", "--checkpoint.keep", "1000")
    wait_for(lambda: len(list(run.glob("checkpoints/save-*"))) >= 1)
    children = family(process)
    (starter,) = psutil.Process(process.pid).children()
    starter.kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "dtlab: the process that starts the ranks ended: killed by SIGKILL" in output
    assert "go on with the same command and --resume" in output
    assert not psutil.wait_procs(children, timeout=30)[1]


def test_a_run_that_its_budget_ended_is_not_told_to_go_on_with_the_same_command(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["train", "--data.name", "clicks", "--data.rows", "2000", "--data.root", str(tmp_path / "data")]
    words += ["--stopping.max-seconds", "0.01", "--optim.global-batch", "100", "--run.folder", str(folder)]
    assert main([*words, "--nproc", "1"]) == 0
    assert "go on with     a larger stopping.max_seconds and --resume\n" in capsys.readouterr().out


_STOPPED = """
import os, sys, threading, time
import dtlab
from dtlab.ranks.stop_requests import listens_for_stop
from dtlab.train.signals import StopSignals

def does_not_listen(mark):
    open(mark, "w").close()
    time.sleep(60)

def fails_meanwhile(mark):
    with StopSignals() as signals:
        open(mark, "w").close()
        while signals.received is None:
            time.sleep(0.01)
        raise dtlab.UserError("lr = -1: must be positive")

@listens_for_stop
def listens_later(mark):
    open(mark, "w").close()
    time.sleep(1)
    with StopSignals() as signals:
        return signals.received

class Slow:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):  # the function has returned, the launcher does not know yet
        open(self.mark, "w").close()
        time.sleep(1)
        return int, (7,)

def has_returned(mark):
    return Slow(mark)

def stop(mark, number):
    while not os.path.exists(mark):
        time.sleep(0.01)
    os.kill(os.getpid(), number)

mark, number = sys.argv[2], int(sys.argv[3])
threading.Thread(target=stop, args=(mark, number), daemon=True).start()
try:
    print("result", list(dtlab.launch(globals()[sys.argv[1]], 1, mark, grace=50)))
except dtlab.RankError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("does_not_listen", "dtlab: {name} ended rank 0, which did not listen for it: nothing was saved"),
        ("fails_meanwhile", "rank 0 of 1 failed: UserError: lr = -1: must be positive"),
        ("listens_later", "result ['{name}']"),
        ("has_returned", "result [7]"),
    ],
)
def test_stop_is_told_as_it_was_whenever_it_comes(function, line, number, tmp_path):
    command = [sys.executable, "-c", _STOPPED, function, str(tmp_path / "mark"), str(int(number))]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [line.format(name=number.name)], done.stderr
    assert "returned its result, then" not in done.stderr
    assert time.monotonic() - began < 50, "it was not the grace time that ended it"
    is_ended = function == "does_not_listen"
    codes = {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}
    assert done.returncode == (codes[number] if is_ended else 0), done.stderr
