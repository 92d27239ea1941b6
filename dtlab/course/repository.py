"""A small git repository in a new folder, for lessons about records (lesson 15)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dtlab.errors import UserError

_SETTINGS = ("user.name=dtlab", "user.email=dtlab@example.org", "commit.gpgsign=false", "core.autocrlf=false")


def new_repository(folder: Path, text: str = "lr = 1\n") -> Path:
    """Make ``folder`` a repository with one commit that holds train.py; the folder itself is returned.

    Raises:
        UserError: git is missing, or refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", f"first commit of {folder.name}")
    return folder


def git(folder: Path, *words: str) -> str:
    """What git prints, with settings of its own, so that nobody's configuration matters."""
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *settings, *words], cwd=folder, capture_output=True, text=True, timeout=20, check=False
        )
    except FileNotFoundError:
        raise UserError("git is not installed; this part of the lesson needs it") from None
    if done.returncode:
        raise UserError(f"git {words[0]} failed in a new folder: {done.stderr.strip()[:200]}")
    return done.stdout.strip()
