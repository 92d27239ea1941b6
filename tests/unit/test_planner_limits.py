"""Deadline and budget at the edge: the planner against every way of a small space, tried one by one."""

import math
from dataclasses import replace

import pytest

from dtlab.cost.beside import Beside
from dtlab.cost.plan_job import Job, Space, Spot
from dtlab.cost.plan_machines import counts_of, machines_of
from dtlab.cost.plan_model import Models
from dtlab.cost.plan_search import EQUAL, Search
from dtlab.cost.plan_space import options
from dtlab.cost.planner import plan
from dtlab.cost.presets import BERT_LARGE, GPT_320M, Preset
from dtlab.errors import UserError

TYPES = ("g5.12xlarge", "g6e.12xlarge", "p4d.24xlarge")
CASES = [
    (BERT_LARGE, "sagemaker", Beside()),
    (GPT_320M, "ec2", Beside(data_gib=500, storage="gp3", egress_gib=10, idle_hours=2.5)),
    (BERT_LARGE, "spot", Beside()),
]


def every_way(job: Job, space: Space) -> list[tuple[float, float]]:
    """(seconds, usd) of all that fits; pipelines only on machines where nothing else does."""
    models, found = Models(), []
    search = Search(job, space, models)
    for machine, price in machines_of(space)[0]:
        for count in counts_of(space, machine):
            here = []
            for _, way in options(job, space, machine.gpus * count, machine.gpus):
                if models.peak_bytes(job, way) <= machine.gpu_memory_bytes * space.fits_below:
                    step = models.step_seconds(job, way, machine, count)
                    seconds, usd = search._run(step, machine, count, price, way)
                    total = search.rates.usd(usd, price.usd_per_hour * count, count, seconds / 3600)
                    here.append((way.pp, seconds, total))
            least = [one for one in here if one[0] == 1] or here
            found += [(seconds, usd) for _, seconds, usd in least]
    return found


def made(model: Preset, kind: str, beside: Beside, **given: object) -> tuple[Job, Space]:
    job = Job(model=model, samples=3e5, global_batch=96, beside=beside, **given)  # type: ignore[arg-type]
    spot = Spot(interruptions_per_hour=0.2) if kind == "spot" else None
    return job, Space(instances=TYPES, max_gpus=16, kind=kind, spot=spot)  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "kind", "beside"), CASES)
@pytest.mark.parametrize("slack", [1.0, 1.003])
@pytest.mark.parametrize("goal", ["cheapest", "fastest"])
def test_what_keeps_the_limits_is_found_and_not_beaten(
    model: Preset, kind: str, beside: Beside, slack: float, goal: str
) -> None:
    job, space = made(model, kind, beside, goal=goal)
    ways = every_way(job, space)
    for seconds, usd in (min(ways), min(ways, key=lambda one: one[1])):
        limited = replace(job, deadline_seconds=slack * seconds, budget_usd=slack * usd)
        best = plan(limited, space).best
        assert best.seconds <= limited.deadline_seconds
        assert best.usd <= limited.budget_usd
        kept = [one for one in ways if one[0] <= limited.deadline_seconds and one[1] <= limited.budget_usd]
        at = 1 if goal == "cheapest" else 0
        assert (best.seconds, best.usd)[at] <= EQUAL**2 * min(one[at] for one in kept) + 0.01
        with pytest.raises(UserError, match="nothing keeps it"):
            plan(replace(job, deadline_seconds=0.999 * min(ways)[0]), space)


@pytest.mark.parametrize(("model", "kind", "beside"), CASES)
def test_the_frontier_has_no_dominated_row_and_items_add_up(model: Preset, kind: str, beside: Beside) -> None:
    found = plan(*made(model, kind, beside))
    for faster, slower in zip(found.frontier, found.frontier[1:], strict=False):
        assert faster.seconds < slower.seconds
        assert faster.usd > slower.usd
    for one in found.candidates:
        assert any(kept.seconds <= one.seconds and kept.usd <= one.usd for kept in found.frontier)
        assert math.isclose(sum(one.items.values()), one.usd, abs_tol=1e-9)
