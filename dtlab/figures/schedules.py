"""Learning rates step by step, and the loss of one rank beside the mean of all (lesson 05).

- ``rates_figure`` draws the rates that ranks really used, for several numbers of ranks, over the right ones.
- ``raw_loss_figure`` draws rank 0's own loss over the mean of all ranks: same run, same weights.
- ``losses_figure`` draws runs beside each other and marks where one stopped being a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dtlab.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PALETTE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("solid", (0, (6, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)))


def rates_figure(name: str, used: Mapping[int, Sequence[float]], right: Sequence[float]) -> Figure:
    """The rate of every optimizer step: one line for each number of ranks, over the right one in grey.

    - ``used``: number of ranks -> rates in the order of the optimizer steps. ``right``: the intended rates.
    - ValueError when there is nothing to draw or the lengths differ.

    >>> figure = rates_figure("halved", {1: [0.1, 0.05], 2: [0.1, 0.05]}, right=[0.1, 0.1])
    """
    lengths = {len(rates) for rates in used.values()} | {len(right)}
    if not used or len(lengths) != 1 or not len(right):
        raise ValueError(f"{name}: give the rates of at least one world size, as many as right ones")
    fig, ax = new_figure(
        f"{name}: {rates_finding(used, right)}",
        alt=f"Learning rate by optimizer step, {len(right)} steps, on {_world_sizes(used)}. "
        + " ".join(f"{_ranks(ranks)}: {_rates_words(rates)}." for ranks, rates in used.items())
        + f" Right, as a broad grey line: {_rates_words(right)}.",
        xlabel="optimizer step",
        ylabel="learning rate",
        size=(8.0, 3.4),
    )
    ax.plot(right, color=GREY, alpha=0.45, linewidth=7, label="right")
    for place, (ranks, rates) in enumerate(used.items()):
        ax.plot(
            rates,
            color=PALETTE[(0, 4, 7, 3)[place % 4]],
            linestyle=_DASHES[place % 4],
            linewidth=2.4 - 0.5 * (place % 4),
            label=_ranks(ranks),
        )
    ax.set_ylim(bottom=0)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    ax.legend(frameon=False, fontsize=8, ncols=2)
    return fig


def rates_finding(used: Mapping[int, Sequence[float]], right: Sequence[float]) -> str:
    """What the figure shows, in words: whether world size matters, and the widest gap to the right rates.

    >>> rates_finding({1: [0.1, 0.05], 2: [0.1, 0.05]}, [0.1, 0.1])
    'the same on 1 and 2 ranks, 0.50x the right rate at step 1'
    """
    first = next(iter(used.values()))
    same = all(np.allclose(rates, first, rtol=1e-9, atol=0) for rates in used.values())
    where = f"on {_world_sizes(used)}"
    said = f"the same {where}" if same else f"another one {where}"
    worst = max(used, key=lambda ranks: float(np.abs(np.subtract(used[ranks], right)).max()))
    gaps = np.abs(np.subtract(used[worst], right))
    step = int(gaps.argmax())
    if gaps[step] <= 1e-9 * max(right):
        return f"{said}, and right"
    factor = f"{used[worst][step] / right[step]:.2f}x" if right[step] > 0.01 * max(right) else "far above"
    return f"{said}, {factor} the right rate at step {step}" + ("" if same else f" ({_ranks(worst)})")


def _rates_words(rates: Sequence[float]) -> str:
    peak = int(np.argmax(rates))
    middle, last = len(rates) // 2, len(rates) - 1
    return (
        f"{rates[0]:.3g} at step 0, highest {rates[peak]:.3g} at step {peak}, {rates[middle]:.3g} at step "
        f"{middle}, {rates[last]:.3g} at step {last}"
    )


def jumps(losses: Sequence[float]) -> float:
    """How far a loss jumps from step to step: root mean square of the differences of neighbours.

    Differences leave a slow trend out, so that a run may be learning meanwhile.

    >>> jumps([1.0, 2.0, 1.0])
    1.0
    """
    if len(losses) < 2:
        raise ValueError(f"{len(losses)} losses: a jump needs two steps")
    return float(np.sqrt(np.mean(np.square(np.diff(losses)))))


def raw_loss_figure(by_rank: Sequence[Sequence[float]]) -> Figure:
    """Rank 0's own loss of every step, over the mean of all ranks.

    ``by_rank``: rank -> loss of its own samples in each step. ValueError for fewer than two ranks or steps.

    >>> figure = raw_loss_figure([[1.0, 3.0, 1.0], [2.0, 1.0, 3.0]])
    """
    if len(by_rank) < 2:
        raise ValueError(f"{len(by_rank)} ranks: the mean of one rank is its own loss")
    mean = np.mean(by_rank, axis=0)
    factor = jumps(by_rank[0]) / jumps(mean.tolist())
    ranks, steps = len(by_rank), len(mean)
    fig, ax = new_figure(
        f"Rank 0's own loss jumps {factor:.1f}x as far as the mean of {ranks} ranks",
        alt=f"Two curves of loss over {steps} steps of one run. Rank 0's own, thin, between "
        f"{min(by_rank[0]):.2f} and {max(by_rank[0]):.2f}; the mean of {ranks} ranks, thick, between "
        f"{mean.min():.2f} and {mean.max():.2f}. Both fall alike; the thin one is {factor:.1f}x as rough.",
        xlabel="optimizer step",
        ylabel="loss (nats per sample)",
        size=(8.0, 3.4),
    )
    ax.plot(by_rank[0], color=ORANGE, linewidth=0.9, label="rank 0's own samples, as printed")
    ax.plot(mean, color=BLUE, linewidth=2.2, label=f"mean of {ranks} ranks")
    ax.legend(frameon=False, fontsize=9)
    return fig


def losses_figure(runs: Mapping[str, Sequence[float]], start: float) -> Figure:
    """Loss of runs by step; the chart ends a little above ``start``, and what leaves it is marked.

    ``runs``: name -> loss of every step, NaN and infinity included. ``start``: a loss that a run must not
    exceed to count as stable, for example that of the constant guess.

    >>> figure = losses_figure({"with": [1.0, 0.5], "without": [1.0, math.nan]}, start=1.0)
    """
    if not runs:
        raise ValueError("runs is empty: give at least one")
    top = 1.6 * start
    lost = {name: _leaves(losses, top) for name, losses in runs.items()}
    left = [name for name, step in lost.items() if step is not None]
    stayed = [name for name in runs if name not in left]
    said = [f"{_listed(left)}: off the chart"] if left else []
    said += [f"{_listed(stayed)}: stable"] if stayed else []
    fig, ax = new_figure(
        "; ".join(said),
        alt="Loss by optimizer step. "
        + " ".join(
            f"{name}: {losses[0]:.2f} at first, "
            + (f"leaves the chart at step {lost[name]}." if name in left else f"{losses[-1]:.2f} at the end.")
            for name, losses in runs.items()
        ),
        xlabel="optimizer step",
        ylabel="loss (nats per sample)",
        size=(8.0, 3.4),
    )
    for place, (name, losses) in enumerate(runs.items()):
        step = lost[name]
        shown = [value if math.isfinite(value) else math.nan for value in losses[:step]]
        colour = (BLUE, ORANGE, GREEN, BLACK)[place % 4]
        ax.plot(shown, color=colour, linestyle=_DASHES[place % 4], linewidth=1.8, label=name)
        if step is not None:
            ax.plot([max(step - 1, 0), step], [shown[-1] if shown else top, top], color=colour, linewidth=1.8)
            ax.plot(step, top, marker="X", color=RED, markersize=10, clip_on=False)
            ax.annotate(f"{name} leaves here", (step, top), (8, -12), textcoords="offset points", fontsize=8)
    ax.axhline(start, color=GREY, linewidth=1.0, linestyle=":", label="constant guess")
    ax.set_ylim(0, top)
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    return fig


def _leaves(losses: Sequence[float], top: float) -> int | None:
    """The first step whose loss is not below ``top``; NaN is not."""
    return next((step for step, value in enumerate(losses) if not value < top), None)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _world_sizes(used: Mapping[int, Sequence[float]]) -> str:
    return f"{_listed([str(ranks) for ranks in used])} rank{'s' if list(used) != [1] else ''}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
