"""The plan of the capstone: a job, machines that could do it, and what the card says of a choice (lesson 16).

Prices and memory come from the catalogue. The speeds are this lesson's assumption: in a real project a short
run on each machine brings them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dtlab.cost import billing, catalogue
from dtlab.cost.plan_search import WITHOUT_BF16
from dtlab.diagnose.report_lines import Line, ReportCard

HOUR = 3600
MOST_HOSTS = 4
ROOM = 0.8  # share of a card's memory that weights, gradients and moments may take; the rest is activations
PLAN_KEYS = ("instance", "hosts", "precision", "seconds", "cents")


class PlanJob(NamedTuple):
    """Work to be bought.

    ``state_bytes``: tables with gradients and moments, all together. ``keeps``: the share of its speed that a
    run keeps for each host more, so that h hosts do ``h * keeps ** (h - 1)`` times the work of one.
    """

    samples: float
    state_bytes: float
    deadline_seconds: float
    budget_cents: int
    keeps: float


class Machine(NamedTuple):
    """A machine type: cards and their bytes, dollars an hour of the host, samples a second of the host.

    ``speeds``: by precision. ``has_bf16``: whether its cards compute in bf16, or only emulate it.
    """

    cards: int
    card_bytes: float
    has_bf16: bool
    usd_per_hour: float
    speeds: dict[str, float]


# 2e9 clicks; 200M rows of 64 numbers and a first-order weight, 16 bytes each with Adam; a day; 250 dollars.
JOB = PlanJob(2e9, 200e6 * 65 * 16, 24 * HOUR, 25_000, 0.9)
_SPEEDS = {  # samples a second of a host: our assumption
    "ml.g4dn.12xlarge": {"fp32": 8_000, "fp16": 13_000, "bf16": 5_000},
    "ml.g5.12xlarge": {"fp32": 15_000, "fp16": 23_000, "bf16": 25_000},
    "ml.g5.48xlarge": {"fp32": 27_000, "fp16": 42_000, "bf16": 45_000},
    "ml.p4d.24xlarge": {"fp32": 50_000, "fp16": 78_000, "bf16": 80_000},
}


def machines() -> dict[str, Machine]:
    """The machines of the lesson, with today's figures of the catalogue.

    >>> machines()["ml.g4dn.12xlarge"].has_bf16
    False
    """
    found = {}
    for name, speeds in _SPEEDS.items():
        one = catalogue.instance(name)
        usd = one.price("sagemaker").usd
        found[name] = Machine(one.gpus, one.gpu_memory_bytes, one.gpu not in WITHOUT_BF16, usd, dict(speeds))
    return found


# What was left behind: the host that is cheapest by the hour, in a format that its cards only emulate.
FAULTY_PLAN = {
    "instance": "ml.g4dn.12xlarge", "hosts": 3, "precision": "bf16", "seconds": 24 * HOUR, "cents": 25_000,
}  # fmt: skip


def plan_card(plan: dict[str, object], job: PlanJob = JOB) -> ReportCard:
    """Lines for memory, number format, deadline, budget, and the bill that the plan itself names.

    Seconds and cents are computed here, from the catalogue. UserError for an unknown instance.
    """
    name, hosts, precision = str(plan["instance"]), int(str(plan["hosts"])), str(plan["precision"])
    found = catalogue.instance(name)
    machine = machines().get(found.sagemaker_name)
    if machine is None or precision not in machine.speeds or hosts < 1:
        raise ValueError(f"plan: {hosts} x {name} in {precision!r} is not among the machines of this lesson")
    seconds = job.samples / (hosts * job.keeps ** (hosts - 1) * machine.speeds[precision])
    cents = round(100 * billing.cost(name, seconds, hosts).usd)
    each, room = job.state_bytes / (hosts * machine.cards), ROOM * machine.card_bytes
    hours, most = seconds / HOUR, job.deadline_seconds / HOUR
    lines = (
        Line(
            "tables fit", "plan", f"{each / 1e9:.1f} GB a card", f"at most {room / 1e9:.1f} GB", each <= room,
            "all cards together hold the tables: more cards, or larger ones", limit=each / room,
        ),
        Line(
            "number format", "plan", precision, "one that the card computes in",
            precision != "bf16" or machine.has_bf16, f"a {found.gpu} only emulates bf16, which is slow: fp16",
        ),
        Line(
            "in time", "plan", f"{hours:.1f} h", f"at most {most:.0f} h", hours <= most,
            "more hosts, faster cards, or a later deadline", limit=hours / most,
        ),
        Line(
            "within the budget", "plan", f"${cents / 100:,.2f}", f"at most ${job.budget_cents / 100:,.2f}",
            cents <= job.budget_cents, "hosts x hours x price", limit=cents / job.budget_cents,
        ),
        Line(
            "the bill that the plan names", "plan", f"{plan['cents']} cents", f"{cents} cents",
            plan["cents"] == cents and math.isclose(float(str(plan["seconds"])), seconds, rel_tol=1e-6),
            "whole cents of all hosts, by the second",
        ),
    )  # fmt: skip
    return ReportCard(lines)
