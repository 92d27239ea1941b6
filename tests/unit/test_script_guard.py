"""Workers that would run the user's script again are refused before they start."""

import subprocess
import sys

ASKS = """
from dtlab.errors import UserError
from dtlab.data.script_guard import refuse_unguarded_script
def train(method):
    try:
        refuse_unguarded_script(2, method)
        print("fine")
    except UserError as error:
        print(error)
"""
GUARDED = ASKS + "if __name__ == '__main__':\n    for method in ('spawn', 'fork'):\n        train(method)\n"
UNGUARDED = ASKS + "if True:\n    for method in ('forkserver', 'fork'):\n        train(method)\n"
LOADS = """
import torch
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.torch_adapter import data_loader
sampler = GlobalBatchSampler(4, 2, rank=0, world_size=1)
print("once")
list(data_loader(torch.arange(4), sampler, num_workers=1, multiprocessing_context="spawn"))
"""


def run(*words, text=None):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


def test_script_without_a_guard_is_refused_where_workers_would_run_it_again(tmp_path):
    (tmp_path / "train.py").write_text(UNGUARDED)
    refused, forked = run(tmp_path / "train.py").stdout.splitlines()
    assert "would run train.py again, as line 12 is not guarded" in refused
    assert "num_workers = 2" in refused
    assert '`if __name__ == "__main__":`' in refused
    assert forked == "fine"


def test_script_with_a_guard_may_start_workers(tmp_path):
    (tmp_path / "train.py").write_text(GUARDED)
    assert run(tmp_path / "train.py").stdout.split() == ["fine", "fine"]


def test_script_from_standard_input_is_refused_and_one_from_the_command_line_is_not():
    refused, forked = run("-", text=UNGUARDED).stdout.splitlines()
    assert "no file" in refused
    assert forked == "fine"
    assert run("-c", UNGUARDED).stdout.split() == ["fine", "fine"]


def test_package_run_by_name_may_start_workers(tmp_path, monkeypatch):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "__main__.py").write_text(UNGUARDED)
    monkeypatch.chdir(tmp_path)
    assert run("-m", "some").stdout.split() == ["fine", "fine"]


def test_loader_in_a_script_without_a_guard_is_one_message_and_runs_once(tmp_path):
    (tmp_path / "train.py").write_text(LOADS)
    done = run(tmp_path / "train.py")
    assert done.stdout.split() == ["once"]
    assert "would run train.py again" in done.stderr.splitlines()[-1]
    assert "bootstrapping" not in done.stderr
