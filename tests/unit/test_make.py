"""make says clearly what is missing, and does nothing when nothing has changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of a fresh clone that the set-up reads."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fake_environment(folder: Path, *, python: str) -> Path:
    """A .venv whose Python is `python` and whose tools only say that they were called."""
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name, text in {"python": python, "ruff": 'echo "ruff $*"', "pip": "echo pip; exit 1"}.items():
        (binaries / name).write_text(f"#!/bin/sh\n{text}\n")
        (binaries / name).chmod(0o755)
    return binaries.parent


def test_python_that_does_not_exist_is_named(clone: Path) -> None:
    done = make(clone, "lint", "PYTHON=/nowhere/python3")
    assert done.returncode != 0
    assert "PYTHON=/nowhere/python3 does not run or is not Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (clone / ".venv").exists()


def test_machine_without_a_supported_python_is_told_so(clone: Path) -> None:
    tools = clone / "bin"
    tools.mkdir()
    for name in ("bash", "make", "cat", "cksum", "tr", "dirname", "id", "sh"):
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    for name in ("python3", "python"):  # there, but too old
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    done = make(clone, "lint", path=str(tools))
    assert done.returncode != 0
    assert "dtlab needs Python 3.11, 3.12 or 3.13 and found none of them" in done.stderr


def test_broken_environment_is_named_with_the_way_out(clone: Path) -> None:
    fake_environment(clone, python="exit 1")
    done = make(clone, "lint")
    assert done.returncode != 0
    assert "make distclean" in done.stderr


def test_environment_is_left_alone_until_the_lock_or_pyproject_changes(clone: Path) -> None:
    environment = fake_environment(clone, python='case "$*" in *pip*) echo "$*" >> calls;; esac')
    calls = clone / "calls"
    assert make(clone, "lint").returncode == 0
    first = calls.read_text().splitlines()
    assert [line.split(" install ")[1] for line in first] == [
        "-c requirements.lock torch",
        "-c requirements.lock -e .[dev]",
    ]
    assert make(clone, "lint").stdout.splitlines() == ["== lint", "ruff check ."]
    assert calls.read_text().splitlines() == first, "a second run installs nothing"
    assert make(clone, "-n", "data").stdout.strip().startswith(".venv/bin/dtlab"), "dev includes lab"
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("zzz==1.0\n")
    assert make(clone, "lint").returncode == 0
    assert len(calls.read_text().splitlines()) == 4
    assert len(list(environment.glob(".stamp-*"))) == 2, "the old stamps are gone"


def test_torch_index_is_for_torch_alone(clone: Path) -> None:
    fake_environment(clone, python='case "$*" in *pip*) echo "$*" >> calls;; esac')
    assert make(clone, "lint", "TORCH_INDEX=https://example.org/cpu").returncode == 0
    torch, rest = (clone / "calls").read_text().splitlines()
    assert "--index-url https://example.org/cpu torch" in torch
    assert "--index-url" not in rest


def test_failed_installation_leaves_no_stamp(clone: Path) -> None:
    environment = fake_environment(clone, python='case "$*" in *pip*) exit 1;; esac')
    assert make(clone, "lint").returncode != 0
    assert list(environment.glob(".stamp-*")) == []


def test_lab_opens_the_notebooks_of_a_folder_with_any_name(clone: Path) -> None:
    copy = clone / "Kurs Ünïcode, it's 2026 $HOME/dt lab"
    shutil.copytree(clone / "tools", copy / "tools")
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, copy)
    (copy / "notebooks").mkdir()
    (copy / "notebooks" / "01_first.ipynb").touch()
    binaries = fake_environment(copy, python="exit 0") / "bin"
    for name in ("dtlab", "jupyter"):
        (binaries / name).write_text(f'#!/bin/sh\nfor word in "$@"; do echo "{name}: $word"; done\n')
        (binaries / name).chmod(0o755)
    done = make(copy, "lab", "LAB_ARGS=--no-browser")
    assert done.returncode == 0, done.stderr
    words = [line.split(": ")[1] for line in done.stdout.splitlines() if line.startswith("jupyter: ")]
    assert words[0] == "lab"
    assert all(word.startswith("--") for word in words[1:]), "a name with blanks is no word more"
    (root,) = [word.split("=")[1] for word in words if word.startswith("--ServerApp.root_dir=")]
    assert (copy / root).samefile(copy / "notebooks"), "seen from where make runs"
    assert "--LabApp.default_url=/lab/tree/01_first.ipynb" in words


def test_native_windows_is_sent_to_wsl(clone: Path) -> None:
    done = make(clone, "help", "OS=Windows_NT")
    assert done.returncode != 0
    assert "WSL" in done.stderr
