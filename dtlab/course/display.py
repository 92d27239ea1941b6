"""Shows HTML in a notebook with the same content as plain text beside it; prints the text elsewhere."""

from __future__ import annotations

import sys

from dtlab.figures.html import without_formulas


def in_notebook() -> bool:
    """True inside a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def show_html(html: str, text: str) -> None:
    """Display `html`; front ends without HTML, screen readers and plain Python get `text`.

    Dollars in it are money: no front end makes formulas of them.
    """
    if not in_notebook():
        print(text)
        return
    from IPython.display import display

    display({"text/html": without_formulas(html), "text/plain": text}, raw=True)
