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


def wait_for(condition, seconds: float = 60.0):
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
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert f"stopped by     {number.name}" in output
    assert "Traceback" not in output
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    events = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    saved = [event for event in events if event["event"] == "checkpoint"]
    assert [event["reason"] for event in saved] == [number.name]

    if number == signal.SIGTERM:  # once is enough
        report = tmp_path / "report.json"
        command = [sys.executable, "-m", "dtlab.cli", "train", *FLAGS, "--run.output", str(tmp_path / "runs")]
        command += ["--resume", "--stopping.max-seconds", "1", "--nproc", "1", "--report", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
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
    ranks = [child for child in children if child.pid in _ranks(children)]
    for rank in ranks:
        rank.suspend()  # they cannot save, so the grace time would be waited for
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 15
    assert not psutil.wait_procs(children, timeout=5)[1]


def _ranks(children: list[psutil.Process]) -> set[int]:
    """Ranks lead a process group of their own."""
    return {child.pid for child in children if os.getpgid(child.pid) == child.pid}
