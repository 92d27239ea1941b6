"""The report card as a figure: every line with its verdict, and the share of each limit (lesson 16)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from dtlab.figures.style import BLACK, BLUE, GREY, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dtlab.diagnose.report_lines import ReportCard

_LEAST, _MOST = 0.02, 50.0  # of a limit: what lies outside is drawn at the edge


def report_figure(card: ReportCard, title: str = "") -> Figure:
    """Left: the lines, what was measured and the verdict in words. Right: the share of each limit, log scale.

    ``title``: whose card it is. ValueError for a card without lines.

    >>> from dtlab.diagnose.report_lines import Line, ReportCard
    >>> figure = report_figure(ReportCard((Line("bytes", "share", "9", "at most 10", True, limit=0.9),)))
    """
    if not card.lines:
        raise ValueError("give a card with lines")
    failed = card.failed
    finding = f"{len(failed)} of {len(card.lines)} lines fail: {', '.join(card.faults)}" if failed else (
        f"all {len(card.lines)} lines pass"
    )  # fmt: skip
    words = "; ".join(
        f"{line.name}: {line.measured}, wanted {line.wanted}, {line.verdict}" for line in card.lines
    )
    fig, (names, bars) = new_figure(
        f"{title}: {finding}" if title else finding,
        alt=words,
        columns=2,
        size=(9.0, 1.3 + 0.36 * len(card.lines)),
        sharey=True,
        gridspec_kw={"width_ratios": [2.6, 1]},
    )
    for row, line in enumerate(card.lines):
        colour = BLUE if line.passed else RED
        names.text(0.0, row, "\u2713" if line.passed else "\u2717", color=colour, fontsize=12, va="center")
        names.text(
            0.04, row, line.name, va="center", fontsize=9, fontweight="normal" if line.passed else "bold"
        )
        measured = _in_two_lines(line.measured)
        names.text(0.45, row, measured, va="center", fontsize=8 if "\n" in measured else 9)
        names.text(1.0, row, line.verdict, va="center", ha="right", fontsize=9, color=colour)
        if line.limit is None:
            bars.text(_LEAST * 1.2, row, "yes or no", va="center", fontsize=8, color=GREY)
            continue
        used = min(max(line.limit, _LEAST), _MOST)
        bars.barh(
            row, used, left=0, height=0.55, color=colour, hatch="" if line.passed else "//", edgecolor="white"
        )
        beside = bars.get_yaxis_transform()  # a column right of the bars, clear of the line at the limit
        bars.text(1.02, row, f"{line.limit:.2g}", va="center", fontsize=8, transform=beside)
    names.set_axis_off()
    names.set_xlim(0, 1)
    bars.set_xscale("log")
    bars.set_xlim(_LEAST, _MOST * 3)
    bars.set_ylim(len(card.lines) - 0.5, -0.6)
    bars.axvline(1.0, color=BLACK, linestyle="--", linewidth=1)
    bars.set_xlabel("of the limit (1: just met)")
    bars.tick_params(axis="y", length=0, labelleft=False)
    bars.spines["left"].set_visible(False)
    return fig


def _in_two_lines(text: str, width: int = 38) -> str:
    """``text`` broken between words; what two lines do not hold is cut, with an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder=" \u2026"))
