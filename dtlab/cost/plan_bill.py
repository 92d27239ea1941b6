"""What the price of a plan is made of, in words: its items, and spot beside on demand (lesson 14)."""

import math

from dtlab.cost import billing
from dtlab.cost.own_calibration import OwnCalibration
from dtlab.cost.plan_job import Job
from dtlab.cost.plan_layout import parallel_words
from dtlab.cost.plan_search import EQUAL, Predictor
from dtlab.cost.plan_words import describe, hours_of, name_of
from dtlab.cost.planner import Candidate, Plan
from dtlab.cost.spot_plan import plan_spot
from dtlab.cost.step_time import FORMATS
from dtlab.errors import UserError


def beside_line(plan: Plan) -> list[str]:
    """What the run costs beside its machines: the items, and how much of each was asked for."""
    asked, best = plan.job.beside, plan.best
    if asked.is_nothing:
        return []
    said = {"compute": f"{hours_of(best)} of {name_of(plan, best)}", **asked.words(best.count)}
    parts = " + ".join(f"{name} ${usd:,.2f} ({said[name]})" for name, usd in best.items.items())
    return [f"${best.usd:,.2f} = {parts}. A GiB is what AWS's price lists call GB."]


def spot_line(plan: Plan, predictor: Predictor) -> list[str]:
    """On spot hosts: how often to save, what interruptions take, and the same run on demand."""
    best, job, spot = plan.best, plan.job, plan.space.spot
    if spot is None:
        return []
    try:
        on_demand = billing.cost(best.instance, 3600, kind="ec2", region=plan.space.region).usd
    except UserError as error:
        return [f"Spot beside on demand cannot be told: {error}."]
    compared = plan_spot(
        job.steps * best.step_seconds,
        on_demand_usd_per_hour=on_demand,
        spot_usd_per_hour=best.price.usd_per_hour,
        interruptions_per_hour=spot.interruptions_per_hour,
        hosts=best.count,
        state_bytes=predictor.state_bytes(job, best.strategy),
        write_bytes_per_second=spot.write_bytes_per_second,
        start_seconds=job.start_seconds,
        deadline_seconds=job.deadline_seconds,
    )
    rate = compared.break_even_rate
    loses = f"above {rate:.3g} interruptions an hour and host" if math.isfinite(rate) else "at no rate tried"
    if not rate:
        loses = "at any rate"
    return [f"Without the first start, {compared.line()}. Spot loses {loses}."]


def instead_line(kept: Plan, free: Plan) -> str:
    """What the planner takes where the layout of a run is its own to choose, beside the layout that was kept.

    Args:
        kept: the plan of the layout.
        free: the plan of the same job without it.
    """
    best, other, layout = kept.best, free.best, kept.space.layout
    assert layout is not None
    here = [one for one in free.candidates if (one.instance, one.count) == (best.instance, best.count)]
    said = f"This is the layout of the run ({layout.line()})."
    if here and EQUAL * here[0].step_seconds < best.step_seconds:
        said += (
            f" On the same machines a step takes {here[0].step_seconds:.3g} s instead of "
            f"{best.step_seconds:.3g} s with {describe(here[0].strategy)} "
            f"({parallel_words(here[0].strategy)})."
        )
    if other.strategy == best.strategy and other.name == best.name:
        return f"{said} Left to choose, the planner takes the same."
    return f"{said} {without_layout(free)}, against {hours_of(best)} and ${best.usd:,.2f}."


def without_layout(free: Plan) -> str:
    """What the planner takes where the layout of a run cannot be had."""
    best = free.best
    return (
        f"Left to choose, the planner takes {name_of(free, best)}, {describe(best.strategy)}: "
        f"{hours_of(best)} and ${best.usd:,.2f} ({parallel_words(best.strategy)})"
    )


def used_by(own: OwnCalibration, job: Job, best: Candidate) -> bool:
    """Whether a calibration from own runs stands behind the time of a candidate."""
    row = own.row(job.model) if own.gpu == best.instance.gpu else None
    return row is not None and FORMATS[best.strategy.precision] == row.form


def calibration_line(own: OwnCalibration, plan: Plan) -> str:
    """What a calibration from own runs did to the plan, or why nothing; then what the runs say themselves."""
    best, job = plan.best, plan.job
    said = f"Calibration from {own.source}"
    if own.gpu is None:
        said += ": it says nothing of a card, and no time above rests on it."
    elif (row := own.row(job.model)) is None:
        said += f": a {own.kind}, which {job.model.name} is not, so that no time above rests on it."
    elif used_by(own, job, best):
        said += f": {row.eta:.1%} of the peak of a {own.gpu} and {row.fixed_seconds * 1e3:.3g} ms a step."
    else:
        said += f": it counts for the {own.gpu} in {own.form}; "
        said += "the best rests on the package's figures, which no run of yours has tried."
    if job.model.parameters != own.parameters:
        return said
    ranks = max(run.ranks for run in own.runs)
    step = own.fit().predict(ranks, max(job.global_batch, ranks), max(run.nodes for run in own.runs))
    seconds = job.steps * step.step_seconds
    length = f"{seconds / 3600:,.2f} h" if seconds >= 360 else f"{seconds:.3g} s"
    return f"{said} On {ranks} ranks where they ran the job takes {length} +-{step.error:.0%} (not priced)."
