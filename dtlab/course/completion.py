"""The completion report: for each lesson what was checked, when and by which version, as a file.

- `completion()` is the report as plain values; `markdown` and `html` are texts made from it alone.
- `write_report("report.md")` writes it with the same values as `report.json` beside; each appears by rename.
- It holds what the progress file holds: what this machine's checks compared. Its owner can edit that file, so
  the report is a record and not a certificate, and says so.
"""

from __future__ import annotations

import json
import time
from html import escape
from pathlib import Path
from typing import Any

from dtlab.course.curriculum import LESSONS
from dtlab.course.progress import read_progress, state_of
from dtlab.errors import UserError
from dtlab.files import appears_whole, require_writable

NOTE = (
    "Made from the progress file of one machine. Each fact was compared when the answer was accepted; its "
    "owner can edit the file, so this is a record and not a certificate."
)
_NOT_KEPT = "accepted by a version that did not keep what was compared"
_FORMATS = (".md", ".html")


def completion() -> dict[str, Any]:
    """`{"written", "version", "note", "finished", "solved", "exercises", "lessons": [...]}`.

    A lesson has number, title, state, the day on which it was finished (or None) and its exercises; each of
    these name, solved, when, version and facts.
    """
    from dtlab import __version__

    data = read_progress()
    lessons: list[dict[str, Any]] = []
    for number, info in LESSONS.items():
        names, solved, finished = state_of(number, data)
        exercises = [_exercise(name, data) for name in names]
        state = "finished" if finished else "begun" if solved else "not begun"
        day = str(data["finished"][number]) if finished else None
        lessons.append(
            {"number": number, "title": info.title, "state": state, "finished": day, "exercises": exercises}
        )
    return {
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "version": __version__,
        "note": NOTE,
        "finished": sum(lesson["state"] == "finished" for lesson in lessons),
        "solved": sum(exercise["solved"] for lesson in lessons for exercise in lesson["exercises"]),
        "exercises": sum(len(lesson["exercises"]) for lesson in lessons),
        "lessons": lessons,
    }


def _exercise(name: str, data: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kept = data["checked"].get(name)
    kept = kept if isinstance(kept, dict) else {}
    facts = kept.get("facts")
    solved = name in data["solved"]
    return {
        "name": name,
        "solved": solved,
        "when": str(kept.get("when") or data["solved"][name]) if solved else None,
        "version": str(kept["version"]) if solved and kept.get("version") else None,
        "facts": [str(fact) for fact in facts] if solved and isinstance(facts, list) else [],
    }


def summary(report: dict[str, Any]) -> str:
    """One line: how much is solved."""
    return (
        f"{report['finished']} of {len(report['lessons'])} lessons finished, {report['solved']} of "
        f"{report['exercises']} exercises solved"
    )


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown, without raw HTML."""
    lines = [
        "# dtlab course: completion report",
        "",
        f"{summary(report)}. Written {report['written']} by dtlab {report['version']}.",
        "",
        report["note"],
    ]
    for lesson in report["lessons"]:
        state = f"finished {lesson['finished']}" if lesson["finished"] else lesson["state"]
        lines += ["", f"## {lesson['number']} {lesson['title']}", "", f"State: {state}."]
        for exercise in lesson["exercises"]:
            lines += ["", f"- **{exercise['name']}**: {_when(exercise)}"]
            lines += [f"  - {_plain(fact)}" for fact in exercise["facts"]]
    return "\n".join(lines) + "\n"


def _when(exercise: dict[str, Any]) -> str:
    if not exercise["solved"]:
        return "not solved"
    if exercise["version"] is None:
        return f"solved {exercise['when']}; {_NOT_KEPT}"
    return f"solved {exercise['when']}, checked by dtlab {exercise['version']}"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in "\\`*_<[|$":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def html(report: dict[str, Any]) -> str:
    """The report as one HTML page, without scripts and without anything from elsewhere."""
    parts = [
        f"<h1>dtlab course: completion report</h1><p><strong>{escape(summary(report))}.</strong> "
        f"Written {escape(report['written'])} by dtlab {escape(report['version'])}.</p>"
        f"<p>{escape(report['note'])}</p>"
    ]
    for lesson in report["lessons"]:
        state = f"finished {lesson['finished']}" if lesson["finished"] else lesson["state"]
        parts.append(f"<h2>{escape(lesson['number'] + ' ' + lesson['title'])}</h2><p>{escape(state)}</p>")
        if not lesson["exercises"]:
            continue
        rows = "".join(
            f"<tr><td>{escape(one['name'])}</td><td>{escape(_when(one))}</td><td>"
            + "<br>".join(escape(fact) for fact in one["facts"])
            + "</td></tr>"
            for one in lesson["exercises"]
        )
        head = "<tr><th scope='col'>Exercise</th><th scope='col'>When</th><th scope='col'>Compared</th></tr>"
        parts.append(f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
    style = (
        "body{font-family:sans-serif;max-width:60em;margin:2em auto;line-height:1.5}"
        "table{border-collapse:collapse}td,th{border:1px solid #999;padding:.3em .6em;text-align:left;"
        "vertical-align:top}"
    )
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>dtlab course: completion report"
        f"</title><style>{style}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def write_report(path: str | Path) -> tuple[dict[str, Any], list[Path]]:
    """Write the report to `path` (.md or .html), and as JSON beside it; the report and both files.

    Raises UserError for another ending, or a place that cannot be written.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise UserError(f"output = {str(path)!r}: give a name that ends in {' or '.join(_FORMATS)}")
    files = [path, path.with_suffix(".json")]
    for file in files:
        require_writable(file, "output")
    report = completion()
    texts = [
        (markdown if path.suffix == ".md" else html)(report),
        json.dumps(report, indent=1, ensure_ascii=False) + "\n",
    ]
    for file, text in zip(files, texts, strict=True):
        with appears_whole(file, "output") as beside:
            beside.write_text(text, encoding="utf-8")
    return report, files
