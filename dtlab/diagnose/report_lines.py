"""A report card: lines with what was measured, what was asked for and a verdict (lesson 16). No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One line. ``part`` is the decision it speaks of; ``look`` says where to look when it is wrong.

    ``limit``: the measured over its limit, where there is one; above 1 is too much.
    """

    name: str
    part: str
    measured: str
    wanted: str
    passed: bool
    look: str = ""
    limit: float | None = None

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else f"FAIL: {self.part}"


@dataclass(frozen=True)
class ReportCard:
    """Lines in order; cards of parts of the work add up: ``card + plan_card``.

    >>> card = ReportCard((Line("bytes", "share", "9", "at most 10", True, limit=0.9),))
    >>> card.passed, card.faults
    (True, [])
    """

    lines: tuple[Line, ...]

    def __add__(self, other: ReportCard) -> ReportCard:
        return ReportCard((*self.lines, *other.lines))

    @property
    def failed(self) -> list[Line]:
        """The lines that do not pass."""
        return [line for line in self.lines if not line.passed]

    @property
    def passed(self) -> bool:
        """Whether there are lines, and all pass."""
        return bool(self.lines) and not self.failed

    @property
    def faults(self) -> list[str]:
        """The decisions that a line fails for, each once, in the order of the lines."""
        return list(dict.fromkeys(line.part for line in self.failed))

    def text(self) -> str:
        """A table in plain text."""
        rows = [("", "measured", "wanted", "verdict"), *map(cells, self.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def cells(line: Line) -> tuple[str, str, str, str]:
    """A line as a row of a table: name, measured, wanted, verdict."""
    return line.name, line.measured, line.wanted, line.verdict
