"""How busy are the ranks of a pipeline, and how busy are they on paper?

A chain of equal matrix multiplications is cut into stages, and each order of micro-batches runs on 2 and on 4
real ranks, one thread each. A row per run; a share is the mean over the ranks, 1 less the bubble:

[schedule, ranks, stages, micro_batches, busy_measured, busy_replayed, busy_simulated, busy_formula]

- busy_measured: wall clock, time in stages over the time of the step. On more ranks than cores it says
  little: ranks take turns on a core, and a rank that waits for its turn inside a stage counts as busy.
- busy_replayed: each action timed by the CPU time of its own thread, which other ranks do not lengthen, and
  started when what it needs is there: a card for each rank, and messages that cost nothing.
- busy_simulated: the schedule on paper with each stage's mean CPU time.
- busy_formula: stages that are all equal. The first one here has no gradient of its input to compute.

Wall clock needs a machine without other work: `python -m benchmarks.pipeline`, three minutes on two cores.
`--small` tries it out in a few seconds.
"""

import os
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

import dtlab
from benchmarks.common import machine, report, say, wants_json
from dtlab.cost.pipeline import bubble_share
from dtlab.parallel.actions import Schedule
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.simulate import PipelineTimeline, mean_durations, replay, simulate
from dtlab.parallel.split import split

NAMES = (
    "schedule", "ranks", "stages", "micro_batches", "busy_measured", "busy_replayed", "busy_simulated",
    "busy_formula",
)  # fmt: skip
BLOCKS = 16
"""Cut evenly by 2, 4 and 8 stages."""


def chain(width: int) -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(BLOCKS)))


def timelines(schedule: Schedule, width: int, rows: int, steps: int) -> list[list[PipelineTimeline]]:
    """On each rank: the steps by the wall clock, and the steps by CPU time, taken in turn."""
    torch.set_num_threads(1)
    loss = nn.MSELoss(reduction="sum")
    same = torch.Generator().manual_seed(0)  # the ranks of a pipeline get one batch
    inputs = torch.randn(rows * schedule.num_micro_batches, width, generator=same)
    with dtlab.world():
        pipes = [
            pipeline(split(chain(width), schedule.num_stages), schedule, loss, clock=clock)
            for clock in (time.perf_counter, time.thread_time)
        ]
        found: list[list[PipelineTimeline]] = [[], []]
        for step in range(steps + 1):
            for pipe, lines in zip(pipes, found, strict=True):
                pipe.step(inputs, inputs)
                if step:  # the first one warms up
                    lines.append(pipe.timeline())
        return found


def row(schedule: Schedule, by_wall: list[PipelineTimeline], by_cpu: list[PipelineTimeline]) -> list[Any]:
    """The columns of NAMES, each share the median of the steps."""

    def busy(lines: list[PipelineTimeline]) -> float:
        return statistics.median(1 - line.bubble_share for line in lines)

    means: list[dict[str, Any]] = [mean_durations(line) for line in by_cpu]
    p, m, v = schedule.num_ranks, schedule.num_micro_batches, schedule.stages_per_rank
    return [
        schedule.name,
        p,
        schedule.num_stages,
        m,
        busy(by_wall),
        busy([replay(schedule, line) for line in by_cpu]),
        busy([simulate(schedule, **durations) for durations in means]),
        1 - bubble_share(p, m, v),
    ]


def main() -> None:
    small = "--small" in sys.argv[1:]
    width, rows, steps = (128, 64, 2) if small else (512, 256, 9)
    table = []
    for p in (2, 4):
        for name in ("gpipe", "1f1b", "interleaved"):
            for m in (p, 4 * p):
                schedule = build_schedule(name, p, m)
                lines = dtlab.launch(timelines, p, schedule, width, rows, steps, timeout=300, echo=False)[0]
                table.append(row(schedule, *lines))
                say(f"  {table[-1]}")
    if wants_json():
        report(
            "",
            {
                f"{name}_{p}_ranks_{m}_micro_batches_{column}": value
                for name, p, _, m, *shares in table
                for column, value in zip(NAMES[4:], shares, strict=True)
            },
        )
        return
    print("".join(f"{name:>15}" for name in NAMES))
    for values in table:
        print("".join(f"{f'{v:.1%}' if isinstance(v, float) else v:>15}" for v in values))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 4:
        print(f"4 ranks on {cores} cores: busy_measured says little there, read busy_replayed")
    print(f"machine: {machine()}")


if __name__ == "__main__":
    main()
