"""What the reader has solved, in one local JSON file. Nothing here can make a lesson fail.

The file is `progress.json` under `~/.local/share/dtlab` (or XDG_DATA_HOME), or the path in DTLAB_PROGRESS.
It is written beside and renamed. A file that cannot be read counts as empty, which one line says; the next
write keeps it beside, with `.damaged` behind its name. A file that cannot be written is left alone, which one
line says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dtlab.course.curriculum import LESSONS
from dtlab.course.display import show_html

KINDS = ("solved", "finished", "predicted", "checked")
_TOLD: set[Path] = set()
_TOLD_UNWRITABLE: set[Path] = set()


def progress_file() -> Path:
    """Where progress is kept."""
    chosen = os.environ.get("DTLAB_PROGRESS")
    if chosen:
        return _at_home(chosen)
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return _at_home(home) / "dtlab" / "progress.json"


def _at_home(name: str) -> Path:
    """``name`` with the home that ``~`` stands for; as it is where there is none (``~nobody``)."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def read_progress() -> dict[str, dict[str, Any]]:
    """What is kept, by kind; what cannot be read counts as empty, and a line says so, once.

    `{"solved": {exercise: day}, "finished": {lesson: day}, "predicted": {question: answer}, "checked":
    {exercise: {"when": time, "version": dtlab's, "facts": what was compared}}}`.
    """
    kept, damage = _read()
    if damage:
        path = progress_file()
        if path not in _TOLD:
            _TOLD.add(path)
            print(
                f"progress: {str(path)!r} {damage}: that counts as empty; the next solved exercise keeps the "
                f"file as {_aside(path).name}"
            )
    return kept


def _read() -> tuple[dict[str, dict[str, Any]], str]:
    """What is kept, and what is wrong with the file: an empty text when nothing is, or when there is none."""
    kept: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    path = progress_file()
    try:
        if not _is_plain(path):
            return kept, "is no plain file"
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kept, ""
    except OSError as error:
        return kept, f"cannot be read ({error.strerror or type(error).__name__})"
    except (ValueError, RuntimeError):
        return kept, "is not JSON"
    if not isinstance(data, dict):
        return kept, "is not what dtlab writes"
    kept.update({kind: data[kind] for kind in KINDS if isinstance(data.get(kind), dict)})
    odd = [kind for kind in KINDS if not isinstance(data.get(kind, {}), dict)]
    return kept, f"has no usable {' and '.join(odd)}" if odd else ""


def _is_plain(path: Path) -> bool:
    """Not a pipe, which would make a reader wait, nor a device, which a rename would replace."""
    return path.is_file() or path.is_dir() or not path.exists()


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


def record(kind: str, name: str, value: Any = None) -> None:
    """Remember that `name` was solved, finished or predicted (with `value`); today's date by default."""
    _write({kind: {name: time.strftime("%Y-%m-%d") if value is None else value}})


def record_solved(name: str, facts: Sequence[str]) -> None:
    """Remember that exercise `name` was solved now, with this version, and what was compared."""
    from dtlab import __version__

    checked = {"when": time.strftime("%Y-%m-%d %H:%M"), "version": __version__, "facts": list(facts)}
    _write({"solved": {name: checked["when"][:10]}, "checked": {name: checked}})


def _write(news: dict[str, dict[str, Any]]) -> None:
    """Add `news` to the file; where that cannot be done a line says so, once, and the lesson goes on."""
    path = progress_file()
    try:
        _add(path, news)
    except (OSError, RuntimeError) as error:
        if path not in _TOLD_UNWRITABLE:
            _TOLD_UNWRITABLE.add(path)
            why = getattr(error, "strerror", None) or error
            print(
                f"progress: {str(path)!r} cannot be written ({why}): what you solve is not kept; name "
                "another file in the variable DTLAB_PROGRESS before the notebook is started"
            )


def _add(path: Path, news: dict[str, dict[str, Any]]) -> None:
    path = Path(os.path.realpath(path))  # a link to a synchronised folder stays one
    if not _is_plain(path):
        raise OSError(errno.EINVAL, "it is no plain file")
    with contextlib.ExitStack() as held:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two notebooks may solve at once: neither must write over what the other has just kept.
        folder = os.open(path.parent, os.O_RDONLY)
        held.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        data = read_progress()
        damaged = _read()[1]
        for kind, entries in news.items():
            data[kind].update(entries)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        held.callback(beside.unlink, missing_ok=True)  # what a full disk leaves
        beside.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if damaged and path.is_file():
            os.replace(path, _aside(path))
        os.replace(beside, path)


def state_of(number: str, data: dict[str, dict[str, Any]]) -> tuple[list[str], list[str], bool]:
    """Of a lesson: its exercises, those that are solved, and whether it is finished with all of them."""
    from dtlab.course.checks import exercises_of  # which imports this module

    names = exercises_of(number)
    solved = [name for name in names if name in data["solved"]]
    return names, solved, number in data["finished"] and len(solved) == len(names)


def progress_table() -> None:
    """Show one row a lesson: title, minutes, exercises solved, finished or not."""
    data = read_progress()
    rows = []
    for number, lesson in LESSONS.items():
        names, solved, finished = state_of(number, data)
        state = "finished" if finished else f"{len(solved)} of {len(names)} solved" if solved else "-"
        rows.append((number, lesson.title, f"{lesson.minutes} min", state))
    width = max(len(row[1]) for row in rows)
    text = "\n".join(f"{n}  {t:<{width}}  {m:>6}  {s}" for n, t, m, s in rows)
    cells = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(v)}</td>" for v in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th style='text-align:left'>{h}</th>" for h in ("Lesson", "Title", "Time", "You"))
    show_html(f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>", text)
