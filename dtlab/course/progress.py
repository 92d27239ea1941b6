"""What the reader has solved, in one local JSON file. Nothing here can make a lesson fail.

The file is `progress.json` under `~/.local/share/dtlab` (or XDG_DATA_HOME), or the path in DTLAB_PROGRESS.
It is written beside and renamed. A file that cannot be read counts as empty; one that cannot be written
is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from html import escape
from pathlib import Path
from typing import Any

from dtlab.course.curriculum import LESSONS
from dtlab.course.display import show_html


def progress_file() -> Path:
    """Where progress is kept."""
    chosen = os.environ.get("DTLAB_PROGRESS")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "dtlab" / "progress.json"


def read_progress() -> dict[str, dict[str, Any]]:
    """`{"solved": {exercise: day}, "finished": {lesson: day}, "predicted": {question: answer}}`."""
    kept: dict[str, dict[str, Any]] = {"solved": {}, "finished": {}, "predicted": {}}
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        data = json.loads(progress_file().read_text(encoding="utf-8"))
        if isinstance(data, dict):
            kept.update({key: data[key] for key in kept if isinstance(data.get(key), dict)})
    return kept


def record(kind: str, name: str, value: Any = None) -> None:
    """Remember that `name` was solved, finished or predicted (with `value`); today's date by default."""
    data = read_progress()
    data[kind][name] = time.strftime("%Y-%m-%d") if value is None else value
    with contextlib.suppress(OSError, RuntimeError):
        path = progress_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(beside, path)


def progress_table() -> None:
    """Show one row a lesson: title, minutes, exercises solved, finished or not."""
    from dtlab.course.checks import exercises_of  # which imports this module

    data = read_progress()
    rows = []
    for number, lesson in LESSONS.items():
        names = exercises_of(number)
        solved = sum(name in data["solved"] for name in names)
        finished = number in data["finished"] and solved == len(names)
        state = "finished" if finished else f"{solved} of {len(names)} solved" if solved else "-"
        rows.append((number, lesson.title, f"{lesson.minutes} min", state))
    width = max(len(row[1]) for row in rows)
    text = "\n".join(f"{n}  {t:<{width}}  {m:>6}  {s}" for n, t, m, s in rows)
    cells = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(v)}</td>" for v in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th style='text-align:left'>{h}</th>" for h in ("Lesson", "Title", "Time", "You"))
    show_html(f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>", text)
