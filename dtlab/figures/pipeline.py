"""A pipeline step drawn: ranks by time with the bubble hatched, and below it what they hold (lesson 08).

``pipeline_figure`` takes a ``PipelineTimeline``, simulated or recorded on ranks; ``schedule_figure`` a name
and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dtlab.errors import UserError
from dtlab.figures.style import BLUE, GREEN, GREY, MARKERS, ORANGE, PALETTE, SKY, new_figure
from dtlab.parallel.actions import Kind
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.simulate import PipelineTimeline, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {
    Kind.FORWARD: (BLUE, "", "forward"),
    Kind.BACKWARD: (ORANGE, "..", "backward"),
    Kind.BACKWARD_INPUT: (SKY, "..", "backward, gradient of the input"),
    Kind.BACKWARD_WEIGHT: (GREEN, "xx", "backward, gradients of the weights"),
}
ROOM_OF_A_DIGIT = 0.008  # share of the panel's width; a box without room stays without its number
MOST_IN_WORDS = 40


def pipeline_figure(
    timelines: PipelineTimeline | Mapping[str, PipelineTimeline],
    *,
    unit: str = "",
    until: float | None = None,
) -> Figure:
    """Two panels for each timeline: ranks x time, and the live activations of each rank over time.

    Args:
        timelines: one, or name -> timeline, drawn below each other on one time axis.
        unit: of time, for the axis; "" for times in units of one forward.
        until: draw only what had started by then (an animation calls it with growing times).

    A box is one stage and one micro-batch and has its number; with several stages on a rank the number of the
    stage stands before it. The bubble is hatched. ValueError without a timeline.

    >>> from dtlab.parallel.schedules import gpipe
    >>> from dtlab.parallel.simulate import simulate
    >>> figure = pipeline_figure(simulate(gpipe(2, 4)))
    >>> figure.axes[0].get_title(loc="left")
    'gpipe: bubble 20.0 %, at most 4 activations on a rank'
    """
    if isinstance(timelines, PipelineTimeline):
        timelines = {timelines.name: timelines}
    if not timelines:
        raise ValueError("give at least one timeline")
    longest = max(timeline.makespan for timeline in timelines.values())
    heights = [h for t in timelines.values() for h in (0.9 + 0.42 * len(t.ranks), 1.5)]
    fig, grid = new_figure(
        "The bubble is time in which a rank waits for its neighbours",
        alt=" ".join(
            f"{name}: {finding(timeline)}. {_words(timeline)}" for name, timeline in timelines.items()
        ),
        rows=2 * len(timelines),
        size=(9.0, 0.8 + sum(heights)),
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": heights},
    )
    panels = list(grid.flat)
    kinds: dict[Kind, None] = {}
    for (name, timeline), lanes, below in zip(timelines.items(), panels[::2], panels[1::2], strict=True):
        kinds |= dict.fromkeys(span.action.kind for spans in timeline.ranks for span in spans)
        _lanes(lanes, timeline, until, longest)
        lanes.set_title(f"{name}: {finding(timeline)}", loc="left", fontsize=10)
        _live(below, timeline, until)
    panels[0].set_xlim(-0.01 * longest, 1.01 * longest)
    panels[-1].set_xlabel(f"time ({unit or 'a forward takes 1'})")
    _legend(fig, [kind for kind in Kind if kind in kinds])
    return fig


def schedule_figure(schedule: str = "1f1b", stages: int = 4, micro_batches: int = 8) -> Figure:
    """A schedule by name on a simulated clock, with a backward of two forwards: what the explorer draws.

    Args:
        schedule: "gpipe", "1f1b", "interleaved" and "zbv" (2 stages a rank) or "zero_bubble".
        stages: ranks of the pipeline, p.
        micro_batches: of one step, m.

    Numbers that the schedule cannot be built for give a figure that says why.

    >>> schedule_figure("gpipe", 2, 4).axes[0].get_title(loc="left")
    'gpipe: bubble 20.0 %, at most 4 activations on a rank'
    """
    try:
        timeline = simulate(build_schedule(schedule, stages, micro_batches))
    except UserError as error:
        return _refused_figure(schedule, str(error))
    return pipeline_figure(timeline)


def _refused_figure(schedule: str, why: str) -> Figure:
    from textwrap import fill

    fig, axes = new_figure(f"{schedule} takes other numbers", alt=why, size=(9.0, 1.6))
    axes.text(0.5, 0.5, fill(why, 90), ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    return fig


def finding(timeline: PipelineTimeline) -> str:
    """Bubble and most live activations, in a few words; one activation is a rank's layers x a micro-batch."""
    most = max(timeline.peak_live)
    stages = len({span.action.stage for span in timeline.ranks[0]})
    held = f"{most}" if stages == 1 else f"{most} / {stages}"  # a stage is 1/v of what a rank holds
    bubble = f"{100 * timeline.bubble_share:.1f} %"
    return f"bubble {bubble}, at most {held} activation{'' if held == '1' else 's'} on a rank"


def _words(timeline: PipelineTimeline) -> str:
    ranks = []
    for rank, spans in enumerate(timeline.ranks):
        order = " ".join(str(span.action) for span in spans[:MOST_IN_WORDS])
        more = " and so on" if len(spans) > MOST_IN_WORDS else ""
        ranks.append(f"rank {rank}: {order}{more}, at most {timeline.peak_live[rank]} alive")
    return f"{'; '.join(ranks)}."


def _lanes(axes: Any, timeline: PipelineTimeline, until: float | None, longest: float) -> None:
    from matplotlib.patches import Rectangle

    num_ranks, origin = len(timeline.ranks), timeline.start
    for rank, spans in enumerate(timeline.ranks):
        end = timeline.makespan if until is None else min(until, timeline.makespan)
        axes.add_patch(
            Rectangle((0, rank - 0.4), end, 0.8, facecolor="white", edgecolor=GREY, hatch="////", linewidth=0)
        )
        several = len({span.action.stage for span in spans}) > 1
        for action, start, stop in spans:
            if until is not None and start - origin >= until:
                break
            colour, hatch, _ = LOOKS[action.kind]
            axes.add_patch(
                Rectangle(
                    (start - origin, rank - 0.4), stop - start, 0.8, facecolor=colour, hatch=hatch,
                    edgecolor="white", linewidth=0.8,
                )
            )  # fmt: skip
            text = f"{action.stage}.{action.micro_batch}" if several else str(action.micro_batch)
            if stop - start > ROOM_OF_A_DIGIT * len(text) * longest:
                axes.text(
                    (start + stop) / 2 - origin, rank, text, ha="center", va="center", fontsize=7,
                    color="white" if action.kind is Kind.FORWARD else "black", clip_on=True,
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8},
                )  # fmt: skip
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _live(axes: Any, timeline: PipelineTimeline, until: float | None) -> None:
    origin, last = timeline.start, timeline.start + timeline.makespan
    for rank in range(len(timeline.ranks)):
        steps = [step for step in timeline.live(rank) if until is None or step[0] - origin <= until]
        end = last if until is None else min(last, origin + until)
        axes.step(
            [time - origin for time, _ in [*steps, (end, 0)]],
            [alive for _, alive in [*steps, steps[-1]]],
            where="post", label=f"rank {rank}", color=PALETTE[rank % 7], marker=MARKERS[rank % 8],
            markersize=3, linewidth=1.2,
        )  # fmt: skip
    most = max(timeline.peak_live)
    axes.set_ylim(0, most + 0.6)
    axes.set_yticks(range(0, most + 1, max(1, most // 4)))
    axes.set_ylabel("alive (stages)", fontsize=8)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")


def _legend(fig: Figure, kinds: list[Kind]) -> None:
    from matplotlib.patches import Patch

    looks = [LOOKS[kind] for kind in kinds]
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label) for colour, hatch, label in looks
    ]
    handles.append(Patch(facecolor="white", edgecolor=GREY, hatch="////", label="bubble"))
    fig.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=9)
