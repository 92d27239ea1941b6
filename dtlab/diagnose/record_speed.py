"""What a run record says about speed and memory: waiting, communication, the bound, the room left.

The record's shares come from the trainer's own meter. Its communication is the time that gradients were *in
flight*; on a CPU, with one bucket, that is exposed. On a card part of it hides behind backward, so it is an
upper limit: ``step_profile`` tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from dtlab.diagnose.bound import Advice, BoundVerdict, bound_verdict
from dtlab.diagnose.checks import OK, WARN, Line
from dtlab.diagnose.digits import percent_beside
from dtlab.diagnose.record_file import RunRecord
from dtlab.diagnose.step_profile import StepProfile
from dtlab.diagnose.utilisation import COMMUNICATION_LIMIT, WAIT_LIMIT, utilisation_lines

__all__ = ["memory", "speed"]

_IN_LAYOUT = {
    " pp ": "more parallel.micro_batches: a pipeline's ranks wait while it fills and empties",
    " tp ": "a smaller tp, inside one host: its ranks talk in every layer",
    " dp_shard ": "a larger batch per rank: parameters travel in every step",
}
"""What shortens the messages of a layout, by the degree in its name."""
MEMORY_LIMIT = 0.9
"""S0's limit for the share of memory."""


def speed(record: RunRecord) -> list[Line]:
    """Waiting for data, communication, what the run was bound by, and the busy share."""
    shares = _shares(record)
    if shares is None:
        return []
    wait, communication = shares
    on_card = record.start.text("environment", "card") is not None
    profile = StepProfile.of(
        [{"data": wait, "forward": 1 - wait - communication, "communication": communication}],
        device="cuda" if on_card else "cpu",
        world_size=int(record.start.number("world_size") or 1),
    )
    verdict = bound_verdict(profile)
    layout = record.start.text("layout") or ""
    remedies = [remedy for degree, remedy in _IN_LAYOUT.items() if degree in f" {layout}"]
    if remedies:
        verdict = _of_layout(verdict, remedies)
    waits = wait > WAIT_LIMIT
    fix = verdict.remedies("data") if waits else ""
    shown = percent_beside(wait, WAIT_LIMIT)
    lines = [Line(WARN if waits else OK, "input", f"{shown} of the time waiting for data", fix)]
    talks = communication > COMMUNICATION_LIMIT
    seen = (
        "in flight, part of it behind backward" if on_card else "of the time in all-reduces, waits included"
    )
    fix = verdict.remedies("communication") if talks else ""
    if remedies:
        seen = "of a sampled step in messages of all kinds, waits included"
        fix = "; ".join(remedies) if talks else ""
    if talks and on_card:
        fix = f"see with dtlab.diagnose.profiler.step_profile how much is exposed; then {fix}"
    shown = percent_beside(communication, COMMUNICATION_LIMIT)
    lines.append(Line(WARN if talks else OK, "communication", f"{shown} {seen}", fix))
    return [*lines, *verdict.lines(), *utilisation_lines(wait, communication, now=False)]


def _of_layout(verdict: BoundVerdict, remedies: list[str]) -> BoundVerdict:
    """With the layout's remedies in the place of those for all-reduces of gradients."""
    total = sum(verdict.seconds.values())
    computing = max(total - verdict.seconds["communication"], total / 1000)
    advice = [each for each in verdict.advice if each.part != "communication"]
    if total > 1.02 * computing:
        what = " or ".join(remedy.split(":")[0] for remedy in remedies)
        advice.append(Advice(what, total / computing, "communication"))
    return replace(verdict, advice=tuple(sorted(advice, key=lambda each: -each.most)))


def memory(record: RunRecord) -> list[Line]:
    """The most that a rank held, as a share of what there is."""
    held = [e.number("memory_bytes") for e in record.of("reading", "end")]
    most = max((value for value in held if value is not None and value > 0), default=None)
    if most is None:
        return []
    there, start = record.start.number("environment", "memory_bytes"), record.start
    value = f"at most {most / 1e9:.2f} GB on a rank"
    if not there or there <= 0:
        return [Line(OK, "memory", f"{value}; how much there was is not recorded")]
    ranks, place = 1.0, "its card"
    if start.text("environment", "card") is None:
        ranks = max(1.0, (start.number("world_size") or 1) / max(1.0, start.number("num_nodes") or 1))
        place = f"the host, which {ranks:.0f} rank(s) share"
    share = ranks * most / there
    value += f": {share:.0%} of the {there / 1e9:.1f} GB of {place}"
    if share > MEMORY_LIMIT:
        fix = "lower optim.micro_batch, compute in bf16, or set precision.checkpoint_activations"
        return [Line(WARN, "memory", value, fix)]
    return [Line(OK, "memory", value)]


def _shares(record: RunRecord) -> tuple[float, float] | None:
    """Shares of waiting and of communication over all epochs, by their seconds; else of the readings."""
    total = wait = communication = 0.0
    for event in record.of("epoch") or record.of("reading"):
        length = event.number("seconds") if event.kind == "epoch" else 1.0
        parts = event.number("wait_share"), event.number("communication_share")
        if length is None or length <= 0 or None in parts:
            continue
        total += length
        wait += length * max(0.0, parts[0] or 0.0)
        communication += length * max(0.0, parts[1] or 0.0)
    if not total:
        return None
    both = max(total, wait + communication)  # ranks' means of shares: they may pass 1 by a little
    return wait / both, communication / both
