"""What a run record says about a run's end, its origin, its samples and its losses.

Each check takes the record and answers with lines; a record without the figures gets no line about them.
"""

from __future__ import annotations

import re

from dtlab.cost import billing
from dtlab.diagnose.checks import FAIL, OK, WARN, Line
from dtlab.diagnose.record_file import Event, RunRecord
from dtlab.diagnose.sample_coverage import coverage_line
from dtlab.errors import UserError

__all__ = [
    "attempts",
    "ending",
    "epochs",
    "losses",
    "notes",
    "origin",
    "price",
    "samples",
    "skipped",
    "way_on",
]

_EXPECTED = ("epoch ", "resumed from", "going on in")  # lines that every run of their kind has
_CHANGED = "the run goes on with"


def ending(record: RunRecord) -> list[Line]:
    """Whether the run came to its end."""
    end = record.end
    if end is None:
        last = record.attempts[-1][-1]
        step = max((e.number("step") or 0 for e in record.attempts[-1]), default=0)
        fix = "if it does not run any more: the same command with --resume; look for a kill (out of memory)"
        torn = ", the next line is torn" if record.is_torn else ""
        return [
            Line(
                FAIL, "end", f"none after {last.kind!r}, step {step:.0f}{torn}: killed, or still running", fix
            )
        ]
    if end.kind == "failed":
        text = end.text("error") or "without a message"
        return [Line(FAIL, "end", f"failed: {text}", "the error says what to change; then --resume")]
    seconds, stopped = end.number("seconds"), end.text("stopped_by")
    took = "" if seconds is None else f" after {seconds:.1f} s"
    if end.number("optimizer_steps") == 0 and end.number("samples") == 0:
        fix = "give it time for a step: a smaller optim.global_batch, or a later stop"
        return [
            Line(FAIL, "end", f"{f'stopped by {stopped}' if stopped else 'finished'}{took}: no step", fix)
        ]
    if stopped is None:
        return [Line(OK, "end", f"finished{took}")]
    saved = end.number("checkpoint")
    fix = "a new run: nothing was saved" if saved is None else f"go on with {way_on(stopped)} and --resume"
    where = "no checkpoint" if saved is None else f"complete checkpoint at step {saved:.0f}"
    return [Line(WARN, "end", f"stopped{took} by {stopped}; {where}", fix)]


def way_on(stopped_by: str) -> str:
    """What a run that was stopped goes on with: the same command, or a larger budget where that is used up.

    >>> way_on("SIGTERM")
    'the same command'
    >>> way_on("budget: 31 s of stopping.max_seconds = 30 used")
    'a larger stopping.max_seconds'
    """
    limit = re.search(r"^budget: .*(stopping\.max_\w+)", stopped_by)
    return "the same command" if limit is None else f"a larger {limit[1]}"


def origin(record: RunRecord) -> list[Line]:
    """Whether the run can be found and repeated: commit, uncommitted changes, data version."""
    commits = [event.text("commit") for event in record.of("start", "resume")]
    commit, is_dirty = commits[-1], record.start.value("dirty")
    if commit is None:
        line = Line(WARN, "commit", "none", "run inside a git working tree, so that the code can be found")
    elif len(set(commits)) > 1:
        shown = " -> ".join(dict.fromkeys(str(each)[:12] for each in commits))
        line = Line(WARN, "commit", f"{shown}: not one code", "continue a run with the code that began it")
    elif is_dirty:
        fix = "commit before a run that you may want to repeat"
        line = Line(WARN, "commit", f"{commit[:12]} with uncommitted changes", fix)
    else:
        line = Line(OK, "commit", commit[:12])
    version = record.start.text("data", "version")
    name = record.start.text("data", "name") or "data"
    if version is None:
        fix = "give the data set a version; dtlab train takes a hash of its content"
        return [line, Line(WARN, "data", f"{name} without a version", fix)]
    return [line, Line(OK, "data", f"{name}, version {version[:24]}")]


def attempts(record: RunRecord) -> list[Line]:
    """How often the run was started, and what it did twice for that."""
    starts = record.of("start", "resume")
    sizes = [event.number("world_size") for event in starts]
    shown = " -> ".join(f"{size:.0f}" for size in sizes if size is not None)
    if len(starts) == 1:
        return [Line(OK, "attempts", f"1, on {shown or 'an unknown number of'} rank(s)")]
    anew = sum(event.kind == "start" for event in starts[1:])
    lost = sum(map(_seconds_after_checkpoint, record.attempts[:-1]))
    value = f"{len(starts)}: {len(starts) - 1 - anew} resumed, {anew} started anew"
    if len(set(sizes)) > 1:
        value += f", on {shown} ranks"
    value += f"; at least {lost:.0f} s done twice"
    spent = sum(max(map(_seconds, attempt)) for attempt in record.attempts)
    if anew:
        return [Line(WARN, "attempts", value, "save earlier: a lower checkpoint.every_seconds")]
    if spent and lost > 0.1 * spent:
        return [Line(WARN, "attempts", value, "save more often: a lower checkpoint.every_seconds")]
    return [Line(OK, "attempts", value)]


def samples(record: RunRecord) -> list[Line]:
    """Rows seen again, or never."""
    end = record.end
    if end is None or end.number("unique_rows_seen") is None or end.number("rows_train") is None:
        return []
    found = [
        int(end.number(n) or 0) for n in ("unique_rows_seen", "rows_train", "duplicate_rows", "missed_rows")
    ]
    if end.text("stopped_by") and not found[2]:
        return [Line(OK, "samples", f"none of {found[1]:,} rows twice in the epochs that ended")]
    if end.text("stopped_by") or end.number("missed_rows") is None:  # not a whole epoch: nothing is missed
        found[3] = 0
    return [coverage_line(found[0], found[1], found[2], found[3], len(record.of("epoch")))]


def losses(record: RunRecord) -> list[Line]:
    """Losses that are not numbers, or that grow."""
    kinds = {"reading": "loss", "epoch": "loss", "validation": "log_loss"}
    for event in record.of(*kinds):
        name = "loss" if event.kind == "validation" and "loss" in event.values else kinds[event.kind]
        if name in event.values and event.number(name) is None:
            place = "step" if event.kind == "reading" else "epoch"
            where = f"{event.kind} at {place} {event.number(place) or 0:.0f}"
            fix = "lower optim.lr, warm up (schedule.warmup) or set optim.clip; fp16: take bf16 where it can"
            return [Line(FAIL, "loss", f"not a number: {where}", fix)]
    course = [e.number("loss") for e in record.of("epoch") if e.text("phase") != "refit"]
    known = [value for value in course if value is not None]
    if not known:
        return []
    value = f"training loss {known[0]:.4f} -> {known[-1]:.4f} over {len(known)} epochs"
    if len(known) == 1:
        value = f"training loss {known[0]:.4f}, the mean of the one epoch or part of it that was trained"
    if known[-1] > known[0]:
        return [Line(WARN, "loss", f"{value}: it rose", "lower optim.lr, or warm up (schedule.warmup)")]
    return [Line(OK, "loss", value)]


def skipped(record: RunRecord) -> list[Line]:
    """Steps that were left out because a gradient was not finite."""
    count = None if record.end is None else record.end.number("skipped_steps")
    if count is None or record.end is None:
        return []
    if not count:
        return [Line(OK, "skipped steps", "none")]
    share = count / max(1.0, count + (record.end.number("optimizer_steps") or 0))
    fix = "lower optim.lr or set optim.clip; in fp16 a few at the start are the loss scale finding its size"
    is_much = share > 0.01
    return [
        Line(WARN if is_much else OK, "skipped steps", f"{count:.0f}, {share:.1%}", fix if is_much else "")
    ]


def epochs(record: RunRecord) -> list[Line]:
    """The best epoch against the last one, and what the epochs after it cost."""
    by_epoch = {int(e.number("epoch") or 0): e for e in record.of("validation")}
    if not by_epoch:
        return []
    last = max(by_epoch)
    best = int(by_epoch[last].number("best_epoch") or 0)
    metric = next((n for n in ("auc", "loss", "log_loss") if by_epoch[last].number(n) is not None), None)
    if best not in by_epoch or metric is None:
        return [Line(WARN, "epochs", "no validation gave a number", "validate on rows of both classes")]
    value = f"best {best} of {last} ({metric} {by_epoch[best].number(metric):.4f})"
    if best == last:
        most = record.start.number("config", "optim", "max_epochs")
        if most is not None and last >= most > 1:
            fix = f"raise optim.max_epochs: validation was still better in the last of {most:.0f}"
            return [Line(WARN, "epochs", value, fix)]
        return [Line(OK, "epochs", f"{value}, none after it")]
    wasted = {
        int(e.number("epoch") or 0): _seconds(e) for e in record.of("epoch") if e.text("phase") == "choose"
    }
    seconds = sum(spent for epoch, spent in wasted.items() if epoch > best)
    value += f"; {last - best} after it took {seconds:.1f} s of training{_dollars(record, seconds)}"
    if last - best > 1:
        fix = "stop sooner: optim.patience = 1, or a lower stopping.patience_samples; ship the best epoch"
        return [Line(WARN, "epochs", value, fix)]
    return [Line(OK, "epochs", f"{value}: the least that early stopping costs")]


def notes(record: RunRecord) -> list[Line]:
    """What the run itself warned of, each once."""
    texts = [event.text("text") or "" for event in record.of("line")]
    counted = {text: texts.count(text) for text in texts if text and not text.startswith(_EXPECTED)}
    lines = []
    for text, times in list(counted.items())[:10]:
        what, _, fix = text.rpartition("; ")
        again = f" ({times} times)" if times > 1 else ""
        if text.startswith("step "):  # a step that was skipped, or taken back
            what, fix = text, "lower optim.lr, warm up (schedule.warmup) or set optim.clip"
        elif text.startswith(_CHANGED):
            what, fix = text, "two settings are not one experiment: note the change, or start a new run"
        lines.append(Line(WARN, "note", f"{what or text}{again}", fix if what else "see the record"))
    if len(counted) > 10:
        lines.append(Line(WARN, "note", f"{len(counted) - 10} more", f"read them in {record.path}"))
    return lines


def price(record: RunRecord) -> list[Line]:
    """What the run's seconds cost."""
    bill = None if record.end is None else record.end.text("bill")
    return [] if bill is None else [Line(OK, "would cost", bill)]


def _seconds(event: Event) -> float:
    return max(0.0, event.number("seconds") or 0.0)


def _seconds_after_checkpoint(attempt: list[Event]) -> float:
    # The seconds of an epoch and of an end are lengths; all others are times since the start.
    times = [(event.kind, _seconds(event)) for event in attempt if event.kind not in ("epoch", "end")]
    saved = max((when for kind, when in times if kind == "checkpoint"), default=0.0)
    return max(when for _, when in times) - saved


def _dollars(record: RunRecord, seconds: float) -> str:
    """``, $0.12 on ml.g4dn.12xlarge``; nothing where the price is not known."""
    instance = record.start.text("config", "run", "instance")
    count = max(1, int(record.start.number("num_nodes") or 1))
    if instance is None or not seconds:
        return ""
    try:
        price = billing.cost(instance, seconds, count=count).price
    except UserError:
        return ""
    return f", ${price.usd_per_second * seconds * count:.4f} on {instance}"
