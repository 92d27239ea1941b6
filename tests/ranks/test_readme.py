"""What the README tells a reader to run does what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def run(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def script_folder(tmp_path: Path) -> Path:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    (tmp_path / "mine.py").write_text(block)
    return tmp_path


def test_the_script_gives_the_same_loss_under_every_launcher(script_folder: Path) -> None:
    (call,) = re.findall(r'python -c "(.*?)"', README)
    alone = run([sys.executable, "mine.py"], script_folder)
    torchrun = run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "mine.py"],
        script_folder,
    )
    launched = run([sys.executable, "-c", call], script_folder)
    (loss,) = re.findall(r"loss (0\.\d{4})", alone)
    assert re.findall(r"loss (0\.\d{4})", torchrun) == [loss, loss]
    losses = [float(value) for value in re.findall(r"0\.\d+", launched)]
    assert losses == pytest.approx([float(loss)] * 2, abs=1e-4)
    assert 0.05 < float(loss) < 0.6, "it has learned something: guessing gives 0.69"


def test_the_bill_shown_is_the_bill_given(tmp_path: Path) -> None:
    command, shown = re.search(r"\$ dtlab (cost .*)\n(.*)\n", README).groups()
    assert run([sys.executable, "-m", "dtlab.cli", *command.split()], tmp_path) == shown + "\n"


def test_files_named_in_the_readme_exist() -> None:
    named = re.findall(r"`((?:examples|notebooks|data|tests)/[\w./]+)`", README)
    named += re.findall(r"`([A-Z]+\.md|environment\.yml)`", README)
    missing = [path for path in named if not (ROOT / path).exists()]
    assert named
    assert missing == []
