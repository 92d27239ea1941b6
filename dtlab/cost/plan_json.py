"""A plan as plain values, for `dtlab plan --json` (lesson 14)."""

import math
from typing import Any

from dtlab.cost.plan_search import Candidate
from dtlab.cost.plan_words import why_lost
from dtlab.cost.planner import Plan


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values; infinite limits are null."""

    def one(candidate: Candidate | None) -> dict[str, Any] | None:
        if candidate is None:
            return None
        price = candidate.price
        return {
            "instance": candidate.instance.name,
            "count": candidate.count,
            "gpus": candidate.gpus,
            "seconds": candidate.seconds,
            "usd": round(candidate.usd, 6),
            "usd_items": {name: round(usd, 6) for name, usd in candidate.items.items()},
            "step_seconds": candidate.step_seconds,
            "trust": candidate.trust,
            "memory_bytes": round(candidate.peak_bytes),
            "memory_share": candidate.peak_bytes / candidate.instance.gpu_memory_bytes,
            "strategy": dict(candidate.strategy.__dict__),
            "price": {
                "usd_per_hour": price.usd, "kind": price.kind, "region": price.region, "date": price.date,
                "source": price.source,
            },
            "within_limits": plan.within(candidate),
        }  # fmt: skip

    job = plan.job
    return {
        "model": job.model.name,
        "parameters": job.model.parameters,
        "samples": job.samples,
        "global_batch": job.global_batch,
        "steps": job.steps,
        "deadline_seconds": job.deadline_seconds if math.isfinite(job.deadline_seconds) else None,
        "budget_usd": job.budget_usd if math.isfinite(job.budget_usd) else None,
        "goal": job.goal,
        "beside": {**vars(job.beside)},
        "best": one(plan.best),
        "runner_up": one(plan.runner_up),
        "why_the_runner_up_lost": why_lost(plan),
        "frontier": [one(candidate) for candidate in plan.frontier],
        "covered": plan.covered,
        "refused": plan.refused,
        "no_room": plan.no_room,
        "too_slow": plan.too_slow,
        "set_aside": plan.set_aside,
        "predicted": plan.predicted,
        "search_seconds": plan.search_seconds,
        "left_out": list(plan.left_out),
    }
