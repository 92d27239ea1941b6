"""``dtlab doctor``: is this machine ready for ranks, and if not, what is the fix? (lesson 00)

It looks at the machine (``checks.py``) and then runs two real ranks that add two numbers.
"""

from __future__ import annotations

import html
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dtlab.diagnose import checks
from dtlab.diagnose.checks import FAIL, OK, WARN, Line
from dtlab.diagnose.utilisation import nvml_line, nvml_percent

_COLOURS = {OK: "#1a7f37", WARN: "#9a6700", FAIL: "#b42318"}


@dataclass(frozen=True)
class Report:
    """What ``doctor`` found. Printing it gives text; in a notebook cell it is a table.

    Attributes:
        lines: findings in order.
        good, bad: what the last line says when nothing FAILs, and when something does.
    """

    lines: tuple[Line, ...]
    good: str = "ready"
    bad: str = "not ready"

    @property
    def ok(self) -> bool:
        """Whether nothing FAILs: ranks will run here."""
        return all(line.status != FAIL for line in self.lines)

    @property
    def failed(self) -> bool:
        """Whether something FAILs."""
        return not self.ok

    @property
    def counts(self) -> dict[str, int]:
        """Number of lines per status."""
        return {status: sum(line.status == status for line in self.lines) for status in (OK, WARN, FAIL)}

    def verdict(self) -> str:
        """The last line in words."""
        counts = self.counts
        if not self.ok:
            return f"{self.bad}: {counts[FAIL]} of {len(self.lines)} checks failed"
        if counts[WARN]:
            return f"{self.good}, with {counts[WARN]} warning{'s' if counts[WARN] > 1 else ''}"
        return self.good

    def to_json(self) -> str:
        """One JSON object: ``ok``, ``counts``, ``lines``."""
        body = {"ok": self.ok, "counts": self.counts, "lines": [checks.as_dict(line) for line in self.lines]}
        return json.dumps(body, indent=2)

    def __str__(self) -> str:
        width = max((len(line.name) for line in self.lines), default=0)
        rows = []
        for line in self.lines:
            rows.append(f"{line.status:<4}  {line.name:<{width}}  {line.value}")
            if line.fix:
                rows.append(f"      {'':<{width}}  fix: {line.fix}")
        return "\n".join([*rows, self.verdict()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
        rows = []
        for line in self.lines:
            fix = f"<br><em>fix: {html.escape(line.fix)}</em>" if line.fix else ""
            rows.append(
                f'<tr><td style="{cell};color:{_COLOURS[line.status]};font-weight:bold">{line.status}</td>'
                f'<th scope="row" style="{cell}">{html.escape(line.name)}</th>'
                f'<td style="{cell}">{html.escape(line.value)}{fix}</td></tr>'
            )
        caption = f'<caption style="text-align:left;font-weight:bold">{html.escape(self.verdict())}</caption>'
        return f"<table>{caption}<tbody>{''.join(rows)}</tbody></table>"


def doctor(*, run_ranks: bool = True, environ: Mapping[str, str] | None = None) -> Report:
    """Check this machine and run a real all-reduce on two ranks.

    Args:
        run_ranks: also start two ranks (a few seconds the first time).
        environ: variables to judge instead of ``os.environ``.

    Returns:
        A ``Report``; ``report.ok`` is False when a run would break.

    Example:
        >>> report = doctor(run_ranks=False)
        >>> report.lines[0].name
        'Python'
    """
    lines = checks.all_static(os.environ if environ is None else environ)
    if nvml_percent() is not None:
        lines.append(nvml_line())
    needed = ("Python", "torch", "backends", "loopback")
    broken = [line.name for line in lines if line.status == FAIL and line.name in needed]
    if run_ranks and broken:
        lines.append(Line(WARN, "2 ranks", "not tried", f"first fix {', '.join(broken)}"))
    elif run_ranks:
        lines += two_ranks()
    return Report(tuple(lines))


def two_ranks(timeout: float = 60.0) -> list[Line]:
    """Add two numbers on two CPU ranks, with the usual start method, else with spawn."""
    from dtlab.ranks.processes import default_method

    usual = default_method()
    lines, worked = _all_reduce(usual, timeout)
    # A rank that started and then failed says its own reason: another start method would fail alike.
    if worked or usual == "spawn" or lines[0].value.startswith("rank "):
        if worked and usual != "forkserver":
            fix = "every launch imports torch anew (2-3 s): Linux or WSL is quicker"
            lines.append(Line(WARN, "start method", usual, fix))
        elif worked:
            lines.append(Line(OK, "start method", "forkserver: torch is loaded once, ranks start from it"))
        return lines
    other, worked = _all_reduce("spawn", timeout)
    if worked:
        fix = "set DTLAB_START_METHOD=spawn (slower: every launch imports torch)"
        return [Line(WARN, "start method", f"{usual} does not work here: {lines[0].value}", fix), *other]
    return lines


def _all_reduce(method: str, timeout: float) -> tuple[list[Line], bool]:
    """With a server two launches: the first pays for its start, the second is what a cell costs."""
    from dtlab.ranks.launcher import launch

    def add() -> float:
        import torch
        import torch.distributed as dist

        from dtlab.ranks.worlds import world

        with world(device="cpu") as w:
            total = torch.tensor(float(w.rank + 1))
            dist.all_reduce(total)
            return total.item()

    seconds = []
    sums: list[float] = []
    try:
        for _ in range(2 if method == "forkserver" else 1):
            begin = time.perf_counter()
            sums = list(launch(add, 2, timeout=timeout, echo=False, start_method=method))
            seconds.append(time.perf_counter() - begin)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fix = "the message says what to change; unset GLOO_SOCKET_IFNAME if it is set"
        return [Line(FAIL, "2 ranks", reason, fix)], False
    if sums != [3.0, 3.0]:
        fix = "reinstall torch: its gloo gives wrong sums"
        return [Line(FAIL, "2 ranks", f"all-reduce of 1 and 2 gave {sums}", fix)], False
    value = f"all-reduce 1 + 2 = 3 on both; first start {seconds[0]:.1f} s"
    if len(seconds) > 1:
        value += f", then {seconds[1]:.2f} s"
    return [Line(OK, "2 ranks", value)], True
