"""Under torchrun: SIGTERM to the agent ends in an agreed checkpoint, and bad input in one line of rank 0."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A stream read by a worker of each rank: the agent's signal reaches workers too."""
    folder = tmp_path_factory.mktemp("torchrun")
    rng = np.random.default_rng(0)
    columns = {"c": rng.integers(0, 9, 2_000), "x": rng.normal(size=2_000), "y": rng.integers(0, 2, 2_000)}
    pq.write_table(pa.table(columns), folder / "log.parquet", row_group_size=100)
    words = ["--data.name", "parquet", "--data.path", str(folder / "log.parquet"), "--data.label", "y"]
    words += ["--data.categorical", "c", "--data.numeric", "x", "--data.stream", "--data.workers", "1"]
    words += ["--data.root", str(folder), "--model.dim", "4", "--model.hidden", "8"]
    words += ["--optim.global-batch", "50", "--optim.max-epochs", "400", "--optim.patience", "400"]
    return [*words, "--run.log-every", "5"]


def events(folder: Path) -> list[dict]:
    record = folder / "record.jsonl"
    lines = record.read_text().splitlines(keepends=True) if record.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_sigterm_to_the_agent_saves_within_its_grace_time_and_the_run_goes_on(words, tmp_path):
    run, output = tmp_path / "run", tmp_path / "output"
    command = [*TORCHRUN, "-m", "dtlab.train", *words, "--run.folder", str(run)]
    with output.open("w") as file:
        agent = subprocess.Popen(command, stdout=file, stderr=file, env=ENVIRONMENT)
    family: list[psutil.Process] = []
    try:
        until = time.monotonic() + 120
        while sum(event["event"] == "reading" for event in events(run)) < 3:
            assert agent.poll() is None, output.read_text()
            assert time.monotonic() < until, "it never trained"
            time.sleep(0.05)
        family = psutil.Process(agent.pid).children(recursive=True)
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=90)
    finally:
        agent.kill()
    text = output.read_text()
    assert not psutil.wait_procs(family, timeout=30)[1], "processes are left"
    assert "stopped by     SIGTERM" in text, text
    assert "forcefully exiting" not in text, "the grace time of the agent was not enough"
    (saved,) = [event for event in events(run) if event["event"] == "checkpoint"]
    assert saved["reason"] == "SIGTERM"
    assert saved["step"] > 0

    report = tmp_path / "report.json"
    command += ["--stopping.max-seconds", "1", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(report.read_text())
    assert outcome["run"] == str(run)
    assert outcome["stopped_by"].startswith("budget: ")
    assert outcome["samples"] >= saved["samples"]
    assert outcome["duplicate_rows"] == 0
    (resumed,) = [event for event in events(run) if event["event"] == "resume"]
    assert f"step-{saved['step']:010d}" in resumed["checkpoint"]


@pytest.mark.parametrize("late", ["0", "1"])
def test_bad_input_is_one_line_of_rank_0_and_the_cause_in_the_agents_report(words, tmp_path, late):
    bad = ["--run.instance", "ml.g5.13xlarge", "--run.output", str(tmp_path)]
    slow = f"import os, time\nif os.environ.get('RANK') == '{late}':\n    time.sleep(2)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [*TORCHRUN, "-m", "dtlab.train", *words, *bad],
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, "PYTHONPATH": path},
    )
    lines = done.stderr.splitlines()
    (said,) = [line for line in lines if line.startswith("dtlab: ")]
    assert "did you mean g5.12xlarge" in said
    root = lines[lines.index("Root Cause (first observed failure):") :]
    assert any(line.strip().startswith("rank      : 0") for line in root)
    assert any(line.strip().startswith("exitcode  : 2") for line in root)
    assert any(said.removeprefix("dtlab: ") in line for line in root)
    assert "To enable traceback see" not in done.stderr
    assert "dtlab/" not in done.stderr, "a traceback of dtlab's own"


def test_what_rank_0_alone_finds_on_the_disk_is_one_line_too(words, tmp_path):
    nothing = ["--run.output", str(tmp_path / "nothing"), "--resume"]
    command = [*TORCHRUN, "-m", "dtlab.train", *words, *nothing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("dtlab: ")]
    assert "no interrupted run with a checkpoint" in said
    assert "LateRankError" not in done.stderr
    assert "dtlab/" not in done.stderr, "a traceback of dtlab's own"


RESTARTED = """
import os, sys, time
from pathlib import Path
import dtlab
died = Path(sys.argv[1])
with dtlab.world() as w:
    first = not died.exists()
    w.barrier()
    if first and w.rank == 1:
        died.write_text("")
        os._exit(7)
    if first:
        time.sleep(1000)  # until its agent ends it: in a collective it fails too, which its agent may count
    counts = w.gather(os.environ["TORCHELASTIC_RESTART_COUNT"], dst=None)
    os.write(1, f"rank {w.rank} counts {counts}\\n".encode())
with dtlab.world() as w:
    os.write(1, f"rank {w.rank} again {w.gather(w.rank, dst=None)}\\n".encode())
"""


@pytest.mark.parametrize(("hosts", "counts"), [(2, {"['0', '1']", "['1', '0']"}), (1, {"['1', '1']"})])
def test_ranks_that_torchrun_started_again_meet(hosts, counts, tmp_path):
    """Only one host's rank fails: torchrun's counter is 1 there and 0 on the other, which is not told."""
    script = tmp_path / "script.py"
    script.write_text(RESTARTED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts)]
    command += ["--nproc-per-node", str(2 // hosts)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "apart"]
    command += ["--local-addr", "127.0.0.1", "--max-restarts", "2", str(script), str(tmp_path / "died")]
    agents = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
        )
        for _ in range(hosts)
    ]
    try:
        told = "".join(agent.communicate(timeout=180)[0] for agent in agents)
    finally:
        for agent in agents:
            agent.kill()
    assert not any(agent.returncode for agent in agents), told
    lines = sorted(line for line in told.splitlines() if line.startswith("rank "))
    assert lines[0::2] == ["rank 0 again [0, 1]", "rank 1 again [0, 1]"]
    seen = {line.partition(" counts ")[2] for line in lines[1::2]}
    assert len(seen) == 1
    assert seen <= counts  # which of two hosts is the first one is torchrun's affair
