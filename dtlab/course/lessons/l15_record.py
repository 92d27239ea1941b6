"""Check of lesson 15's record: a real repository and files that change, and a model that has to be found."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function
from dtlab.course.repository import git, new_repository

KEYS = ("settings", "commit", "dirty", "data_version")
SETTINGS = {"lr": 0.02, "patience": 10, "hidden": [64, 32]}
_NAMES = ("2026-11-02", "2026-11-03-final", "2026-11-03-final2", "2026-11-05-really-final", "b")


@exercise(
    "15-record",
    todo="settings, commit, whether files differ from it, a hash of the data; and the run with these weights",
    hints=(
        "What decides a result besides the settings? Two folders with the same files are the same data, "
        "wherever they lie and whenever they were written: what may go into the hash, and in which order?",
        "digest = hashlib.sha256(); for path in sorted(data.rglob('*')), if it is a file: update with its "
        "path "
        "inside `data` and with the hash of its bytes. commit: git rev-parse HEAD; dirty: whether git status "
        "--porcelain says anything. find: compare the bytes of run / 'model.safetensors' with those of "
        "`weights`.",
    ),
    references=("dtlab.train.record.git_state", "dtlab.track.runs.find_by_checkpoint"),
)
def record(checks: Checks, answer: Any, find: Any) -> None:
    """How many versions ten states of data and code have; which run is found; then commit and settings."""
    require_function(answer)
    require_function(find)
    if shutil.which("git") is None:
        raise CheckFailed("this check needs git, and there is none on this machine: install it.")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _versions(checks, answer, root)
        found, right = _runs(find, root / "runs")
        checks.integer(
            "runs found by their weights", sum(map(_same, found, right)), len(right),
            look="the run whose model.safetensors has the same bytes, whatever it is called; None when "
            "none has",
        )  # fmt: skip
        _code(checks, answer, root)


def _versions(checks: Checks, answer: Any, root: Path) -> None:
    repository = new_repository(root / "code")

    def version(data: Path) -> Any:
        return _ask(answer, SETTINGS, repository, data)["data_version"]

    first = _data(root / "data")
    moved = root / "elsewhere" / "copy"
    shutil.copytree(first, moved)
    for path in sorted(moved.rglob("*"), reverse=True):
        os.utime(path, (1, 1))
    checks.integer(
        "versions of the same files in two folders, written at two times",
        len({_text(version(first)), _text(version(moved))}),
        1,
        look="into the hash go the path inside `data` and the bytes, and neither the folder's path nor a "
        "time",
    )
    changes = {
        "a byte has changed": lambda data: (data / "part-1.csv").write_text("1,1\n3,5\n"),
        "a byte in a folder below has changed": lambda data: (data / "more/part-2.csv").write_text("5,7\n"),
        "a name has changed": lambda data: (data / "part-1.csv").rename(data / "part-9.csv"),
        "a file was added": lambda data: (data / "part-3.csv").write_text(""),
        "a line has moved to the next file": lambda data: [
            (data / "part-0.csv").write_text("a,b\n"), (data / "part-1.csv").write_text("0,0\n1,1\n3,4\n"),
        ],
        "two files have exchanged their names": lambda data: [
            (data / "part-0.csv").rename(data / "x"), (data / "part-1.csv").rename(data / "part-0.csv"),
            (data / "x").rename(data / "part-1.csv"),
        ],
    }  # fmt: skip
    seen = {_text(version(first))}
    for number, (what, change) in enumerate(changes.items(), 2):
        data = root / f"data-{number}"
        shutil.copytree(first, data)
        change(data)
        seen.add(_text(version(data)))
        checks.integer(
            f"versions seen when {what}",
            len(seen),
            number,
            look="every file below `data` counts, with its path in it and its own hash, so that a line that "
            "moves from one file to the next changes the version too",
        )


def _code(checks: Checks, answer: Any, root: Path) -> None:
    repository, data = new_repository(root / "code-2"), root / "data"
    right = git(repository, "rev-parse", "HEAD")

    def ask() -> dict[str, Any]:
        return _ask(answer, SETTINGS, repository, data)

    clean = ask()
    (repository / "train.py").write_text("lr = 2\n")
    edited = ask()
    git(repository, "checkout", "train.py")
    (repository / "new.py").write_text("lr = 3\n")
    added = ask()
    checks.equal(
        "commit", clean["commit"], right,
        look="git rev-parse HEAD with cwd=repository: it is not the folder that this process is in",
    )  # fmt: skip
    for what, found, dirty in (
        ("clean", clean, False),
        ("edited", edited, True),
        ("a new file", added, True),
    ):
        checks.equal(f"dirty, {what}", found["dirty"], dirty, look="bool(git status --porcelain): a bool")
    checks.equal("settings", clean["settings"], SETTINGS)
    try:
        back = json.loads(json.dumps(clean))
    except TypeError as error:
        raise CheckFailed(f"the record is no JSON: {error}.\nWhere to look: text, numbers, bools.") from None
    checks.true("the record is the same after a trip through JSON", back == clean)


def _runs(find: Any, folder: Path) -> tuple[list[Any], list[Path | None]]:
    """What was found, and what is right: of two runs with weights of one size, one twice, and of none."""
    runs = []
    for number, name in enumerate(_NAMES):
        run = folder / name
        run.mkdir(parents=True)
        (run / "model.safetensors").write_bytes(bytes([number]) * 64)
        (run / "record.json").write_text(json.dumps({"settings": {"lr": number}}), encoding="utf-8")
        runs.append(run)
    live = folder.parent / "live"
    live.mkdir()
    wanted: list[Path | None] = [runs[2], runs[4], runs[0], None]
    found = []
    for number, right in enumerate(wanted):
        weights = live / f"model-{number}.safetensors"
        weights.write_bytes(b"\x77" * 64 if right is None else (right / "model.safetensors").read_bytes())
        found.append(find(list(runs), weights))
    return found, wanted


def _same(found: Any, right: Path | None) -> bool:
    return found is None if right is None else isinstance(found, Path) and found == right


def _data(folder: Path) -> Path:
    (folder / "more").mkdir(parents=True)
    (folder / "part-0.csv").write_text("a,b\n0,0\n")
    (folder / "part-1.csv").write_text("1,1\n3,4\n")
    (folder / "more" / "part-2.csv").write_text("5,6\n")
    return folder


def _ask(answer: Any, *arguments: Any) -> dict[str, Any]:
    found = answer(*arguments)
    if found is None or found is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if found is None else "..."))
    if not isinstance(found, dict):
        raise CheckFailed(f"got {type(found).__name__}: give a dict.")
    missing = [key for key in KEYS if key not in found]
    if missing:
        raise CheckFailed(f"the record has no {missing[0]!r}: its keys are {', '.join(KEYS)}.")
    return found


def _text(version: Any) -> str:
    if not isinstance(version, str) or not version:
        raise CheckFailed(f"data_version is {version!r}: give the hash as text, digest.hexdigest().")
    return version
