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
    fig.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=1 + len(used))  # off the curves
    return fig


def rates_finding(used: Mapping[int, Sequence[float]], right: Sequence[float]) -> str:
    """What the figure shows, in words: whether world size matters, and the widest gap to the right rates.

    >>> rates_finding({1: [0.1, 0.05], 2: [0.1, 0.05]}, [0.1, 0.1])
    'the same on 1 and 2 ranks; 0.50x right at step 1'
    """
    first = next(iter(used.values()))
    same = all(np.allclose(rates, first, rtol=1e-9, atol=0) for rates in used.values())
    said = f"the same on {_world_sizes(used)}" if same else "differs by ranks"
    worst = max(used, key=lambda ranks: float(np.abs(np.subtract(used[ranks], right)).max()))
    gaps = np.abs(np.subtract(used[worst], right))
    step = int(gaps.argmax())
    if gaps[step] <= 1e-9 * max(right):
        return f"{said}, and right"
    factor = (
        f"{used[worst][step] / right[step]:.2f}x right" if right[step] > 0.01 * max(right) else "far too high"
    )
    where = "" if same else f"on {_ranks(worst)} "
    return f"{said}; {where}{factor} at step {step}"


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


def losses_figure(runs: Mapping[str, Sequence[float]], guess: float) -> Figure:
    """Loss of runs by step on a log scale; what leaves the chart, or stops being a number, is marked.

    ``runs``: name -> loss of every step, NaN and infinity included. ``guess``: loss of a constant guess; a
    run that reaches 1.6 times as much counts as unstable, and the chart ends at 100 times.

    >>> figure = losses_figure({"with": [1.0, 0.5], "without": [1.0, math.nan]}, guess=1.0)
    """
    if not runs:
        raise ValueError("runs is empty: give at least one")
    top = 100 * guess
    fig, ax = new_figure(
        losses_finding(runs, guess),
        alt="Loss by optimizer step, log scale. "
        + " ".join(f"{name}: {_losses_words(losses, top)}." for name, losses in runs.items())
        + f" A dotted line at {guess:.2f}: a constant guess.",
        xlabel="optimizer step",
        ylabel="loss (nats per sample), log",
        size=(8.0, 3.4),
    )
    for place, (name, losses) in enumerate(runs.items()):
        colour, left = (ORANGE, BLACK, BLUE, GREEN)[place % 4], _leaves(losses, top)
        shown = [*losses[:left], *([] if left is None else [top])]
        ax.plot(shown, color=colour, linestyle=_DASHES[place % 4], linewidth=1.8, label=name)
        if left is not None:
            ax.plot(left, top, marker="X", color=RED, markersize=11, clip_on=False, zorder=5)
            ax.annotate(
                f"{name}: {_end_of(losses)}", (left, top), (10, -9), textcoords="offset points", fontsize=9
            )
    ax.axhline(guess, color=GREY, linewidth=1.0, linestyle=":", label="constant guess")
    ax.set_yscale("log")
    ax.set_ylim(0.5 * guess, top)
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    return fig


def losses_finding(runs: Mapping[str, Sequence[float]], guess: float) -> str:
    """Which runs are unstable, and how far they go; the stable ones are not named.

    >>> losses_finding({"a": [1.0, 8.0, 0.9], "b": [1.0, math.nan], "c": [1.0, 0.9]}, guess=1.0)
    'a reaches 8x the guess, b ends as NaN'
    """
    said = []
    for name, losses in runs.items():
        if not math.isfinite(losses[-1]):
            said.append(f"{name} ends as {_end_of(losses)}")
        elif not max(losses) < 1.6 * guess:
            said.append(f"{name} reaches {max(losses) / guess:.0f}x the guess")
    return ", ".join(said) or "Every run stays below 1.6x the guess"


def _end_of(losses: Sequence[float]) -> str:
    last = losses[-1]
    return "NaN" if math.isnan(last) else f"{last:.2g}"


def _losses_words(losses: Sequence[float], top: float) -> str:
    left = _leaves(losses, top)
    gone = f"leaves the chart at step {left} and ends as {_end_of(losses)}"
    kept = f"highest {max(losses):.2f} at step {int(np.argmax(losses))}, {losses[-1]:.2f} at the end"
    return f"{losses[0]:.2f} at first, {kept if left is None else gone}"


def _leaves(losses: Sequence[float], top: float) -> int | None:
    """The first step whose loss is not below ``top``; NaN is not."""
    return next((step for step, value in enumerate(losses) if not value < top), None)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _world_sizes(used: Mapping[int, Sequence[float]]) -> str:
    return f"{_listed([str(ranks) for ranks in used])} rank{'s' if list(used) != [1] else ''}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
