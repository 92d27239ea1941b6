"""Wrong answers of lesson 01: what people write before they get it right."""

import statistics
import time

from dtlab.course.mutants import edit

NAMES = {"data": "input-bound", "compute": "compute-bound", "sync": "communication-bound"}


def _median_of_every_rank(trace):
    """All ranks in one pot: the waiting of the early ones counts as communication."""
    steps = [step for rank in trace for step in rank[1:]]
    typical = {part: statistics.median_low(step[part] for step in steps) for part in NAMES}
    return {**typical, "bound": NAMES[max(typical, key=typical.get)]}


def _longest_of_each_part(trace):
    """The worst rank of each part, put together from different ranks."""
    typical = {
        part: statistics.median_low(
            max(one[part] for one in step) for step in list(zip(*trace, strict=True))[1:]
        )
        for part in NAMES
    }
    return {**typical, "bound": NAMES[max(typical, key=typical.get)]}


def _own_clock(read, compute, sync, steps, clock):
    trace = []
    for _ in range(steps):
        began = time.perf_counter()
        batch = read()
        have_data = time.perf_counter()
        gradient = compute(batch)
        computed = time.perf_counter()
        sync(gradient)
        trace.append(
            {
                "data": have_data - began,
                "compute": computed - have_data,
                "sync": time.perf_counter() - computed,
            }
        )
    return trace


def _each_part_by_itself(read, compute, sync, steps, clock):
    """Times the parts one after another over all steps, so no step hands its batch on."""
    columns = []
    for part, needs_input in ((read, False), (compute, True), (sync, True)):
        taken = []
        for _ in range(steps):
            began = clock()
            part(None) if needs_input else part()
            taken.append(clock() - began)
        columns.append(taken)
    return [dict(zip(("data", "compute", "sync"), row, strict=True)) for row in zip(*columns, strict=True)]


MUTANTS = {
    "01-memory": {
        "the model divided over the ranks": edit(
            "weights = 4 * parameters", "weights = 4 * parameters // ranks"
        ),
        "activations divided over the ranks": edit(
            "per_sample * micro_batch", "per_sample * micro_batch // ranks"
        ),
        "one moment of Adam": edit("moments * weights", "weights"),
        "half precision": edit("4 * parameters", "2 * parameters"),
        "buckets on one rank too": edit("weights if ranks > 1 else 0", "weights"),
        "no buckets": edit("weights if ranks > 1 else 0", "0"),
        "activations of one sample": edit("per_sample * micro_batch", "per_sample"),
        "gradients forgotten": edit('"gradients": weights', '"gradients": 0'),
        "gigabytes": edit("weights = 4 * parameters", "weights = 4 * parameters / 1e9"),
    },
    "01-split": {
        "reading counted as computing": edit("computed - have_data", "computed - began"),
        "times since the start of the step": edit("done - computed", "done - began"),
        "the sum of all steps": edit(
            '"data": have_data - began', '"data": have_data - began + sum(t["data"] for t in trace)'
        ),
        "the first step left out": edit("trace.append", "if _: trace.append"),
        "one step too many": edit("range(steps)", "range(steps + 1)"),
        "reads a second batch": edit("compute(batch)", "compute(read())"),
        "the batch is not handed on": edit("compute(batch)", "compute(None)"),
        "a clock of its own": _own_clock,
        "each part by itself": _each_part_by_itself,
    },
    "01-bound": {
        "rank 0 alone": edit('[min(step, key=lambda one: one["sync"]) for step in zip(*trace)]', "trace[0]"),
        "the rank that waited most": edit("min(step", "max(step"),
        "the first step counted": edit("last[1:]", "last"),
        "the mean": edit("statistics.median_low(", "statistics.mean("),
        "the mean, rounded": edit(
            "statistics.median_low(one[part] for one in last[1:])",
            "round(statistics.mean(one[part] for one in last[1:]))",
        ),
        "the shortest part": edit("names[max(", "names[min("),
        "names swapped": edit(
            '"data": "input-bound", "compute": "compute-bound"',
            '"data": "compute-bound", "compute": "input-bound"',
        ),
        "all ranks in one pot": _median_of_every_rank,
        "the worst of each part": _longest_of_each_part,
    },
    "01-speedup": {
        "seconds instead of rows": edit("n * one / many", "one / many"),
        "upside down": edit("n * one / many", "many / one"),
        "sync on one rank too": edit("(sync if n > 1 else 0)", "sync"),
        "no sync": edit("(sync if n > 1 else 0)", "0"),
        "the disk is never shared": edit("n * data if shared else data", "data"),
        "the disk is always shared": edit("n * data if shared else data", "n * data"),
        "reading beside computing": edit(
            "(n * data if shared else data) + compute", "max(n * data if shared else data, compute)"
        ),
        "as many times as ranks": lambda n, data, compute, sync, shared: n,
        "computing divided": edit("+ compute + (sync", "+ compute / n + (sync"),
    },
}
