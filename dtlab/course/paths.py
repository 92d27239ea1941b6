"""The ways through the course, and which of their lessons exist: shown on the start page (lesson 00)."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

from dtlab.course.curriculum import LESSONS
from dtlab.course.display import show_html


class CoursePath(NamedTuple):
    """A way through the course: who it is for and the numbers of its lessons, in order."""

    what_for: str
    lessons: tuple[str, ...]


PATHS: dict[str, CoursePath] = {
    "Taster, 90 minutes": CoursePath(
        "see ranks at work and two ways in which they go wrong", ("02", "04", "08")
    ),
    "Practitioner's day": CoursePath(
        "train your own model on several cards", ("01", "02", "03", "04", "06", "09", "12")
    ),
    "Cloud day": CoursePath(
        "know the cost, survive failures, run jobs", ("10", "11", "12", "13", "14", "15")
    ),
}


def paths_table(folder: Path | None = None) -> None:
    """Show each path with its lessons: a link where the lesson exists, "planned" where it does not.

    Links lead to notebooks in `folder`, by default the working directory, which is that of the open notebook.

    >>> paths_table()  # doctest: +ELLIPSIS
    Taster, 90 minutes: see ranks at work and two ways in which they go wrong
      02 Ranks, collectives, parameter server or ring
    ...
    """
    folder = Path.cwd() if folder is None else folder
    text, rows = [], []
    for name, path in PATHS.items():
        ready = [number for number in path.lessons if number in LESSONS]
        planned = [number for number in path.lessons if number not in LESSONS]
        text += [f"{name}: {path.what_for}", *(f"  {number} {LESSONS[number].title}" for number in ready)]
        lines = [lesson_link(number, folder) for number in ready]
        if planned:
            told = f"planned: {', '.join(planned)}"
            text.append(f"  {told}")
            lines.append(f"<em>{told}</em>")
        rows.append((f"<strong>{escape(name)}</strong><br>{escape(path.what_for)}", "<br>".join(lines)))
    cell = "text-align:left;vertical-align:top;padding:.3em 1.5em .3em 0"
    head = f"<th scope='row' style='{cell};font-weight:normal'>"
    body = "".join(f"<tr>{head}{name}</th><td style='{cell}'>{lines}</td></tr>" for name, lines in rows)
    show_html(f"<table><tbody>{body}</tbody></table>", "\n".join(text))


def lesson_link(number: str, folder: Path | None = None) -> str:
    """HTML: number and title of a lesson, linked when its notebook is in `folder` (the working directory)."""
    folder = Path.cwd() if folder is None else folder
    told = escape(f"{number} {LESSONS[number].title}")
    found = sorted(folder.glob(f"{number}_*.ipynb"))
    return f"<a href='{escape(found[0].name)}'>{told}</a>" if found else told
