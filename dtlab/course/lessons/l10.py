"""Check of lesson 10's exposed communication, on recorded steps; the other exercises have their own files."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l10_bucket, l10_fit, l10_overlap, l10_two_level  # noqa: F401  (register)
from dtlab.course.lessons.l10_traces import recorded_traces
from dtlab.course.lessons.on_ranks import require_function

Spans = list[tuple[int, int]]

# Hand-made steps: computing, communication. What recorded steps have too, one thing at a time.
SMALL: dict[str, tuple[Spans, Spans]] = {
    "two spans that overlap, after computing": ([(0, 100)], [(100, 160), (130, 180)]),
    "a gap in computing": ([(0, 40), (70, 100)], [(20, 90)]),
    "hidden altogether": ([(0, 50), (50, 100)], [(10, 30), (60, 90)]),
    "computing that goes on without communication": ([(0, 10), (60, 200)], [(5, 20)]),
    "spans out of order": ([(50, 60), (0, 20)], [(55, 90), (10, 30)]),
    "one span around three of computing": ([(10, 20), (15, 30), (40, 50)], [(0, 60)]),
    "nothing travels": ([(0, 100)], []),
}
_LOOK = "a microsecond counts, once, when a span of communication covers it and no span of computing does"


@exercise(
    "10-exposed",
    todo="add up the microseconds that communication covers and computing does not",
    hints=(
        "Two sets of microseconds: those in which something travels, those in which something computes. What "
        "is one without the other? Each microsecond counts once, however many spans cover it.",
        "A span (start, end) covers range(start, end). sent = {t for start, end in communication for t in "
        "range(start, end)}; busy in the same way; len(sent - busy). (Merging sorted spans is faster, and "
        "right as well.)",
    ),
    references=("dtlab.diagnose.step_trace.StepTrace", "dtlab.diagnose.step_trace.without"),
)
def exposed(checks: Checks, answer: Any) -> None:
    """Every recorded step on both ranks, then hand-made ones; all integers."""
    require_function(answer)
    cases = {
        f"{name}, rank {one.rank}": (list(one.compute), list(one.communication), one.exposed_us)
        for name, traces in recorded_traces().items()
        for one in traces
    }
    for name, (compute, communication) in SMALL.items():
        cases[f"hand-made, {name}"] = (compute, communication, _right(compute, communication))
    given = {name: _integer(name, answer(list(a), list(b))) for name, (a, b, _) in cases.items()}
    for name, (*_, right) in cases.items():
        checks.integer(
            f"{name}: exposed microseconds",
            given[name],
            right,
            look=_mistake({one: (a, b, given[one]) for one, (a, b, _) in cases.items()}) or _LOOK,
        )


def _right(compute: Spans, communication: Spans) -> int:
    from dtlab.diagnose.step_trace import StepTrace

    return StepTrace(compute, communication).exposed_us


def _integer(name: str, got: Any) -> int:
    if got is None or got is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if got is None else "..."))
    if isinstance(got, bool) or not hasattr(got, "__index__"):
        raise CheckFailed(f"{name}: got {describe(got)}: give whole microseconds, an int.")
    return int(got)


def _mistake(cases: dict[str, tuple[Spans, Spans, int]]) -> str:
    """The usual mistake that gives all of the answer's numbers, if there is one."""
    for rule, said in _MISTAKES:
        if all(got == rule(compute, sent) for compute, sent, got in cases.values()):
            return said
    return ""


def _length(spans: Any) -> int:
    return sum(end - start for start, end in spans)


def _covered(spans: Any) -> int:
    from dtlab.diagnose.step_trace import merged

    return _length(merged(spans))


def _each_for_itself(compute: Spans, sent: Spans) -> int:
    return sum(_right(compute, [span]) for span in sent)


def _tail(compute: Spans, sent: Spans) -> int:
    return max(0, max((end for _, end in sent), default=0) - max(end for _, end in compute))


def _idle(compute: Spans, sent: Spans) -> int:
    every = [*compute, *sent]
    return max(end for _, end in every) - min(start for start, _ in every) - _covered(compute)


_MISTAKES = (
    (
        lambda _, sent: _length(sent),
        "that is all communication, hidden or not: what computing covers is free",
    ),
    (
        lambda _, sent: _covered(sent),
        "that is all communication, hidden or not: what computing covers is free",
    ),
    (_each_for_itself, "where two spans of communication overlap, a microsecond counts once"),
    (
        lambda compute, sent: _covered(sent) - _right(compute, sent),
        "that is the hidden part; exposed is the rest of the communication",
    ),
    (
        lambda compute, sent: _covered(compute) - _covered(sent) + _right(compute, sent),
        "that is computing without communication: the other way round",
    ),
    (
        lambda compute, sent: _right(compute, [(start, end + 1) for start, end in sent]),
        "a span (start, end) lasts end - start microseconds: range(start, end), without end",
    ),
    (_tail, "communication is exposed in the gaps between computing too, not only after the last of it"),
    (_idle, "that is all the time without computing; count it only where something travels"),
    (
        lambda compute, sent: max(0, _covered(sent) - _covered(compute)),
        "totals do not tell what lies behind what: compare when, not how much",
    ),
)
