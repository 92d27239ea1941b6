"""Several ranks ask for data at once: one prepares, the others wait, and a killed owner blocks nobody."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtlab.data.prepare import prepare, read_manifest
from dtlab.errors import UserError

# A build takes a while, so that the others meet the lock, and is counted in a file outside.
SCRIPT = """
import os, sys, time
from pathlib import Path
from dtlab.data.prepare import prepare
folder, log, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def build(path):
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    (path / "first.txt").write_text("a" * 1000)
    if mode == "killed":
        print("half built", flush=True)
        time.sleep(600)
    time.sleep(0.3)
    (path / "second.txt").write_text("b" * 1000)
    return {"rows": 2}
print("ready", flush=True)
sys.stdin.readline()
print(prepare(folder, build)["rows"], (folder / "second.txt").stat().st_size, flush=True)
"""


def start(folder: Path, log: Path, mode: str) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(log), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def test_four_ranks_at_once_build_once_and_all_see_the_whole_folder(tmp_path):
    folder, log = tmp_path / "data" / "made", tmp_path / "builds"
    ranks = [start(folder, log, "whole") for _ in range(4)]
    for rank in ranks:
        go(rank)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert outputs == ["2 1000\n"] * 4
    assert len(log.read_text().split()) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["first.txt", "manifest.json", "second.txt"]


def test_a_killed_owner_blocks_nobody_and_leaves_nothing(tmp_path):
    folder, log = tmp_path / "made", tmp_path / "builds"
    owner = start(folder, log, "killed")
    go(owner)
    assert owner.stdout.readline() == "half built\n"
    waiting = start(folder, log, "whole")
    go(waiting)
    assert not folder.exists()  # half-built files are never under the final name
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=60)
    assert waiting.communicate(timeout=60)[0] == "2 1000\n"
    assert len(log.read_text().split()) == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"made", ".made.lock", "builds"}


def build(path: Path) -> dict:
    (path / "x").write_text("x")
    return {"rows": 1}


def test_a_build_that_fails_leaves_no_folder_and_the_next_call_builds(tmp_path):
    def fail(path: Path) -> dict:
        (path / "x").write_text("x")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        prepare(tmp_path / "made", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]
    assert prepare(tmp_path / "made", build)["rows"] == 1


def test_a_prepared_folder_is_not_built_again_and_a_torn_one_is(tmp_path):
    folder = tmp_path / "made"
    prepare(folder, build)
    assert prepare(folder, lambda path: pytest.fail("built twice"))["rows"] == 1
    (folder / "x").write_text("")
    assert read_manifest(folder) is None
    assert prepare(folder, build)["rows"] == 1
    assert (folder / "x").read_text() == "x"
    (folder / "manifest.json").write_text(json.dumps([1]))
    assert prepare(folder, build)["rows"] == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.root") as caught:
        prepare(tmp_path / "file" / "made", build)
    assert "\n" not in str(caught.value)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    tmp_path.chmod(0o755)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(UserError, match="Permission denied"):
            prepare(tmp_path / "closed" / "made", build)
    finally:
        os.seteuid(user)
        (tmp_path / "closed").chmod(0o755)


FLIGHTS = """
import sys
import dtlab

def prepare_and_describe(root):
    from dtlab.data.config import DataConfig
    from dtlab.data.datasets import load_dataset
    data = load_dataset(DataConfig(name="flights", root=root, cache="disk"))
    rows = [len(data.train), len(data.validation), len(data.test)]
    return rows, data.version, data.train.categorical.sum().item(), data.train.dense.double().sum().item()

if __name__ == "__main__":
    one, other = dtlab.launch(prepare_and_describe, 2, sys.argv[1], timeout=120, echo=False)
    assert one == other, (one, other)
    print(one[0])
"""


def test_two_launched_ranks_load_the_same_flights_from_nothing(tmp_path):
    script = tmp_path / "flights.py"
    script.write_text(FLIGHTS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[231423, 53107, 42816]"
    names = [path.name for path in (tmp_path / "data").rglob("*")]
    assert not [name for name in names if "building" in name]
    assert names.count("train-00000.parquet") == 1
