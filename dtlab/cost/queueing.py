"""Jobs that wait for hosts: waiting time against idle dollars (lesson 14).

Jobs arrive at random (Poisson), `jobs_per_hour` on average; a job takes one of at most `hosts` hosts, first
come first served. Two answers:

- `mean_wait_seconds`: the M/M/c formula (Erlang's C, "Solution of some problems in the theory of
  probabilities", 1917; Kleinrock, Queueing Systems I, 1975, section 3.5): hosts are always up, job lengths
  are exponential.
- `simulate_queue`: jobs one by one, with hosts that start when a job needs one, stay for `keep_alive` seconds
  after it and are then given back. There is no closed form with start-up and keep-alive; without them the
  two agree (tested).

A host here is what one job takes: one instance, or a whole cluster of equal size.
"""

import heapq
import math
import random
from dataclasses import dataclass
from typing import Literal

from dtlab.errors import UserError

MOST_KEEP_ALIVE = 21_600  # seconds; SageMaker's warm pools take no more (KeepAlivePeriodInSeconds)


def erlang_c(load: float, hosts: int) -> float:
    """The chance that a job must wait: offered load `a = arrivals x job length` on c hosts, a < c.

    `C = B / (1 - (a/c)(1 - B))` with Erlang's B by `B(k) = a B(k-1) / (k + a B(k-1))`.

    >>> round(erlang_c(2.0, 3), 4)
    0.4444
    """
    _check(load=load)
    _whole(hosts=hosts)
    if load >= hosts:
        raise UserError(
            f"load={load:g} on hosts={hosts}: the queue grows for ever; take {math.floor(load) + 1} or more"
        )
    blocked = 1.0
    for k in range(1, hosts + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked / (1 - load / hosts * (1 - blocked))


def mean_wait_seconds(jobs_per_hour: float, job_seconds: float, hosts: int) -> float:
    """Mean seconds from arrival to start, hosts always up: `C job_seconds / (c - a)`.

    >>> round(mean_wait_seconds(2.0, 3600, 3))
    1600
    """
    _check(jobs_per_hour=jobs_per_hour, job_seconds=job_seconds)
    load = jobs_per_hour * job_seconds / 3600
    return erlang_c(load, hosts) * job_seconds / (hosts - load)


@dataclass(frozen=True)
class QueueDay:
    """What a queue does, on average. Dollars and seconds are per job; shares are of billed host time.

    - `wait_seconds`: from arrival to the first second of work, a start-up included; `late_seconds` is what
      one job in twenty waits at least.
    - `busy_usd`, `start_usd`, `idle_usd`: working, starting, and up without a job.
    """

    jobs: int
    wait_seconds: float
    late_seconds: float
    cold_share: float
    busy_usd: float
    start_usd: float
    idle_usd: float
    most_hosts: int

    @property
    def usd(self) -> float:
        return self.busy_usd + self.start_usd + self.idle_usd

    @property
    def idle_share(self) -> float:
        return self.idle_usd / self.usd if self.usd else 0.0

    def line(self) -> str:
        """One line: waiting, dollars, and the part of them that bought nothing."""
        return (
            f"wait {self.wait_seconds / 60:,.1f} min on average, 1 in 20 over "
            f"{self.late_seconds / 60:,.1f} min; "
            f"${self.usd:,.2f} a job, ${self.idle_usd:,.2f} of it idle ({self.idle_share:.0%}), "
            f"{self.cold_share:.0%} cold starts"
        )


def simulate_queue(
    jobs_per_hour: float,
    job_seconds: float,
    hosts: int,
    *,
    keep_alive_seconds: float = 0.0,
    start_seconds: float = 0.0,
    usd_per_hour: float = 1.0,
    spread: Literal["exponential", "constant"] = "exponential",
    jobs: int = 20_000,
    seed: int = 0,
) -> QueueDay:
    """Draw `jobs` jobs and account for every host second.

    Args:
        hosts: most that are up at once; below it a job that finds no idle host starts one.
        keep_alive_seconds: how long a host stays after its job (at most 6 h, as in SageMaker's warm pools);
            `math.inf`: hosts are up from the first arrival to the end of the last job.
        start_seconds: boot, image and data of a cold host; billed, and the job waits for it.
        usd_per_hour: of one host, on whatever price list.

    Raises:
        UserError: a value out of range, or more work than the hosts can do.

    >>> scale_to_zero = simulate_queue(0.5, 3600, 4, start_seconds=300, usd_per_hour=10, jobs=2000)
    >>> warm = simulate_queue(0.5, 3600, 4, start_seconds=300, usd_per_hour=10, jobs=2000,
    ...                       keep_alive_seconds=3600)
    >>> warm.wait_seconds < scale_to_zero.wait_seconds, warm.idle_usd > scale_to_zero.idle_usd == 0
    (True, True)
    """
    _check(jobs_per_hour=jobs_per_hour, job_seconds=job_seconds, usd_per_hour=usd_per_hour)
    _whole(hosts=hosts, jobs=jobs)
    always = keep_alive_seconds == math.inf
    if not always and not 0 <= keep_alive_seconds <= MOST_KEEP_ALIVE:
        raise UserError(
            f"keep_alive_seconds={keep_alive_seconds!r}: give 0 to {MOST_KEEP_ALIVE}, or math.inf for always"
        )
    if not 0 <= start_seconds < math.inf:
        raise UserError(f"start_seconds={start_seconds!r}: give 0 or more seconds")
    if spread not in ("exponential", "constant"):
        raise UserError(f"spread={spread!r}: use 'exponential' or 'constant'")
    load = jobs_per_hour * job_seconds / 3600
    if load >= hosts:
        raise UserError(
            f"hosts={hosts} for {jobs_per_hour:g} jobs an hour of {job_seconds / 3600:g} h: the queue grows "
            f"for ever; take {math.floor(load) + 1} or more"
        )
    draw = random.Random(seed)
    clock, waits, cold, busy, starting, idle = 0.0, [], 0, 0.0, 0.0, 0.0
    free: list[float] = []  # since when each idle or working host is free, the earliest first
    most = 0
    for _ in range(jobs):
        clock += draw.expovariate(jobs_per_hour / 3600)
        length = draw.expovariate(1 / job_seconds) if spread == "exponential" else job_seconds
        idle_now = sorted(since for since in free if since <= clock)
        warm = [since for since in idle_now if clock - since <= keep_alive_seconds]
        for since in idle_now:
            if clock - since > keep_alive_seconds:
                free.remove(since)
                idle += keep_alive_seconds
        heapq.heapify(free)
        if warm:
            since = warm[-1]  # the one used last, so that the others can be given back
            free.remove(since)
            heapq.heapify(free)
            idle += clock - since
            begin = clock
        elif len(free) < hosts:
            begin = clock + start_seconds
            starting += start_seconds
            cold += 1
        else:
            begin = max(clock, heapq.heappop(free))
        waits.append(begin - clock)
        busy += length
        heapq.heappush(free, begin + length)
        most = max(most, len(free))
    end = max(free)
    idle += sum(end - since if always else keep_alive_seconds for since in free)
    if always:
        idle += (hosts - len(free)) * end
    per = usd_per_hour / 3600 / jobs
    return QueueDay(
        jobs, sum(waits) / jobs, sorted(waits)[math.ceil(0.95 * jobs) - 1], cold / jobs,
        busy * per, starting * per, idle * per, most,
    )  # fmt: skip


def _check(**given: float) -> None:
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise UserError(f"{name}={value!r} is out of range: give a number above 0")


def _whole(**given: int) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name}={value!r}: give a whole number of 1 or more")
