"""Price against time of a run: every configuration a dot, the frontier drawn and named (lesson 14)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dtlab.cost.plan_words import name_of
from dtlab.cost.planner import Candidate, Plan
from dtlab.figures.style import BLACK, GREEN, GREY, MARKERS, ORANGE, PALETTE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 8
MOST_DOTS = 20_000


def plan_figure(plan: Plan) -> Figure:
    """Dollars against hours of the whole run, both log.

    Small dots are all configurations that were predicted, marks the best of each number of machines of a
    type, the line the frontier: what lies right of it or above it is beaten in both. Limits are lines.
    """
    best, front = plan.best, plan.frontier
    fig, ax = new_figure(
        f"{name_of(plan, best)}: {_money(best.usd)}, {_hours(best.seconds)}",
        alt=_words(plan),
        xlabel="hours of the run, log",
        ylabel="price of the run (USD), log",
        size=(9.6, 4.8),
    )
    step = max(1, math.ceil(len(plan.dots) / MOST_DOTS))
    dots = plan.dots[::step]
    ax.plot(
        [seconds / 3600 for seconds, _ in dots], [usd for _, usd in dots], linestyle="none", marker=".",
        markersize=2, color=GREY, alpha=0.35, rasterized=True, label=f"{len(plan.dots):,} predicted",
    )  # fmt: skip
    _types(ax, plan)
    ax.plot(
        [one.seconds / 3600 for one in front], [one.usd for one in front], color=BLACK, linewidth=1.4,
        drawstyle="steps-post", label="frontier",
    )  # fmt: skip
    for letter, one in zip("ABCDEFGHIJ", _named(plan), strict=False):
        at = (one.seconds / 3600, one.usd)
        where = (-15, -3) if letter == "A" else (-12, -15) if one is best else (-8, -11)  # off line and ring
        ax.annotate(letter, at, textcoords="offset points", xytext=where, fontsize=9, fontweight="bold")
        ax.plot(
            [], [], linestyle="none", marker=f"${letter}$", markersize=6, color=BLACK,
            label=f"{name_of(plan, one)}: {_hours(one.seconds)}, {_money(one.usd)}",
        )  # fmt: skip
    ax.plot(
        best.seconds / 3600, best.usd, marker="o", markersize=11, fillstyle="none", color=RED,
        markeredgewidth=2, linestyle="none", label="chosen",
    )  # fmt: skip
    if math.isfinite(plan.job.deadline_seconds):
        hours = plan.job.deadline_seconds / 3600
        ax.axvline(hours, color=ORANGE, linestyle="--", linewidth=1.4, label=f"deadline, {hours:g} h")
    if math.isfinite(plan.job.budget_usd):
        usd = plan.job.budget_usd
        ax.axhline(usd, color=GREEN, linestyle="-.", linewidth=1.4, label=f"budget, {_money(usd)}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.75 * min(one.usd for one in front))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("${x:,g}")
    fig.legend(loc="outside right upper", frameon=False, fontsize=8, labelspacing=0.7)
    return fig


def _types(ax, plan: Plan) -> None:
    kinds: dict[str, list[Candidate]] = {}
    for one in plan.candidates:
        kinds.setdefault(one.instance.name, []).append(one)
    ranked = sorted(kinds.items(), key=lambda item: min(one.usd for one in item[1]))
    for number, (name, some) in enumerate(ranked):
        known = number < len(MARKERS)
        ax.plot(
            [one.seconds / 3600 for one in some], [one.usd for one in some], linestyle="none", markersize=5,
            marker=MARKERS[number % len(MARKERS)], color=PALETTE[number % 7] if known else GREY,
            alpha=1.0 if known else 0.6, label=name if known else None,
        )  # fmt: skip


def _named(plan: Plan) -> list[Candidate]:
    """An even pick of the frontier, its ends and the chosen one among them, fastest first."""
    front = list(plan.frontier)
    step = max(1, math.ceil(len(front) / (MOST_NAMED - 1)))
    picked = [*front[::step], *front[-1:], plan.best]
    return sorted({id(one): one for one in picked}.values(), key=lambda one: one.seconds)


def _words(plan: Plan) -> str:
    job = plan.job
    front = "; ".join(
        f"{name_of(plan, one)} {_hours(one.seconds)} for {_money(one.usd)}" for one in plan.frontier
    )
    limits = ""
    if math.isfinite(job.deadline_seconds):
        limits += f" Deadline: {job.deadline_seconds / 3600:g} h."
    if math.isfinite(job.budget_usd):
        limits += f" Budget: {_money(job.budget_usd)}."
    return (
        f"Price of a run against its hours, {job.model.name}, {job.samples:,.0f} samples; {len(plan.dots):,} "
        f"configurations predicted of {plan.covered:,} covered. Chosen, the {job.goal} within the limits: "
        f"{name_of(plan, plan.best)}.{limits} Frontier, fastest first: {front}."
    )


def _money(usd: float) -> str:
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:,.2f}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 36_000 else f"{seconds / 3600:,.2f} h"
