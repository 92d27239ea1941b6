"""What a run says of its steps, and what is said of steps not run: values of `run_fit` (lesson 10)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunSteps:
    """What a run says of its steps: seconds of a step, and of communication and of waiting for data in it.

    - `global_batch`: samples of a step over all ranks; `cores`: of each machine, None when it ran on cards.
    - `spread`: how much the readings differ, as a share of the step (half of their middle half).
    - `threads`: that torch used in each rank, where the record says so.
    """

    ranks: int
    global_batch: int
    step_seconds: float
    communication_seconds: float = 0.0
    wait_seconds: float = 0.0
    spread: float = 0.0
    cores: int | None = None
    nodes: int = 1
    threads: int | None = None
    name: str = ""

    @property
    def local_batch(self) -> float:
        return self.global_batch / self.ranks

    @property
    def compute_seconds(self) -> float:
        """Of one rank with a core for itself: without communication, waiting and sharing of cores."""
        alone = max(0.0, self.step_seconds - self.communication_seconds - self.wait_seconds)
        return alone / slowdown(self.ranks, self.nodes, self.cores)


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """Seconds of a step that was not run, in its parts; `error`: see `run_error`."""

    ranks: int
    global_batch: int
    compute_seconds: float
    communication_seconds: float
    wait_seconds: float
    error: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds + self.wait_seconds

    @property
    def samples_per_second(self) -> float:
        return self.global_batch / self.step_seconds


def slowdown(ranks: int, nodes: int, cores: int | None) -> float:
    """How much longer computing takes when ranks share cores; 1 with a card or a core for each.

    >>> slowdown(4, 1, cores=2), slowdown(2, 1, cores=2), slowdown(8, 1, cores=None)
    (2.0, 1.0, 1.0)
    """
    return max(1.0, ranks / nodes / cores) if cores else 1.0


def alike(runs: Sequence[RunSteps]) -> list[RunSteps]:
    """The most runs that have one number of threads a rank and two batches; all where there are none."""
    groups = [[run for run in runs if run.threads == threads] for threads in {run.threads for run in runs}]
    enough = [group for group in groups if len({run.local_batch for run in group}) > 1]
    return max(enough, key=len, default=list(runs))


def mixed(runs: Sequence[RunSteps]) -> bool:
    return len({run.threads for run in alike(runs)}) > 1
