"""Lanes of ranks with their last operation: who is late (lesson 12).

``lanes_figure`` draws what ranks really recorded: a box for every collective that a rank has started on the
default group, and a gap where others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.figures.style import BLUE, ORANGE, RED, new_figure
from dtlab.ranks.explain import explain
from dtlab.ranks.rank_state import DEFAULT_GROUP, RankState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLLECTIVES = 12  # more boxes than this leave no room for their numbers


def lanes_figure(runs: Mapping[str, Sequence[RankState | None]]) -> Figure:
    """A panel for each run, a lane for each rank, a box for each collective that it started.

    - ``runs``: name -> one state per rank, in rank order, as ``RankError.reports`` and the recorder give
      them. A rank that gave no state has an empty lane.
    - Only the last 12 collectives are drawn. ValueError without a run, or for a run without ranks.

    >>> figure = lanes_figure({"a run": [RankState(0, "barrier", 1, False, groups={"0": 1}), RankState(1)]})
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['a run: rank 1 is late']
    """
    if not runs or not all(runs.values()):
        raise ValueError("give at least one run, each with one state per rank")
    lanes = sum(len(states) + 1 for states in runs.values())
    fig, panels = new_figure(
        "The rank to look at is the one with the gap, or the one in another operation",
        alt=" ".join(f"{name}: {_words(states)}" for name, states in runs.items()),
        rows=len(runs),
        size=(9.0, 1.0 + 0.48 * lanes),
        squeeze=False,
        gridspec_kw={"height_ratios": [len(states) + 0.5 for states in runs.values()]},
    )
    for axes, (name, states) in zip(panels.flat, runs.items(), strict=True):
        _panel(axes, name, states)
    panels.flat[-1].set_xlabel("collectives of the default group, in the order in which a rank starts them")
    _legend(fig)
    return fig


def finding(states: Sequence[RankState | None]) -> str:
    """Who is late, in a few words; else what the ranks disagree on.

    >>> finding([RankState(0, "send", None, False), RankState(1, "send", None, False)])
    'every rank waits for another'
    """
    told = explain(states)
    if told.late:
        word = "rank" if len(told.late) == 1 else "ranks"
        return f"{word} {', '.join(map(str, told.late))} {'is' if len(told.late) == 1 else 'are'} late"
    return told.text.split(";")[0].replace("the ranks", "ranks")


def _reached(state: RankState | None) -> int:
    return state.groups.get(DEFAULT_GROUP, 0) if state is not None else 0


def _stand(state: RankState | None) -> tuple[str, str]:
    """What the rank is in, and where its own code stands."""
    if state is None:
        return "no answer", ""
    doing = f"waits in {state.what()}" if state.waits else f"last: {state.what()}"
    return doing, state.where().split(": ")[0]


def _words(states: Sequence[RankState | None]) -> str:
    told = []
    for rank, state in enumerate(states):
        doing, where = _stand(state)
        told.append(f"rank {rank} {doing}" + (f" at {where}" if where else ""))
    return f"{finding(states)} ({'; '.join(told)})."


def _panel(axes: Any, name: str, states: Sequence[RankState | None]) -> None:
    from matplotlib.patches import Rectangle

    furthest = max(1, max(map(_reached, states)))
    first = max(1, furthest - MOST_COLLECTIVES + 1)
    for rank, state in enumerate(states):
        reached = _reached(state)
        waits = state is not None and state.waits and state.group == DEFAULT_GROUP
        for number in range(first, furthest + 1):
            look: dict[str, Any]
            if number > reached:
                look = {"facecolor": "white", "edgecolor": RED, "linestyle": "--", "linewidth": 1.6}
            elif waits and number == reached and state is not None and state.sequence == number:
                look = {"facecolor": ORANGE, "edgecolor": "white", "hatch": "//"}
            else:
                look = {"facecolor": BLUE, "edgecolor": "white"}
            axes.add_patch(Rectangle((number - 0.44, rank - 0.36), 0.88, 0.72, **look))
            axes.text(
                number, rank, "missing" if number > reached else f"#{number}", ha="center", va="center",
                fontsize=8, color="white" if look["facecolor"] == BLUE else "black",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in look else None,
            )  # fmt: skip
        doing, where = _stand(state)
        axes.text(furthest + 0.6, rank, doing, va="bottom" if where else "center", fontsize=9)
        if where:
            axes.text(furthest + 0.6, rank + 0.04, f"at {where}", va="top", fontsize=8, color="#444444")
    axes.set_title(f"{name}: {finding(states)}", loc="left", fontsize=10)
    axes.set_xlim(first - 0.6, furthest + 0.6 + max(2.5, 0.75 * (furthest - first + 1)))
    axes.set_ylim(len(states) - 0.5, -0.6)
    axes.set_yticks(range(len(states)), [f"rank {rank}" for rank in range(len(states))])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _legend(fig: Figure) -> None:
    from matplotlib.patches import Patch

    fig.legend(
        handles=[
            Patch(facecolor=BLUE, label="over"),
            Patch(facecolor=ORANGE, hatch="//", edgecolor="white", label="started, waits for others"),
            Patch(
                facecolor="white", edgecolor=RED, linestyle="--", label="others are here, this rank is not"
            ),
        ],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
