"""The planner's answer as a function of a few numbers: what the explorer of lesson 14 moves.

- ``run_price_figure``: price against time of a run, every configuration a dot, the frontier named.
- ``scaling_price_figure``: efficiency, hours and dollars of one kind of machine, from one to many.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from dtlab.cost.billing import BillKind, cost
from dtlab.cost.catalogue import instance as instance_named
from dtlab.cost.plan_job import Goal, Job, Space, Spot
from dtlab.cost.planner import Plan, plan
from dtlab.cost.presets import preset
from dtlab.cost.step_scaling import step_scaling
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError
from dtlab.figures.plan import plan_figure
from dtlab.figures.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INTERRUPTIONS = 0.05  # an hour of one spot host: nobody publishes it, so the figure's words say it


def run_price_figure(
    model: str = "GPT 320M",
    million_samples: float = 20.0,
    deadline_hours: float = 24.0,
    max_gpus: int = 16,
    kind: BillKind = "sagemaker",
    goal: Goal = "cheapest",
) -> Figure:
    """Price against hours of one run with a global batch of 1,024; see ``figures.plan.plan_figure``.

    Where no configuration keeps the deadline, the title says so and the nearest is marked.

    >>> figure = run_price_figure(max_gpus=4)
    """
    try:
        found = _planned(model, million_samples, deadline_hours, max_gpus, kind, goal)
    except UserError as error:
        if "nothing keeps it" not in str(error):
            raise
        found = _planned(model, million_samples, math.inf, max_gpus, kind, "fastest")
        figure = plan_figure(found)
        figure.suptitle(
            f"Nothing is done in {deadline_hours:g} h; the fastest takes {found.best.seconds / 3600:,.1f} h",
            x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False,
        )  # fmt: skip
        figure.set_gid(f"Nothing keeps the deadline of {deadline_hours:g} h. {figure.get_gid()}")
        return figure
    return plan_figure(found)


@lru_cache(maxsize=64)
def _planned(model: str, millions: float, hours: float, max_gpus: int, kind: BillKind, goal: Goal) -> Plan:
    job = Job(
        model=preset(model),
        samples=1e6 * millions,
        global_batch=1024,
        deadline_seconds=3600 * hours,
        goal=goal,
    )
    spot = Spot(interruptions_per_hour=_INTERRUPTIONS) if kind == "spot" else None
    return plan(job, Space(max_gpus=max_gpus, kind=kind, spot=spot))


def scaling_price_figure(
    model: str = "GPT 320M",
    instance: str = "ml.g5.12xlarge",
    global_batch: int = 256,
    micro_batch: int = 8,
    precision: Literal["fp32", "amp"] = "amp",
    million_samples: float = 1.0,
    max_machines: int = 8,
) -> Figure:
    """Data parallel on 1 to ``max_machines`` machines: efficiency of a card, and dollars of the same samples.

    The global batch is kept (strong scaling), so the learning is the same and the messages are not smaller.

    >>> figure = scaling_price_figure(max_machines=2)
    """
    machine = instance_named(instance)
    cards = [1] * (machine.gpus > 1) + [machine.gpus << k for k in range(max_machines.bit_length())]
    cards = [n for n in cards if n <= machine.gpus * max_machines and global_batch % n == 0]
    micro = min(micro_batch, global_batch)
    strategy = Strategy(micro_batch=micro, num_micro_batches=global_batch // micro, precision=precision)
    points = step_scaling(model, strategy, instance, ranks=cards)
    kind: BillKind = "sagemaker" if machine.on_sagemaker else "ec2"
    hours, usd = [], []
    for point in points:
        seconds = 1e6 * million_samples / point.samples_per_second
        machines = -(-point.ranks // machine.gpus)
        hours.append(seconds / 3600)
        usd.append(cost(machine, seconds, count=machines, kind=kind).usd)
    cheapest = min(range(len(points)), key=lambda place: usd[place])
    listed = "; ".join(
        f"cards {point.ranks}: {point.efficiency:.0%} efficient, {h:,.2f} h, ${d:,.2f}"
        for point, h, d in zip(points, hours, usd, strict=True)
    )
    fig, (left, right) = new_figure(
        f"{instance}: cheapest on {cards[cheapest]} cards, ${usd[cheapest]:,.2f}; "
        f"{cards[-1]} cards are {hours[cheapest] / hours[-1]:.1f}x as fast for "
        f"{usd[-1] / usd[cheapest]:.2f}x",
        alt=f"{model}, {million_samples:g} million samples, global batch {global_batch}, {precision}, data "
        "parallel, predicted. Left: efficiency of a card against cards. Right: dollars against hours. "
        f"{listed}.",
        columns=2,
        size=(9.4, 3.5),
    )
    left.plot(cards, [100 * point.efficiency for point in points], "o-", color=BLUE)
    left.axhline(100, color=GREY, linestyle=":")
    left.set_xscale("log", base=2)
    left.set_xticks(cards, [str(n) for n in cards])
    left.set(xlabel="cards (whole machines are paid)", ylabel="efficiency of a card (%)", ylim=(0, 112))
    right.plot(hours, usd, "s-", color=ORANGE)
    for n, h, d in zip(cards, hours, usd, strict=True):
        below = {"textcoords": "offset points", "xytext": (0, -9)}  # the line goes up to both sides
        right.annotate(f"{n}", (h, d), ha="center", va="top", fontsize=9, **below)
    right.set_xscale("log")
    right.xaxis.set_major_formatter("{x:g}")
    right.minorticks_off()
    right.set(xlabel="hours of the run, log (numbers: cards)", ylabel="price of the run (USD)")
    right.set_ylim(0, 1.2 * max(usd))
    return fig
