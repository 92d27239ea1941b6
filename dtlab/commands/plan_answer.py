"""What `dtlab plan` prints and draws of the plan that it found."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.cost.own_calibration import OwnCalibration
    from dtlab.cost.plan_job import Job, Space
    from dtlab.cost.planner import Plan, Predictor


def answer(
    job: Job, space: Space, top: int, figure: Path | None, json: bool, own: OwnCalibration | None = None
) -> int:
    """Search, then print the plan and draw it; `own` is a calibration from the user's runs."""
    from dtlab.cost.plan_bill import calibration_line, instead_line, used_by, without_layout
    from dtlab.cost.plan_json import as_dict
    from dtlab.cost.plan_model import Models
    from dtlab.cost.planner import plan as search

    predictor, instead = Models(own), None
    if space.layout is None:
        found = search(job, space, predictor)
    else:
        free = replace(space, layout=None)
        try:
            found = search(job, space, predictor)
        except UserError as error:
            other = search(job, free, predictor)
            raise UserError(f"{error}. {without_layout(other)}") from None
        instead = search(job, free, predictor)
    best = found.best
    if figure is not None:
        _draw(found, figure)
    if json:
        body = as_dict(found)
        if own is not None:
            body["calibration"] = {
                "source": own.source, "gpu": own.gpu, "eta": own.eta, "fixed_seconds": own.fixed_seconds,
                "error": own.error, "is_used": used_by(own, job, best),
            }  # fmt: skip
        if instead is not None:
            body |= {"layout": vars(space.layout), "instead": as_dict(instead)["best"]}
        body["best"] |= {
            "step_parts": dict(predictor.step_parts(job, best.strategy, best.instance, best.count)),
            "memory_items": dict(predictor.memory_items(job, best.strategy)),
        }
        print(json_module.dumps(body, indent=2))
    else:
        print("\n".join(_lines(found, top, predictor)))
        if own is not None:
            print(calibration_line(own, found))
        if instead is not None:
            print(instead_line(found, instead))
    return 0


def _lines(found: Plan, top: int, predictor: Predictor) -> list[str]:
    from dtlab.cost.plan_bill import beside_line, spot_line
    from dtlab.cost.plan_words import (
        memory_line,
        reading_line,
        rule,
        start_line,
        step_line,
        table,
        why_lost,
        why_others_lost,
    )

    job = found.job
    return [
        f"{job.model.name}, {job.model.parameters:,} parameters: {job.samples:,.0f} samples in "
        f"{job.steps:,} steps of {job.global_batch:,}; {rule(job)}",
        "",
        *table(found, top, only_frontier=not top),
        "",
        "2nd: the next best, on another type of machine if one keeps the limits; "
        "late, dear: misses a limit; front: no other is faster and cheaper; "
        "~ no measured run stands behind the time, > it is a bound.",
        why_lost(found),
        *why_others_lost(found),
        *beside_line(found),
        start_line(found),
        step_line(found, predictor),
        f"Trust in the time: {found.best.trust}.",
        reading_line(found),
        memory_line(found, predictor),
        f"Price: {found.best.price.line()}.",
        *spot_line(found, predictor),
        f"{found.covered:,} configurations in {found.search_seconds:.2f} s: {found.predicted:,} predicted, "
        f"{found.no_room:,} do not fit, {found.too_slow:,} too slow by their products alone, "
        f"{found.set_aside:,} pipelines not needed, {found.refused:,} in a format that the card lacks."
        + (f" Left out: {len(found.left_out)} types without a price or a model." if found.left_out else ""),
    ]  # fmt: skip


def check_figure(figure: Path | None) -> None:
    if figure is None:
        return
    if figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"figure = {str(figure)!r}: the name must end in .png, .svg or .pdf")
    if not figure.parent.is_dir():
        raise UserError(f"figure = {str(figure)!r}: there is no folder {str(figure.parent)!r}")


def _draw(found: Plan, figure: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            f"figure = {str(figure)!r}: matplotlib is not installed; pip install 'dtlab[lab]'"
        ) from None
    from dtlab.figures.plan import plan_figure

    made = plan_figure(found)
    beside = figure.with_name(f".{figure.name}{figure.suffix}")
    made.savefig(beside, dpi=130)
    beside.replace(figure)
