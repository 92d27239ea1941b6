"""Sizes of gradients against what fp16 can hold (lesson 06).

fp16 has 5 bits of exponent and 10 of fraction (IEEE 754-2019, binary16): its smallest number is 2^-24, and a
size of at most half of it becomes 0. Below 2^-14 it loses bits. From 65,520 on it is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dtlab.figures.style import BLUE, GREY, RED, YELLOW, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BECOMES_ZERO = 2.0**-25
LOSES_BITS_BELOW = 2.0**-14
BECOMES_INFINITE = 65520.0
LOWEST, HIGHEST = -50, 20  # powers of two that are drawn; what lies outside goes into the last bin


def fp16_shares(sizes: Any) -> dict[str, float]:
    """Shares of the numbers that fp16 makes 0, or infinite, or holds with fewer bits. True zeros count as
    none of these; ValueError when there is no other number.

    >>> fp16_shares([2.0**-30, 2.0**-20, 1.0, 1e6, 0.0])
    {'zero': 0.25, 'fewer bits': 0.25, 'infinite': 0.25}
    """
    found = np.abs(np.asarray(sizes, dtype=np.float64).ravel())
    found = found[found > 0]
    if not len(found):
        raise ValueError("no gradient that is not 0: nothing to compare with fp16")
    zero, infinite = found <= BECOMES_ZERO, found >= BECOMES_INFINITE
    coarse = ~zero & (found < LOSES_BITS_BELOW)
    return {
        name: float(np.mean(where))
        for name, where in (("zero", zero), ("fewer bits", coarse), ("infinite", infinite))
    }


def gradient_sizes_figure(runs: Mapping[str, Any]) -> Figure:
    """Histogram of gradient sizes by power of two, a panel for each run, with fp16's zones shaded.

    ``runs``: name -> gradients, any shape, computed in fp32. ValueError without a run, or for a run of zeros.

    >>> figure = gradient_sizes_figure({"as they are": [1e-9, 1e-3], "times 1,024": [1e-6, 1.0]})
    """
    if not runs:
        raise ValueError("runs is empty: give at least one set of gradients")
    shares = {name: fp16_shares(sizes) for name, sizes in runs.items()}
    fig, axes = new_figure(
        "In fp16's zero zone: " + "; ".join(f"{name} {each['zero']:.1%}" for name, each in shares.items()),
        alt="Histograms by power of two, one below the other. "
        + " ".join(_words(name, runs[name], each) for name, each in shares.items()),
        rows=len(runs),
        size=(8.0, 0.7 + 1.75 * len(runs)),
        sharex=True,
        squeeze=False,
    )
    for ax, (name, sizes) in zip(axes[:, 0], runs.items(), strict=True):
        _panel(ax, sizes, named=ax is axes[0, 0])
        ax.set_title(name, loc="left", fontsize=9.5)
        ax.set_ylabel("numbers")
    axes[-1, 0].set_xlabel("size of a gradient, as a power of two")
    return fig


def _exponents(sizes: Any) -> Any:
    """The power of two at or below each size; zeros left out."""
    found = np.abs(np.asarray(sizes, dtype=np.float64).ravel())
    return np.clip(np.floor(np.log2(found[found > 0])), LOWEST, HIGHEST)


def _words(name: str, sizes: Any, shares: Mapping[str, float]) -> str:
    middle = int(np.median(_exponents(sizes)))
    told = ", ".join(f"{share:.1%} {zone}" for zone, share in shares.items())
    return f"{name}: the middle one lies at 2^{middle}; in fp16 {told}."


def _panel(ax: Any, sizes: Any, named: bool) -> None:
    edges = np.arange(LOWEST, HIGHEST + 2)
    counts, _ = np.histogram(_exponents(sizes), bins=edges)
    ax.bar(edges[:-1], counts, width=1.0, align="edge", color=BLUE, edgecolor="white", linewidth=0.4)
    zones = (
        (LOWEST, -25, RED, "///", "becomes 0"),
        (-25, -14, YELLOW, "..", "fewer bits"),
        (16, HIGHEST + 1, GREY, "xx", "infinite"),
    )
    for low, high, colour, hatch, word in zones:
        ax.axvspan(low, high, facecolor=colour, alpha=0.22, hatch=hatch, edgecolor="white", zorder=0)
        if named:
            ax.text(
                (low + high) / 2, 0.97, word, ha="center", va="top", fontsize=8.5,
                transform=ax.get_xaxis_transform(),
            )  # fmt: skip
    ax.set_xlim(LOWEST, HIGHEST + 1)
    ax.set_ylim(0, 1.3 * counts.max())  # room for the names of the zones
