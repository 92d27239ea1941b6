"""One look for every figure: colour-blind safe colours, a title that states the finding, units, alt text.

Figures are made without pyplot, so nothing is kept alive behind the reader's back and two threads may draw.
A figure function is pure: values in, `matplotlib.figure.Figure` out. Colour is never alone in carrying
meaning: add a hatch, a marker or a label.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from html import escape
from typing import TYPE_CHECKING, Any

from dtlab.figures.html import without_formulas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008): distinct under the three common colour deficiencies.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
BLUE, ORANGE, GREEN, PINK, RED, SKY, YELLOW, BLACK = PALETTE
GREY = "#8A8A8A"
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DPI = 110


def rank_style(rank: int) -> dict[str, Any]:
    """Colour and hatch of a rank in bars and cells: `axes.bar(x, y, **rank_style(1))`."""
    return {
        "color": PALETTE[rank % 7],
        "hatch": HATCHES[rank % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.5,
    }


def new_figure(
    title: str,
    *,
    alt: str,
    xlabel: str = "",
    ylabel: str = "",
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (7.0, 3.6),
    **subplots: Any,
) -> tuple[Figure, Any]:
    """A figure and its axes (one, or an array for a grid), with the house style.

    - `title` states the finding ("Two ranks, same samples"); `alt` says in words what is drawn.
    - `xlabel`, `ylabel` carry units: "message size (MB)". `size` is in inches. `subplots` goes to
      `Figure.subplots` (sharex, width_ratios as gridspec_kw, ...).

    >>> fig, ax = new_figure("Bytes grow with ranks", alt="a line", xlabel="ranks", ylabel="bytes (MB)")
    >>> alt_text(fig)
    'Bytes grow with ranks. a line'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not alt.strip():
        raise ValueError("alt is empty: say in words what the figure shows")
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, **subplots)
    for one in axes.flat if hasattr(axes, "flat") else [axes]:
        one.spines[["top", "right"]].set_visible(False)
        one.set_prop_cycle(color=PALETTE)
        one.set_xlabel(xlabel)
        one.set_ylabel(ylabel)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False)
    figure.set_gid(f"{title}. {alt}")  # travels with the figure, also into SVG
    return figure, axes


def alt_text(figure: Figure) -> str:
    """The figure in words: its title and what `new_figure` was given as `alt`."""
    return figure.get_gid() or ""


def png(figure: Figure) -> bytes:
    """The figure as PNG. The same figure gives the same bytes: no date, no version is written."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def is_static() -> bool:
    """True while a notebook is built or tested: DTLAB_STATIC=1, or a kernel that pytest started."""
    return os.environ.get("DTLAB_STATIC") == "1" or "PYTEST_CURRENT_TEST" in os.environ


def show(figure: Figure) -> None:
    """Display the figure in a notebook as an image with alt text; elsewhere print the alt text.

    JupyterLab and nbconvert drop the alt text of a PNG output, so a live notebook gets an HTML image that
    carries it. A stored one keeps the PNG, which code hosts show, with the same words folded below it.
    """
    words = alt_text(figure)
    text = f"[figure] {words}"
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        print(text)
        return
    from IPython.display import display

    image = base64.b64encode(png(figure)).decode()
    if not is_static():
        html = f'<img alt="{escape(words)}" src="data:image/png;base64,{image}">'
        display({"text/html": html, "text/plain": text}, raw=True)
        return
    display({"image/png": image, "text/plain": text}, raw=True, metadata={"image/png": {"alt": words}})
    folded = f"<details><summary>This figure in words</summary>{escape(words)}</details>"
    display({"text/html": without_formulas(folded), "text/plain": text}, raw=True)
