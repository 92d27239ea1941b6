"""The rules for authors: the ten parts, headings, tags, cell length. Pure: a source in, a list out."""

from __future__ import annotations

import ast
import re

from dtlab.course.source import TAGS, Cell, Lesson, regions

PARTS = (
    "Goal",
    "Predict",
    "Break it",
    "Look",
    "Build it",
    "Check",
    "The real thing",
    "On a GPU",
    "The bill",
    "Recap",
)
ALIASES = {"On SageMaker": "On a GPU", "On a GPU or SageMaker": "On a GPU"}
MAX_LINES = 25
MAX_WIDTH = 110  # of a line of code: what a page of usual width shows without scrolling
# An amount such as $9.78, before a word, a quote or the end of a sentence. $4 + 4$ and $1/f$ are formulas.
MONEY = re.compile(r"""(?<![\\$])\$\d[\d,.]*(?=["')*]|\s+[A-Za-z]{2,}|\s*$)""", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FREE_SHAPE = "00"  # the start page is no lesson: it has headings but not the ten parts


def author_errors(lesson: Lesson) -> list[str]:
    """Every broken rule, one line each: `02_slug cell 7: what is wrong and what to do`."""
    found = [f"{lesson.name} cell {c.number}: {e}" for c in lesson.cells for e in _cell_errors(c)]
    found += [f"{lesson.name} {e}" for e in _heading_errors(lesson)]
    if lesson.number != FREE_SHAPE:
        found += [f"{lesson.name}: {e}" for e in _part_errors(lesson)]
    return found


def _cell_errors(cell: Cell) -> list[str]:
    errors = []
    unknown = sorted(set(cell.tags) - TAGS)
    if unknown:
        errors.append(f"unknown tag {unknown[0]!r}; known: {' '.join(sorted(TAGS))}")
    if cell.extra:
        errors.append(f"cell metadata {cell.extra[0]!r} is not allowed; a cell carries tags only")
    length = len(cell.solution_text.split("\n"))
    if length > MAX_LINES:
        errors.append(f"{length} lines; split it, {MAX_LINES} at most")
    wide = [line for line in cell.text.split("\n") if len(line) > MAX_WIDTH] if cell.kind == "code" else []
    errors += [f"{len(line)} characters in '{line.strip()[:30]}...'; {MAX_WIDTH} at most" for line in wide]
    if {"varies", "nbval-check-output"} <= set(cell.tags):
        errors.append("tags 'varies' and 'nbval-check-output' exclude each other")
    if cell.kind != "code":
        return errors + _money_errors(cell.text)
    try:
        marked = regions(cell.text)
        ast.parse(cell.text)
    except SyntaxError as error:
        return [*errors, f"line {error.lineno}: not plain Python ({error.msg}); magics are not allowed"]
    except ValueError as error:
        return [*errors, str(error)]
    if marked and "exercise" not in cell.tags:
        errors.append("has solution markers but not the tag 'exercise'")
    if "exercise" in cell.tags and not marked:
        errors.append("is tagged 'exercise' but has no ### BEGIN SOLUTION / ### END SOLUTION")
    if "check" in cell.tags and not re.search(r"\bcheck\(", cell.text):
        errors.append("is tagged 'check' but calls no check(...)")
    return errors


def _money_errors(text: str) -> list[str]:
    """An amount of money that a second dollar in the cell would turn into a formula."""
    prose = CODE.sub("", text)
    amounts = MONEY.findall(prose)
    if not amounts or len(re.findall(r"(?<!\\)\$", prose)) < 2:
        return []
    return [f"{amounts[0]!r} is shown as a formula beside another dollar; write money as \\$5 in markdown"]


def headings(lesson: Lesson) -> list[tuple[int, int, str]]:
    """(cell number, level, text) of every heading in the markdown cells, code fences skipped."""
    found = []
    for cell in lesson.cells:
        fenced = False
        for line in cell.text.split("\n") if cell.kind == "markdown" else ():
            fenced ^= line.lstrip().startswith("```")
            match = re.match(r"(#+)\s+(.*)", line)
            if match and not fenced:
                found.append((cell.number, len(match[1]), match[2].strip()))
    return found


def _heading_errors(lesson: Lesson) -> list[str]:
    errors, found = [], headings(lesson)
    titles = [number for number, level, _ in found if level == 1]
    if not found or found[0][1] != 1 or found[0][0] != 1:
        errors.append("cell 1: must start with the title, one '# ...' heading")
    errors += [f"cell {n}: a second '#' title; use ## or ###" for n in titles[1:]]
    previous = 1
    for number, level, text in found:
        if level > 3:
            errors.append(
                f"cell {number}: heading {text!r} has level {level}; only ## and ### below the title"
            )
        elif level > previous + 1:
            errors.append(f"cell {number}: heading {text!r} skips a level")
        previous = min(level, 3)
    return errors


def part_of(heading: str) -> str | None:
    """The part of the lesson that a `##` heading opens: "Build it: the ring" -> "Build it"."""
    for name, part in [*ALIASES.items(), *[(p, p) for p in PARTS]]:
        if re.match(rf"{re.escape(name)}(\W|$)", heading):
            return part
    return None


def _part_errors(lesson: Lesson) -> list[str]:
    errors: list[str] = []
    first: dict[str, int] = {}
    for number, level, text in headings(lesson):
        if level != 2:
            continue
        part = part_of(text)
        if part is None:
            errors.append(f"cell {number}: '## {text}' names none of the ten parts; use ### inside a part")
        else:
            first.setdefault(part, number)
    missing = [part for part in PARTS if part not in first]
    if missing:
        errors.append("missing parts: " + ", ".join(f"'## {part}'" for part in missing))
    order = list(first)
    expected = [part for part in PARTS if part in first]
    if order != expected:
        wrong = next(a for a, b in zip(order, expected, strict=True) if a != b)
        errors.append(
            f"part '## {wrong}' (cell {first[wrong]}) is out of order; the order is {', '.join(PARTS)}"
        )
    tags = {tag for cell in lesson.cells for tag in cell.tags}
    errors += [
        f"no cell is tagged {tag!r}" for tag in ("lab-failure", "exercise", "check") if tag not in tags
    ]
    return errors
