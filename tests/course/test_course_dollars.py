"""Money stays money: no typesetter finds a formula between two dollars of a card, or of a lesson's text."""

import re
from html.parser import HTMLParser

import pytest

from dtlab.course import bill, display, goal, hint, paths, predict, progress_table, recap
from dtlab.course.checks import _EXERCISES, exercise
from dtlab.course.shape import _money_errors
from dtlab.course.source import lessons
from dtlab.figures.html import NO_FORMULAS, without_formulas


class Typesetter(HTMLParser):
    """Finds what MathJax would: a formula inside one run of text that no element interrupts."""

    def __init__(self, heed_classes):
        super().__init__()
        self.heed_classes, self.ignored, self.formulas, self.dollars = heed_classes, [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "img"):
            classes = (dict(attrs).get("class") or "").split()
            self.ignored.append("mathjax_ignore" in classes and "tex2jax_ignore" in classes)

    def handle_endtag(self, tag):
        self.ignored.pop()

    def handle_data(self, data):
        self.dollars += data.count("$")
        if not (self.heed_classes and any(self.ignored)):
            self.formulas += re.findall(r"\$[^$]+\$", data)


def typeset(html, heed_classes):
    found = Typesetter(heed_classes)
    found.feed(html)
    found.close()
    return found


def test_the_typesetter_of_this_test_finds_a_formula():
    assert typeset("<div>$5 or $6</div>", True).formulas == ["$5 or $"]
    assert typeset(f"<div class='{NO_FORMULAS}'>$5 or $6</div>", True).formulas == []


@pytest.fixture
def shown(monkeypatch):
    """The HTML that the cards would show in a notebook."""
    pages = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: pages.append(data["text/html"]))
    return pages


def test_no_card_holds_a_formula_for_any_front_end(shown, monkeypatch):
    @exercise("97-money", todo="count", hints=("$1 and $2", "$3 and $4"))
    def _money(checks, answer):
        checks.integer("dollars", answer, 1)

    money = "from $5 down to $2, in <b>one</b> & another $ of 'course'"
    monkeypatch.setattr("dtlab.widgets.frontend.has_front_end", lambda: False)
    try:
        goal([money, money], minutes=5, costs="$1 to $2")
        predict("97-dollars", money, [money, money]).reveal("a", because=money)
        bill("wrong", "right", instance="ml.g5.12xlarge", fault_seconds=28800, fix_seconds=3600)
        hint("97-money")
        recap("97", [money] * 3)
        progress_table()
        paths.paths_table()
    finally:
        _EXERCISES.pop("97-money")
    assert len(shown) == 8
    assert sum(typeset(html, True).dollars for html in shown) > 20
    for html in shown:
        for heed_classes in (True, False):
            assert typeset(html, heed_classes).formulas == [], html


def test_a_dollar_in_an_attribute_is_left_alone():
    html = without_formulas("<a href='a$b$c' title='$1 &gt; $2'>$3</a>")
    assert "href='a$b$c' title='$1 &gt; $2'><span>$</span>3<" in html


@pytest.mark.parametrize(
    "text",
    [
        "It cost $9.78 an hour, then $5.",
        'nearly "$200", of $N$ cards',
        "over $800, and $5",
        "from $5 to $6",
    ],
)
def test_money_beside_another_dollar_is_an_authors_error(text):
    assert len(_money_errors(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        r"It cost \$9.78 an hour, then \$5.",
        "$4 + 4 + 2 \\cdot 4 = 16$ bytes, at most $1/f$, $2(N-1)\\,S$ bytes and $2S$, $0.1\\,(1 + x)$",
        "$$1 + 1$$\n\nand `$5 or $6`, and\n\n```\n$7 for $8\n```\n",
        "one $200 alone",
    ],
)
def test_formulas_code_and_escaped_money_are_fine(text):
    assert _money_errors(text) == []


def test_no_lesson_shows_money_as_a_formula():
    assert [
        e for one in lessons() for c in one.cells if c.kind == "markdown" for e in _money_errors(c.text)
    ] == []
