"""The cards of a lesson: goal, prediction, bill and recap, as HTML with the same content as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import Any

from dtlab.course.checks import exercises_of, solved
from dtlab.course.curriculum import LESSONS
from dtlab.course.display import in_notebook, show_html
from dtlab.course.paths import lesson_link
from dtlab.course.progress import read_progress, record
from dtlab.errors import UserError

_BOX = "border-left:4px solid {colour};padding:.4em 1em;margin:.4em 0;max-width:46em;line-height:1.5"
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"


def _card(
    title: str, lines: Sequence[str], colour: str, items: Sequence[str] = (), link: str | None = None
) -> None:
    """Show a card. `link` is the number of a lesson that the card ends with a link to."""
    body = "".join(f"<div>{escape(line)}</div>" for line in lines)
    listed = (
        "<ul style='margin:.2em 0'>" + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>"
        if items
        else ""
    )
    if link is not None:
        lines = [*lines, f"Next: {link} {LESSONS[link].title}"]
        body += f"<div>Next: {lesson_link(link)}</div>"
    style = _BOX.format(colour=colour)
    text = "\n".join([title, *[f"  - {item}" for item in items], *[f"  {line}" for line in lines]])
    show_html(f"<div style='{style}'><strong>{escape(title)}</strong>{listed}{body}</div>", text)


def goal(can: Sequence[str], *, minutes: int, needs: Sequence[str] = (), costs: str = "$0") -> None:
    """The goal card: what you will be able to do, minutes, prerequisites ("01"), cost.

    In a notebook it also starts the process that starts the ranks, which imports torch while the reader reads
    and the next cell imports its own. So a lesson calls `goal` before it imports torch.
    Example: `goal(["start two ranks from a cell"], minutes=45, needs=["01"])`.
    """
    before = (
        "Lessons before this one: " + ", ".join(needs) if needs else "No lesson before this one is needed"
    )
    if in_notebook():
        from dtlab.ranks.ahead import start_server

        with suppress(UserError, OSError):  # the first launch will say what is wrong
            start_server()
    _card("After this lesson you can", [f"{minutes} minutes. {before}. This costs {costs} here."], _BLUE, can)


class Prediction:
    """What the reader commits to before the run: `.commit("b")`, later `.reveal("b", because=...)`."""

    def __init__(self, name: str, question: str, options: dict[str, str]) -> None:
        self.name, self.question, self.options = name, question, options

    def _ipython_display_(self) -> None:
        """Show nothing more when `predict(...)` is a cell's last line: the card is there already."""

    def commit(self, answer: str) -> None:
        """Keep the reader's answer. Raises UserError when it is none of the options."""
        letter = str(answer).strip().lower()
        if letter not in self.options:
            raise UserError(f"answer {answer!r}: choose one of {', '.join(self.options)}")
        record("predicted", self.name, letter)
        print(f"Committed: {letter}) {self.options[letter]}")

    def reveal(self, right: str, because: str) -> None:
        """Show the right option and why, beside what the reader committed to."""
        said = read_progress()["predicted"].get(self.name)
        lines = [because]
        if said in self.options:
            verdict = "as you predicted" if said == right else f"you predicted {said}) {self.options[said]}"
            lines.insert(0, verdict[0].upper() + verdict[1:] + ".")
        _card(f"{right}) {self.options[right]}", lines, _GREEN)


def predict(name: str, question: str, options: Sequence[str]) -> Prediction:
    """Show a question with its options a), b), ...; the reader commits with buttons or `.commit("a")`.

    Never waits: without a front end the question is shown and the notebook goes on.
    Example: `first = predict("02-hang", "Who waits?", ["nobody", "every rank"])`.
    """
    lettered = {chr(ord("a") + i): option for i, option in enumerate(options)}
    asked = Prediction(name, question, lettered)
    lines = [f"{letter}) {option}" for letter, option in lettered.items()]
    _card(f"Predict before you run: {question}", lines, _ORANGE)
    from dtlab.widgets.frontend import has_front_end

    if has_front_end():
        _buttons(asked)
    return asked


def _buttons(asked: Prediction) -> None:
    import ipywidgets
    from IPython.display import display

    out = ipywidgets.Output()

    def press(button: Any) -> None:
        out.clear_output()
        with out:
            asked.commit(button.description)

    row = []
    for letter, option in asked.options.items():
        button = ipywidgets.Button(description=letter, tooltip=option, layout={"width": "3em"})
        button.on_click(press)
        row.append(button)
    display(ipywidgets.HBox(row), out)


def bill(
    fault: str, fix: str, *, instance: str, fault_seconds: float, fix_seconds: float, count: int = 1
) -> None:
    """What the fault costs on a named instance and what the fix costs, with the date of the price.

    `fault` and `fix` say in a few words what was run; seconds are those of the billed job, `count` the
    number of instances. Raises UserError for an instance that the catalogue does not know.
    """
    from dtlab.cost import billing

    wrong = billing.cost(instance, fault_seconds, count)
    right = billing.cost(instance, fix_seconds, count)
    saved = wrong.usd - right.usd
    lines = [
        f"{fault}: {wrong.line()}",
        f"{fix}: {right.line()}",
        f"The difference: ${saved:,.2f} a run.",
    ]
    _card("The bill", lines, _ORANGE)


def recap(lesson: str, lines: Sequence[str]) -> None:
    """Three lines to keep, how many exercises are solved, and the next lesson.

    Records the lesson as finished when all of its exercises are solved. Raises UserError unless there are
    three lines.
    """
    if len(lines) != 3:
        raise UserError(f"recap of lesson {lesson}: give three lines, not {len(lines)}")
    names, before = exercises_of(lesson), read_progress()["solved"]
    open_ones = [name for name in names if not solved(name) and name not in before]
    state = []
    if names:
        state.append(f"{len(names) - len(open_ones)} of {len(names)} exercises solved.")
    if open_ones:
        state.append(f"This lesson is finished when these are solved too: {', '.join(open_ones)}.")
    else:
        record("finished", lesson)
    following = next((number for number in LESSONS if number > lesson), None)
    _card("Keep these three lines", state, _BLUE, lines, link=following)
