"""Time of a collective by its size on several kinds of machine, measured or by rule (lessons 10 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.cost.catalogue import instance
from dtlab.cost.collective_time import Link
from dtlab.cost.networks import network
from dtlab.errors import UserError
from dtlab.figures.collectives import size_words, time_words
from dtlab.figures.style import BLACK, GREY, MARKERS, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINES = ("g4dn.12xlarge", "g5.12xlarge", "g6e.12xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge")
_MIB = 2**20
_SIZES = [2.0**power for power in range(14, 33)]  # 16 KiB to 4 GiB


def machine_collectives_figure(
    machines: int = 2,
    size_mib: float = 64,
    collective: str = "all_reduce",
    types: Sequence[str] = MACHINES,
) -> Figure:
    """Seconds against bytes on `machines` machines of each type, all their cards taking part; both axes log.

    A solid line rests on published measurements of such machines, a dashed one on the rules of
    `dtlab.cost.networks`. The vertical line is at `size_mib`, and the labels give the time there.

    Raises:
        UserError: no machine, an unknown type or collective, a type with one card on one machine.

    >>> figure = machine_collectives_figure(machines=2, size_mib=64)
    """
    if type(machines) is not int or machines < 1:
        raise UserError(f"machines = {machines!r}: give a whole number of 1 or more")
    if not 0 < size_mib < 1e9:
        raise UserError(f"size_mib = {size_mib!r}: give a size above 0")
    ends = [(name, *_link(name, machines)) for name in types]
    at = size_mib * _MIB
    timed = sorted(
        (link.seconds(collective, ranks, at), name.partition(".")[0]) for name, link, ranks in ends
    )
    word = collective.replace("_", "-")
    hosts = "one machine" if machines == 1 else f"{machines} machines"
    fig, ax = new_figure(
        f"{word.capitalize()} of {size_words(at)} on {hosts}: {time_words(timed[0][0])} on {timed[0][1]}, "
        f"{time_words(timed[-1][0])} on {timed[-1][1]}",
        alt=(
            f"Seconds against bytes, both logarithmic, one line for each machine type. At {size_words(at)}: "
            + "; ".join(f"{name} {time_words(seconds)}" for seconds, name in timed)
        ),
        xlabel="size (bytes)",
        ylabel="time",
        size=(8.4, 4.2),
    )
    for number, (name, link, ranks) in enumerate(ends):
        seconds = [link.seconds(collective, ranks, size) for size in _SIZES]
        here = link.seconds(collective, ranks, at)
        measured = link.kind == "measured"
        ax.plot(
            _SIZES, seconds, color=PALETTE[number % len(PALETTE)], marker=MARKERS[number % len(MARKERS)],
            markevery=3, markersize=5, linewidth=1.8, linestyle="-" if measured else "--",
            label=f"{name}, {ranks} cards: {time_words(here)}{'' if measured else ' (by rule)'}",
        )  # fmt: skip
    ax.axvline(at, color=GREY, linestyle=":", linewidth=1.2)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = _SIZES[::3]
    ax.set_xticks(ticks, [size_words(size) for size in ticks])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda seconds, _: time_words(seconds))
    ax.grid(True, which="major", color="#E5E5E5", linewidth=0.6)
    legend = ax.legend(
        frameon=False,
        fontsize=8.5,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        title=f"at {size_words(at)}",
    )
    legend.get_title().set_color(BLACK)
    return fig


def _link(name: str, machines: int) -> tuple[Link, int]:
    """The link of all cards of `machines` machines, and how many cards these are."""
    ranks = machines * instance(name).gpus
    if ranks < 2:
        raise UserError(f"machines = {machines} of {name}: one card has nobody to talk to; give 2 or more")
    return network(name).link(ranks, machines), ranks
