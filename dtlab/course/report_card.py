"""The report card of the capstone: what was measured of a recipe against what is asked for (lesson 16).

Each line of ``card_of(measure(recipe, data))`` names the decision that it speaks of, so a fault is named by
the lines that fail. What is measured, and how: ``dtlab.course.capstone_measure``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from dtlab.course.capstone_measure import SAME, Measured, measure
from dtlab.course.display import show_html
from dtlab.data.coverage import Seen
from dtlab.diagnose.report_lines import Line, ReportCard, cells

__all__ = ["Measured", "card_of", "measure", "show_card"]


def card_of(
    measured: Measured, *, least_auc: float | None = None, share_of_bytes: float = 0.25
) -> ReportCard:
    """Hold the measured against what is asked for.

    ``least_auc``: on the test rows; None leaves the line out. ``share_of_bytes``: how much of what whole
    tables would send a step may send.
    """
    rows, most = measured.rows, int(share_of_bytes * measured.bytes_of_whole_tables)
    wrong = max(abs(one - measured.auc) for one in measured.said)
    lines = [
        Line(
            "each row once an epoch", "order",
            f"{len(rows.twice):,} rows twice or more, {len(rows.never):,} never", "0 and 0", rows.once,
            _of_rows(rows),
        ),
        Line(
            "one model on all ranks", "share", "as one process" if measured.apart < SAME else "another model",
            f"as one process, to {SAME:g}", measured.apart < SAME,
            "the mean of the gradients over the ranks, for each parameter, and the same start on all of them",
        ),
        Line(
            "bytes of a rank in a step", "share", f"{measured.bytes:,}", f"at most {most:,}",
            0 < measured.bytes <= most,
            "a dense gradient of the tables has all of their rows, whatever the batch touched: give each row "
            "an owner",
            limit=measured.bytes / most,
        ),
        Line(
            "AUC that the trainer reports", "auc", f"off by {wrong:.4f}" if wrong > 1e-9 else "exact",
            "of all rows, each once", wrong <= 1e-9,
            "an AUC compares rows of different ranks too, so the mean of the ranks' AUCs is another number: "
            "bring the scores together by id",
        ),
        Line(
            "resume, new processes", "kept", _of_resume(measured), "the same weights, bit for bit",
            measured.is_resumed,
            "what the next step reads: weights, the optimizer's moments, the place in the epoch, each rank's "
            "generators",
        ),
    ]  # fmt: skip
    if least_auc is not None:
        lines.insert(
            3,
            Line(
                "AUC on the test rows", "recipe", f"{measured.auc:.3f}", f"at least {least_auc:.2f}",
                measured.auc >= least_auc, "all rows in the epoch, one model, a format that the loss bears",
                limit=least_auc / measured.auc if measured.auc > 0 else math.inf,
            ),
        )  # fmt: skip
    return ReportCard(tuple(lines))


def show_card(card: ReportCard) -> None:
    """The card as a table in a notebook, as text elsewhere."""
    style = "text-align:left;padding:.2em 1.2em .2em 0"
    head = _row(("", "measured", "wanted", "verdict"), style, "th")
    body = "".join(_row(cells(line), style, "td", bold=not line.passed) for line in card.lines)
    show_html(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>", card.text())


def _row(row: Iterable[str], style: str, tag: str, bold: bool = False) -> str:
    style += ";font-weight:bold" if bold else ""
    return "<tr>" + "".join(f"<{tag} style='{style}'>{escape(cell)}</{tag}>" for cell in row) + "</tr>"


def _of_rows(rows: Seen) -> str:
    if rows.once:
        return ""
    if not len(rows.never) and rows.counts.min() >= 1:
        return "every rank saw every row: the ranks must know of each other when they deal the rows out"
    if len(rows.never):
        return "rows that no rank saw: together the ranks must cover the epoch, also its last, shorter batch"
    return "some rows came twice: each global batch is cut in as many parts as there are ranks"


def _of_resume(measured: Measured) -> str:
    if measured.is_resumed:
        return "the same, bit for bit"
    return (
        f"another model: {', '.join(measured.missing)} not put back" if measured.missing else "another model"
    )
