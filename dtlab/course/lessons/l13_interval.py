"""Check of lesson 13's interval: steps between two saves, and the share of time that is lost with them."""

from __future__ import annotations

from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function


class Job(NamedTuple):
    state_bytes: float
    bytes_per_second: float
    interruptions_per_hour: float
    hosts: int
    step_seconds: float
    restart_seconds: float


JOBS = {
    "320M parameters, one host": Job(320e6 * 12, 0.2e9, 0.15, 1, 0.5, 0.0),
    "the same on 4 hosts": Job(320e6 * 12, 0.2e9, 0.15, 4, 0.5, 0.0),
    "the same with restarts of 10 minutes": Job(320e6 * 12, 0.2e9, 0.15, 1, 0.5, 600.0),
    "7B parameters, a fast disk": Job(7e9 * 12, 2e9, 0.05, 2, 7.1, 300.0),
    "a small state and steps of 4 minutes": Job(1e6, 1e9, 1.0, 1, 240.0, 0.0),
}
_LOOK = (
    "save = bytes / bandwidth in seconds; M = 3600 / (rate x hosts) in seconds; sqrt(2 x save x M) seconds "
    "of work, in whole steps, 1 at least"
)


@exercise(
    "13-interval",
    todo="Young: sqrt(2 x save x M) seconds, rounded to steps; then save / tau + (tau / 2 + R) / M",
    hints=(
        "Write down both times in seconds: how long a save takes, and how long it is until any host is "
        "taken. With twice the hosts, is it longer or shorter?",
        "save = state_bytes / bytes_per_second; mtbf = 3600 / (interruptions_per_hour * hosts); steps = "
        "max(1, round(math.sqrt(2 * save * mtbf) / step_seconds)); tau = steps * step_seconds; return steps, "
        "save / tau + (tau / 2 + restart_seconds) / mtbf.",
    ),
    references=("dtlab.cost.spot.young_interval", "dtlab.cost.spot.daly_interval", "dtlab.cost.spot.waste"),
)
def interval(checks: Checks, answer: Any) -> None:
    """Whole steps of five jobs first, then the share lost, then that no other interval loses less."""
    require_function(answer)
    given = {name: _pair(_of(answer, name, job)) for name, job in JOBS.items()}
    for name, job in JOBS.items():
        checks.integer(
            f"{name}: steps between saves", given[name][0], _steps(job), look=_mistake(job, given[name][0])
        )
    checks.equal(
        "share of the time lost, of each job",
        {name: lost for name, (_, lost) in given.items()},
        {name: _lost(job, _steps(job)) for name, job in JOBS.items()},
        tolerance=1e-9,
        look="saving, plus half an interval and a restart for each interruption, with the rounded interval",
    )
    for name, job in JOBS.items():
        steps, lost = given[name]
        if steps > 1:
            others = min(_lost(job, max(1, round(steps * factor))) for factor in (0.5, 0.8, 1.25, 2))
            checks.true(f"{name}: fewer and more steps lose more", lost <= others + 1e-12)


def _of(answer: Any, name: str, job: Job) -> Any:
    """The answer for one job; a division by no steps is told as that."""
    try:
        return answer(*job)
    except ZeroDivisionError as error:
        raise CheckFailed(
            f"{name}: your answer divided by 0. One step takes {job.step_seconds:g} s there, and the best "
            f"interval is {_young_steps(job):.2f} steps, which round to {round(_young_steps(job))}.\n"
            "Where to look: at least one step lies between two saves: max(1, round(...))"
        ) from error


def _steps(job: Job) -> int:
    return max(1, round(_young_steps(job)))


def _young_steps(job: Job) -> float:
    from dtlab.cost import spot

    save = spot.checkpoint_seconds(job.state_bytes, job.bytes_per_second)
    mtbf = spot.mtbf_seconds(job.interruptions_per_hour, job.hosts)
    return spot.young_interval(save, mtbf) / job.step_seconds


def _lost(job: Job, steps: int) -> float:
    from dtlab.cost import spot

    save = spot.checkpoint_seconds(job.state_bytes, job.bytes_per_second)
    mtbf = spot.mtbf_seconds(job.interruptions_per_hour, job.hosts)
    return spot.waste(steps * job.step_seconds, save, mtbf, job.restart_seconds)


def _mistake(job: Job, steps: Any) -> str:
    """What the usual wrong number of steps comes from."""
    right, exact = _steps(job), _young_steps(job)
    if steps == max(1, int(exact)):
        return f"{exact:.2f} steps is nearer to {right}: round(...) goes to the nearest, int(...) cuts off"
    for factor, said in (
        (2**-0.5, "the 2 under the root is missing"),
        (1 / 60, "the rate is per hour: an hour has 3600 seconds"),
        (job.hosts**0.5, "any host's interruption stops the job: M is that of one host over the hosts"),
        (float(job.hosts), "any host's interruption stops the job: M is that of one host over the hosts"),
        (job.step_seconds, "that is seconds; how many steps are they?"),
    ):
        if isinstance(steps, int) and factor != 1 and abs(steps - factor * right) <= 1:
            return said
    return "at least one step lies between two saves" if steps == 0 else _LOOK


def _pair(given: Any) -> tuple[Any, Any]:
    if given is None or given is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if given is None else "..."))
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise CheckFailed(f"got {given!r}: give (steps, share of the time lost).")
    return given[0], given[1]
