"""Which rank is to blame, and how the error is told (lessons 02 and 12).

When one rank fails, its peers fail too: they lose a connection. The error leads with the rank that really
failed; the user's source lines follow; then one line for each other rank.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dtlab.ranks import crash
from dtlab.ranks.explain import explain
from dtlab.ranks.output import say
from dtlab.ranks.report import RankError, RankReport, doing
from dtlab.ranks.source_lines import excerpt, is_users, place, with_cell_names

_WORKER = os.path.join("dtlab", "ranks", "worker.py")


def to_blame(reports: Sequence[RankReport]) -> RankReport | None:
    """The report of the rank that failed first of its own accord; None when ranks only lost peers."""
    real = [report for report in reports if report.failed and not report.lost_peer]
    first = min(real, key=lambda report: report.time, default=None)
    if first is None:
        return None
    # When all fail in the same way, who was first is chance: name the lowest, as a second run would.
    return next(report for report in real if report.how() == first.how())


def rank_error(reports: Sequence[RankReport], restarts: str) -> RankError:
    """The error of a run in which at least one rank failed."""
    reports = [dataclasses.replace(report, message=with_cell_names(report.message)) for report in reports]
    size = len(reports)
    late: tuple[int, ...] = ()
    blamed = to_blame(reports)
    if blamed is not None:
        first = blamed.headline(size)
    else:
        blamed = min((report for report in reports if report.failed), key=lambda report: report.time)
        first, late = _only_lost_peers(reports, blamed)
    lines, shown = _source(_standing(reports[late[0]]) if late else blamed)
    told_already = crash.unlike_sizes(blamed.last_output) is not None
    if blamed.last_output and blamed.outcome in ("killed", "exited") and not told_already:
        lines += [f"  last output of rank {blamed.rank}:", *(f"    {line}" for line in blamed.last_output)]
    if blamed.outcome == "killed" and blamed.exit_code == -signal.SIGKILL:
        lines.append("  (the system sends SIGKILL when memory runs out)")
    for report in reports:
        if report.rank == blamed.rank or report.rank in late:
            continue
        same = report.outcome == "raised" and report.exception() == blamed.exception()
        lines.append(f"  rank {report.rank} failed in the same way" if same else f"  {report.in_short()}")
    lines.append(f"  {restarts}")
    return RankError(
        "\n".join([first, *lines]),
        rank=late[0] if late else blamed.rank,
        world_size=size,
        exception_type=blamed.exception_type,
        message=blamed.message or first,
        cell_lines=shown,
        reports=reports,
        late=late,
    )


def _only_lost_peers(reports: Sequence[RankReport], blamed: RankReport) -> tuple[str, tuple[int, ...]]:
    """First line when nobody failed of his own accord: a rank left early, or did not come."""
    size = len(reports)
    gone = [report.rank for report in reports if report.outcome == "returned"]
    why = blamed.complaint()
    if gone:
        ranks = (
            "rank " + " and ".join(map(str, gone)) if len(gone) == 1 else "ranks " + ", ".join(map(str, gone))
        )
        had = "had already returned"
        operation = blamed.state.what() if blamed.state and blamed.state.operation else "a collective"
        return (
            f"rank {blamed.rank} of {size} failed: it waited in {operation} for {ranks}, which {had} ({why})",
            (),
        )
    told = explain([report.state for report in reports])
    if told.late and any(report.outcome == "stopped" for report in reports):
        return f"{told.text}; rank {blamed.rank} gave up: {why}", told.late
    return blamed.headline(size), ()


def timeout_error(seconds: float | None, reports: Sequence[RankReport]) -> RankError:
    """The error of a run that did not end in time.

    Args:
        seconds: the limit; None when the ranks did not even start, or wait for one that has returned.
        reports: every rank, ``stopped`` for those that still ran, with their state.
    """
    size = len(reports)
    states = [report.state for report in reports]
    returned = [report.rank for report in reports if report.outcome == "returned"]
    late: tuple[int, ...]
    starting = [report for report in reports if report.outcome == "starting"]
    if starting:
        late = tuple(report.rank for report in starting)
        told = "; ".join(report.in_short() for report in starting)
    elif returned:
        late = tuple(report.rank for report in reports if report.outcome != "returned" and not _waits(report))
        told = "; ".join(
            report.in_short()
            if report.rank in returned
            else f"rank {report.rank} of {size}{doing(report.state)}"
            for report in sorted(reports, key=lambda report: report.outcome == "returned")
        )
    else:
        explanation = explain(states)
        late, told = explanation.late, explanation.text
    if starting:
        first = f"timeout at start-up: {told}"
    elif seconds is None:
        first = f"{told} without joining. Fix: every rank makes the process group, or none"
    else:
        first = f"timeout after {seconds:g} s: {told}"
    running = [report.rank for report in reports if report.outcome != "returned"]
    waiting = [report.rank for report in reports if _waits(report)]
    rank = [*late, *waiting, *running, 0][0]
    lines, shown = _source(_standing(reports[rank]))
    return RankError(
        "\n".join([first, *lines]),
        rank=rank,
        world_size=size,
        exception_type="TimeoutError" if starting or seconds is not None else "",
        message=first,
        cell_lines=shown,
        reports=reports,
        late=late,
    )


def give_up(number: signal.Signals, grace: float | None, reports: Sequence[RankReport]) -> NoReturn:
    """End as the signal asks, and say why the ranks did not return; ``grace`` is None when it was not over.

    Raises:
        RankError: a rank failed for another reason.
    """
    late = ", ".join(str(report.rank) for report in reports if report.outcome in ("stopped", "starting"))
    ended = ", ".join(str(report.rank) for report in reports if _ended_by(report, number))
    if grace is not None:
        say(f"dtlab: {number.name}: rank {late} did not return within the grace time of {grace:g} s")
    elif ended:
        say(f"dtlab: {number.name} ended rank {ended}, which did not listen for it: nothing was saved")
    else:
        raise rank_error(reports, f"no restart after {number.name}")
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _ended_by(report: RankReport, number: signal.Signals) -> bool:
    if number == signal.SIGINT and report.outcome == "raised":
        return report.exception_type == "KeyboardInterrupt"
    return report.outcome == "killed" and report.exit_code == -number


def _standing(report: RankReport) -> RankReport:
    """The report of a rank that still ran, with the place where it stood."""
    if report.state is None:
        return report
    stack = report.state.stack
    ours = [number for number, frame in enumerate(stack) if frame.file.endswith(_WORKER)]
    return dataclasses.replace(report, frames=stack[ours[-1] + 1 if ours else 0 :])


def _waits(report: RankReport) -> bool:
    return report.state is not None and report.state.waits


def _source(report: RankReport) -> tuple[list[str], list[str]]:
    """Lines that show where the user's code stands, and the excerpt alone."""
    own = [frame for frame in report.frames if is_users(frame.file)] or list(report.frames[-1:])
    if not own:
        return [], []
    lines = [f"  {place(frame)}: {frame.source}" for frame in own[:-1][-5:]]
    inner = own[-1]
    shown = excerpt(inner)
    lines.append(f"  {place(inner)}")
    lines += [f"    {line}" for line in shown]
    if report.outcome == "raised" and report.frames[-1] is not inner:
        last = report.frames[-1]
        lines.append(f"  raised in {Path(last.file).name}, line {last.line}, in {last.function}")
    return lines, shown
