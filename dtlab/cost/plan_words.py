"""A plan in words: a table, why the runner-up lost, and what to change about the largest item (lesson 14)."""

import math

from dtlab.cost.plan_job import Job
from dtlab.cost.plan_search import EQUAL, Predictor
from dtlab.cost.planner import Candidate, Plan, nearest
from dtlab.cost.remedies import remedies
from dtlab.cost.strategy import Strategy
from dtlab.cost.units import gib

SMALL = 0.2  # of a card: below it memory needs no remedy
_LAYOUT = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2"}


def describe(strategy: Strategy) -> str:
    """A strategy in a few words, what is usual left out.

    >>> describe(Strategy(dp_replicate=2, dp_shard=8, zero=3, tp=2, micro_batch=4, num_micro_batches=8))
    'HSDP 2 x 8, tp 2, 8 micro-batches of 4, bf16-mixed'
    >>> describe(Strategy(micro_batch=4, recompute="full", precision="amp"))
    'one rank, batches of 4, full recomputation, amp'
    """
    if strategy.dp_shard > 1:
        both = f"HSDP {strategy.dp_replicate} x {strategy.dp_shard}"
        parts = [both if strategy.dp_replicate > 1 else f"FSDP {strategy.dp_shard}"]
    elif strategy.dp_replicate > 1:
        parts = [f"{_LAYOUT[strategy.zero]} {strategy.dp_replicate}"]
    else:
        parts = ["one rank"] if strategy.world_size == 1 else []
    parts += [f"{name} {size}" for name, size in (("tp", strategy.tp), ("pp", strategy.pp)) if size > 1]
    cut = strategy.num_micro_batches
    size = f"{strategy.micro_batch:,}"
    parts.append(f"batches of {size}" if cut == 1 else f"{cut:,} micro-batches of {size}")
    if strategy.recompute != "none":
        parts.append(f"{strategy.recompute} recomputation")
    return ", ".join([*parts, strategy.precision])


def rule(job: Job) -> str:
    """What the best is best at, with the measure that decides among those that are equal.

    >>> from types import SimpleNamespace
    >>> rule(SimpleNamespace(goal="cheapest", deadline_seconds=86400.0, budget_usd=math.inf))
    'the cheapest within 24 h (of those within 1 %, the fastest)'
    """
    limits = [
        f"within {job.deadline_seconds / 3600:g} h" if math.isfinite(job.deadline_seconds) else "",
        f"under ${job.budget_usd:,.2f}" if math.isfinite(job.budget_usd) else "",
    ]
    other = "fastest" if job.goal == "cheapest" else "cheapest"
    first = " ".join(["the", job.goal, *filter(None, limits)])
    return f"{first} (of those within {EQUAL - 1:.0%}, the {other})".replace("%", " %")


def start_line(plan: Plan) -> str:
    """How much of the time is no training: of a short run it is nearly all."""
    best, minutes = plan.best, plan.job.start_seconds / 60
    return f"Of {hours_of(best)}, {minutes:g} min are start-up (--start-minutes)."


def name_of(plan: Plan, one: Candidate) -> str:
    """`2 x ml.g5.12xlarge`, as the service of the plan calls it."""
    sagemaker = plan.space.kind == "sagemaker"
    return f"{one.count} x {one.instance.sagemaker_name if sagemaker else one.instance.name}"


def table(plan: Plan, most: int = 10, *, only_frontier: bool = False) -> list[str]:
    """The best way of each type in the plan's order, then the rest of the frontier; or that alone."""
    items = [] if plan.job.beside.is_nothing else list(plan.best.items)
    rows = [
        (
            mark, name_of(plan, one), f"{one.gpus}", f"{one.seconds / 3600:,.2f}", f"{one.usd:,.2f}",
            *(f"{one.items[item]:,.2f}" for item in items),
            f"{one.peak_bytes / one.instance.gpu_memory_bytes:.0%}", _trust(one) + describe(one.strategy),
        )
        for mark, one in (_front(plan) if only_frontier else _rows(plan, most))
    ]  # fmt: skip
    head = (
        "",
        "machines",
        "GPUs",
        "hours",
        "$",
        *(f"= {item}" if item == "compute" else f"+ {item}" for item in items),
        "memory",
        "  how",
    )
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    left = {0, 1}
    return [
        "  ".join(
            [*(row[i].ljust(w) if i in left else row[i].rjust(w) for i, w in enumerate(widths)), row[-1]]
        ).rstrip()
        for row in [head, *rows]
    ]


def _front(plan: Plan) -> list[tuple[str, Candidate]]:
    """The whole frontier, fastest first; the chosen one among it may lie within 1 % of it."""
    shown = sorted({*plan.frontier, plan.best}, key=lambda one: (one.seconds, one.usd))
    return [(_mark(plan, one), one) for one in shown]


def _rows(plan: Plan, most: int) -> list[tuple[str, Candidate]]:
    chosen = [plan.best, *best_of_other_types(plan)][:most]
    chosen += [one for one in plan.frontier if one not in chosen][: max(0, most - len(chosen))]
    if plan.runner_up is not None and plan.runner_up not in chosen:
        chosen.append(plan.runner_up)
    return [(_mark(plan, one), one) for one in chosen]


def _trust(one: Candidate) -> str:
    """`~ ` where no measured run stands behind the time, `> ` where the time is a bound."""
    for word, mark in (("bound", "> "), ("estimate", "~ ")):
        if one.trust.startswith(word):
            return mark
    return "  "


def best_of_other_types(plan: Plan) -> list[Candidate]:
    """The best of each machine type but the chosen one; those that keep the limits first."""
    types: dict[str, list[Candidate]] = {}
    for one in plan.candidates:
        types.setdefault(one.instance.name, []).append(one)
    found = [nearest(plan.job, some) for name, some in types.items() if name != plan.best.instance.name]
    kept = [one for one in found if one is not None]
    return sorted(kept, key=lambda one: (not plan.within(one), plan.candidates.index(one)))


def _mark(plan: Plan, one: Candidate) -> str:
    if one is plan.best:
        return "best"
    if one is plan.runner_up:
        return "2nd"
    if one.seconds > plan.job.deadline_seconds:
        return "late"
    if one.usd > plan.job.budget_usd:
        return "dear"
    return "front" if one in plan.frontier else ""


def why_others_lost(plan: Plan, most: int = 3) -> list[str]:
    """The same for the best of other machine types."""
    others = [one for one in best_of_other_types(plan) if one is not plan.runner_up]
    return [why_lost(plan, one) for one in others[:most]]


def why_lost(plan: Plan, other: Candidate | None = None) -> str:
    """Why a candidate, the runner-up by default, is not the best: a limit missed, or where dollars go."""
    best, job = plan.best, plan.job
    other = plan.runner_up if other is None else other
    if other is None:
        return "There is no runner-up: nothing else was possible."
    name = name_of(plan, other)
    price = _ratio(other, best)
    if other.seconds > job.deadline_seconds:
        return (
            f"{name} lost: it takes {hours_of(other)}, {_more(other.seconds, job.deadline_seconds)} more "
            f"than the deadline of {job.deadline_seconds / 3600:g} h (for ${other.usd:,.2f})."
        )
    if other.usd > job.budget_usd:
        return (
            f"{name} lost: it costs ${other.usd:,.2f}, {_more(other.usd, job.budget_usd)} more than the "
            f"budget of ${job.budget_usd:,.2f} (in {hours_of(other)})."
        )
    dearer = f"${other.usd:,.2f} is {_more(other.usd, best.usd)} more"
    longer = f"{hours_of(other)} is {_more(other.seconds, best.seconds)} longer"
    if job.goal == "cheapest":
        if other.usd <= EQUAL * best.usd:
            return f"{name} lost: it costs as much within 1 % (${other.usd:,.2f}), and {longer}."
        return (
            f"{name} lost: {dearer}. Its hour costs {price:.2f} times as much, and the run takes "
            f"{other.seconds / best.seconds:.2f} times as long ({hours_of(other)}).{_most_of_it(plan, other)}"
        )
    if other.seconds <= EQUAL * best.seconds:
        return f"{name} lost: it takes as long within 1 % ({hours_of(other)}), and {dearer}."
    return f"{name} lost: {longer}, at ${other.usd:,.2f} against ${best.usd:,.2f}."


def _most_of_it(plan: Plan, other: Candidate) -> str:
    """The item beside the machines that makes most of the difference, if one does."""
    more = {item: usd - plan.best.items.get(item, 0.0) for item, usd in other.items.items()}
    largest = max(more, key=lambda item: more[item], default="compute")
    return "" if largest == "compute" else f" Most of the difference is {largest}, ${more[largest]:,.2f}."


def _ratio(other: Candidate, best: Candidate) -> float:
    return other.price.usd_per_hour * other.count / (best.price.usd_per_hour * best.count)


def hours_of(one: Candidate) -> str:
    return f"{one.seconds / 3600:,.2f} h"


def _more(value: float, than: float) -> str:
    return f"{value / than - 1:.0%}" if value / than - 1 >= 0.01 else f"{value / than - 1:.1%}"


def step_line(plan: Plan, predictor: Predictor) -> str:
    """Seconds of one step by part, largest first, and the remedy for the largest."""
    best = plan.best
    total = best.step_seconds
    parts = dict(predictor.step_parts(plan.job, best.strategy, best.instance, best.count))
    if total > EQUAL * sum(parts.values()):  # the reader of the machines is slower than their cards
        parts = {"input": total}
    listed = sorted(((size, name) for name, size in parts.items() if size > 0), reverse=True)
    said = ", ".join(f"{name} {size / total:.0%}" for size, name in listed[:5])
    largest = listed[0][1]
    return f"A step takes {total:.3g} s: {said}. Largest: {largest}. {time_remedy(largest, plan)}"


def memory_line(plan: Plan, predictor: Predictor) -> str:
    """Bytes of the fullest rank by item, and the remedy for the largest."""
    best = plan.best
    items = predictor.memory_items(plan.job, best.strategy)
    room = best.instance.gpu_memory_bytes
    listed = sorted(((size, name) for name, size in items.items() if size > 0), reverse=True)
    said = ", ".join(f"{name} {_size(size)}" for size, name in listed[:4])
    largest = listed[0][1]
    if best.peak_bytes < SMALL * room:
        return f"Memory of a rank: {_size(best.peak_bytes)} of {gib(room)}: {said}. It is no limit here."
    return (
        f"Memory of a rank: {gib(best.peak_bytes)} of {gib(room)}: {said}. Largest: {largest}. "
        f"{_memory_remedy(plan)}"
    )


def _memory_remedy(plan: Plan) -> str:
    listed = remedies(plan.job.model, plan.best.strategy)
    if not listed:
        return "Nothing that is modelled here makes it smaller."
    said = [f"{one.change}: {_size(one.saves)} less, costs {one.costs}" for one in listed[:2]]
    return "To save memory: " + "; or ".join(said) + "."


def _size(num_bytes: float) -> str:
    return gib(num_bytes) if num_bytes >= 2**30 / 10 else f"{num_bytes / 2**20:.1f} MiB"


def reading_line(plan: Plan) -> str:
    """What each machine has to read and prepare, which no model here predicts."""
    per_second = plan.job.global_batch / plan.best.step_seconds / plan.best.count
    said = f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
    return f"Reading: every machine must bring {said} samples a second; measure its loader."


def time_remedy(part: str, plan: Plan) -> str:
    """What shortens a part of the step."""
    strategy = plan.best.strategy
    if "bubble" in part or "pipeline" in part:
        return "More micro-batches a step, fewer stages, or an interleaved schedule."
    if "tensor" in part or part.startswith("tp"):
        return "A smaller tp (with FSDP or pp for the memory), or cards on NVLink."
    if any(word in part for word in ("data", "gradient", "dp", "fsdp", "all-reduce", "exposed")):
        slow = not plan.best.instance.efa and plan.best.count > 1
        return "Fewer, larger machines or a faster network" + (
            " (this type has no EFA)." if slow else "; a larger global batch, if it still learns as well."
        )
    if "input" in part or "read" in part:
        return "More loader workers, a cache, or machines with more processors: cards do not help."
    if "launch" in part:
        return "Larger micro-batches or torch.compile: the cards wait for kernels to be launched."
    if "table" in part or "embedding" in part:
        if plan.job.sparse_table:
            return "A smaller or hashed table, or a sharded one: dtlab.cost.embedding_plan compares the ways."
        return "Sparse gradients (--sparse-table) or a sharded table: see dtlab.cost.embedding_plan."
    if strategy.recompute == "full":
        return "Recomputation is a quarter of it: room for activations would save that; else faster cards."
    if strategy.precision == "fp32":
        return "Half precision, where the card and the model take it; else faster cards."
    return "Nothing else is in the way: faster or more cards."
