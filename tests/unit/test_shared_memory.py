"""A /dev/shm that cannot be written: the doctor says so, and workers are refused in one line."""

import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch.utils.data import TensorDataset

from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.torch_adapter import data_loader
from dtlab.data.workers import recommend_workers
from dtlab.diagnose.checks import shared_memory
from dtlab.errors import UserError

if __name__ == "__main__":
    print(*shared_memory())
    print(recommend_workers(decode_seconds=0, transform_seconds=1.0, step_seconds=0.01, cores=8))
    table = TensorDataset(torch.arange(8))
    print(sum(len(batch[0]) for batch in data_loader(table, GlobalBatchSampler(8, 4))), "without workers")
    try:
        list(data_loader(table, GlobalBatchSampler(8, 4), num_workers=2))
    except UserError as error:
        print("refused:", error)
"""


def with_read_only_shared_memory(*command):
    """In a mount namespace of its own, where this may be had."""
    mounted = ["sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh", *command]
    return subprocess.run(
        ["unshare", "-rm", *mounted], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, of Linux")
def test_shared_memory_that_cannot_be_written_is_named(tmp_path):
    if with_read_only_shared_memory("true").returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    done = with_read_only_shared_memory(sys.executable, os.fspath(script))
    assert done.returncode == 0, done.stderr
    assert "/dev/shm" in done.stdout
    doctor, advice, alone, refused = done.stdout.splitlines()
    assert "cannot be written" in doctor
    assert "num_workers=0" in advice
    assert alone == "8 without workers"
    assert refused.startswith("refused: num_workers = 2: workers share locks through /dev/shm")
    assert refused.endswith("(Read-only file system). Fix: mount a tmpfs there, or use num_workers = 0")
