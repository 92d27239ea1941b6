"""A source's cost table beside the price list, and when runs on spot hosts end (lesson 14).

- ``source_table_figure`` draws what S0 claims and what minutes x price give, and splits his gain in two.
- ``finish_figure`` draws the spread of finish times of runs with drawn interruptions, against a deadline.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from dtlab.cost import billing, spot
from dtlab.cost.source_table import s0_table, split
from dtlab.cost.spot_simulation import simulated_wall_seconds
from dtlab.figures.style import BLUE, GREEN, GREY, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETUPS = ("1 card,\ndisk", "4 cards,\nmemory cache", "8 cards,\nNVMe cache")
_RUNS = 400


def source_table_figure() -> Figure:
    """Left: dollars of each row over the first row, as claimed and by two price lists. Right: 142 to 18.

    >>> figure = source_table_figure()
    """
    tables = {kind: s0_table(kind) for kind in ("sagemaker", "ec2")}
    claimed = [row.claimed_ratio for row in tables["sagemaker"]]
    shown = {
        "as claimed, per sample": (claimed, GREY, "xx"),
        "SageMaker, per epoch": ([row.ratio for row in tables["sagemaker"]], BLUE, ""),
        "EC2, per epoch": ([row.ratio for row in tables["ec2"]], ORANGE, "//"),
    }
    parts = split()
    one, four, eight = (row.claimed for row in tables["sagemaker"])
    listed = "; ".join(f"{name}: {_ratios(values)}" for name, (values, _, _) in shown.items())
    fig, (left, right) = new_figure(
        f"8 cards: {claimed[2]:.2f} of one card's price claimed, {tables['sagemaker'][2].ratio:.2f} or "
        f"{tables['ec2'][2].ratio:.2f} by price list; 4 are the cheapest row",
        alt=f"Left, price of 1, 4 and 8 cards relative to one card. {listed}. Right, minutes of an epoch: "
        f"{one.minutes} of one card from disk are {parts.stalled_minutes:.0f} waiting for the disk and "
        f"{parts.one_card_minutes:.0f} computing, so the cache is worth {parts.cache:.2f}x; "
        f"{parts.one_card_minutes:.0f} to {eight.minutes} on eight cards is {parts.cards:.2f}x.",
        columns=2,
        size=(9.6, 3.8),
        gridspec_kw={"width_ratios": [1.25, 1]},
    )
    for place, (name, (values, colour, hatch)) in enumerate(shown.items()):
        at = [row + 0.27 * (place - 1) for row in range(3)]
        bars = left.bar(at, values, 0.25, color=colour, hatch=hatch, edgecolor="white", label=name)
        left.bar_label(bars, fmt="%.2f", fontsize=8)
    left.set_xticks(range(3), _SETUPS)
    left.set_ylabel("price, one card from disk = 1")
    left.set_ylim(0, 1.42)
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    rows = ("1 card, disk", "1 card, cache\n(computed)", "4 cards, cache", "8 cards, cache")
    busy = [parts.one_card_minutes] * 2 + [_busy(four), _busy(eight)]
    other = [parts.stalled_minutes, 0, four.minutes - _busy(four), eight.minutes - _busy(eight)]
    right.barh(rows, busy, color=BLUE, edgecolor="white", label="computing")
    right.barh(
        rows[:1], other[:1], left=busy[:1], color=RED, hatch="xx", edgecolor="white", label="waiting for disk"
    )
    right.barh(
        rows[2:], other[2:], left=busy[2:], color=GREEN, hatch="//", edgecolor="white", label="communication"
    )
    gains = ("", f": cache, {parts.cache:.2f}x", "", f": eight cards, {parts.cards:.2f}x")
    for row, (a, b, gain) in enumerate(zip(busy, other, gains, strict=True)):
        right.text(a + b + 2, row, f"{a + b:.0f}{gain}", va="center", fontsize=9)
    right.invert_yaxis()
    right.set_xlim(0, 190)
    right.set_xlabel("minutes of an epoch")
    right.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.16))
    return fig


def finish_figure(
    work_hours: float = 20.0,
    deadline_hours: float = 24.0,
    interruptions_per_hour: float = 0.15,
    hosts: int = 2,
    save_every_minutes: float = 30.0,
    restart_minutes: float = 10.0,
    instance: str = "ml.g5.12xlarge",
    spot_fraction: float = 0.35,
) -> Figure:
    """When 400 runs on spot hosts end, which of them are late, and what they cost on average.

    - ``interruptions_per_hour``: of one host; any host's stops the run. ``spot_fraction``: of EC2's on-demand
      price. A run without an interruption pays on demand only for its work.
    - A save is taken as free: lesson 13 counts it.

    >>> figure = finish_figure(interruptions_per_hour=0.0)
    """
    walls = simulated_wall_seconds(
        3600 * work_hours,
        spot.mtbf_seconds(interruptions_per_hour, hosts),
        interval_seconds=60 * save_every_minutes,
        restart_seconds=60 * restart_minutes,
        runs=_RUNS,
    )
    hours = [wall / 3600 for wall in walls]
    late = sum(hour > deadline_hours for hour in hours)
    mean = fmean(hours)
    machine = instance.removeprefix("ml.")
    on_demand = billing.cost(machine, 3600 * work_hours, count=hosts, kind="ec2").usd
    paid = billing.cost(
        machine, 3600 * mean, count=hosts, kind="spot", spot_fraction=spot_fraction
    ).usd  # of the mean: dollars are in proportion to hours
    fig, ax = new_figure(
        f"{late / _RUNS:.0%} of runs are late; mean {mean:.1f} h, ${paid:,.0f} against ${on_demand:,.0f} "
        "on demand",
        alt=f"Histogram of the hours that {_RUNS} runs on {hosts} spot hosts of {machine} take for "
        f"{work_hours:g} hours of work, from {min(hours):.1f} to {max(hours):.1f}, mean {mean:.1f}, one in "
        f"twenty over {sorted(hours)[int(0.95 * _RUNS)]:.1f}. Deadline: {deadline_hours:g} hours, which "
        f"{late} of {_RUNS} miss. On demand: {work_hours:g} hours, ${on_demand:,.0f}. On spot ${paid:,.0f}, "
        f"{1 - paid / on_demand:.0%} saved by a discount of {1 - spot_fraction:.0%}.",
        xlabel="hours until the work is done",
        ylabel=f"runs of {_RUNS}",
        size=(8.4, 3.6),
    )
    low, high = work_hours, max(max(hours), deadline_hours, work_hours * 1.05)
    width = (high - low) / 40
    first = deadline_hours - math.ceil(max(0.0, deadline_hours - low) / width) * width
    bins = math.ceil((high - first) / width) + 1
    edges = [first + width * place for place in range(bins + 1)]  # the deadline is one of them
    in_time = [hour for hour in hours if hour <= deadline_hours]
    too_late = [hour for hour in hours if hour > deadline_hours]
    ax.hist(in_time, edges, color=BLUE, edgecolor="white", label=f"in time: {len(in_time)}")
    ax.hist(too_late, edges, color=ORANGE, hatch="//", edgecolor="white", label=f"late: {late}")
    ax.axvline(deadline_hours, color=RED, linestyle="--", label=f"deadline, {deadline_hours:g} h")
    ax.axvline(mean, color=GREY, linestyle=":", linewidth=2, label=f"mean, {mean:.1f} h")
    ax.axvline(work_hours, color=GREEN, linestyle="-.", label=f"on demand, {work_hours:g} h")
    ax.legend(frameon=False, fontsize=8)
    return fig


def _busy(row) -> float:
    return row.minutes * (1 - (row.communication or 0))


def _ratios(values) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
