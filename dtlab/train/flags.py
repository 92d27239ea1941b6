"""Facts that one rank learns and all must act on: stop, save now, budget spent, not finite (lesson 13).

- All flags travel together, in one tiny all-reduce, and not in every step: on a CPU it costs a third of a
  millisecond, a tenth or more of a short step. So they travel every k steps, k chosen by all ranks together
  such that k steps last about a second, and at the end of every evaluation and epoch.
- When tokens are counted, their count needs a message in every step anyway: the flags ride along with it.
- A flag that any rank raised is raised for all, at the same step. It stays raised on the rank that raised it
  until it is lowered.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks import agreement

__all__ = ["NAMES", "Flags"]

NAMES = ("stop", "checkpoint", "budget", "not_finite")
_HEAD = 2  # in front of the flags: the count, and the seconds of a step
_MOST_STEPS = 100_000


class Flags:
    """The flags of a run; every rank makes one, and all call :meth:`exchange` at the same steps.

    Args:
        seconds: about how long it may take until all know.
        group: the ranks that decide together; default: all.

    >>> flags = Flags()
    >>> flags.exchange()
    frozenset()
    >>> flags.watch("budget", lambda: True)
    >>> sorted(flags.exchange())
    ['budget']
    """

    def __init__(self, *, seconds: float = 1.0, group: dist.ProcessGroup | None = None) -> None:
        if not seconds > 0:
            raise UserError(f"seconds = {seconds!r}: must be positive, for example 1.0")
        self.raised: frozenset[str] = frozenset()
        """What the last exchange found on any rank."""
        self.every = 1
        """Steps until the next exchange is due; the same on every rank."""
        self.exchanges = 0
        self.seconds_spent = 0.0
        """Time that exchanges kept this rank, waiting for slower ranks included."""
        self._seconds, self._group = seconds, group
        self._size = agreement.world_size(group)
        self._sources: dict[str, Callable[[], bool]] = {}
        self._own: set[str] = set()
        self._device = agreement.wire_device(group)
        self._work: dist.Work | None = None
        self._mark = time.perf_counter()
        self._steps = 0

    def watch(self, name: str, source: Callable[[], bool]) -> None:
        """Ask ``source`` before each exchange; the flag is raised when it says True.

        Raises:
            UserError: no such flag.
        """
        self._sources[_known(name)] = source

    def raise_(self, name: str) -> None:
        """Raise a flag on this rank; the others learn of it at the next exchange."""
        self._own.add(_known(name))

    def lower(self, name: str) -> None:
        """Take back a flag of this rank."""
        self._own.discard(_known(name))

    def exchange(self, steps: int = 0) -> frozenset[str]:
        """Share the flags now (collective) and return those that any rank raised.

        ``steps``: steps since the last exchange; with them the ranks choose :attr:`every` anew.
        """
        self.start(steps=steps)
        self.finish()
        return self.raised

    def start(self, count: float = 0.0, *, steps: int = 0) -> None:
        """Begin an exchange that :meth:`finish` ends; work done in between hides it."""
        now = time.perf_counter()
        seconds, self._mark, self._steps = now - self._mark, now, steps
        for name, source in self._sources.items():
            if source():
                self._own.add(name)
            else:
                self._own.discard(name)
        numbers = [count, seconds / max(1, steps), *(float(name in self._own) for name in NAMES)]
        self._vector = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        if self._size > 1:
            self._work = dist.all_reduce(self._vector, group=self._group, async_op=True)
        self.seconds_spent += time.perf_counter() - now

    def finish(self) -> float:
        """End the exchange; returns the sum of the ranks' counts."""
        started = time.perf_counter()
        if self._work is not None:
            self._work.wait()
            self._work = None
        count, seconds, *flags = self._vector.tolist()
        self.raised = frozenset(name for name, flag in zip(NAMES, flags, strict=True) if flag)
        if self._steps:
            # A sum is the same bits on every rank, so every rank gets the same k. It at most doubles: the
            # first steps are slower than those to come, and a run that warms up must not miss a signal.
            wanted = int(self._seconds / max(seconds / self._size, 1e-9))
            self.every = max(1, min(wanted, 2 * self.every, _MOST_STEPS))
        self.exchanges += 1
        self.seconds_spent += time.perf_counter() - started
        return float(count)

    def restart(self) -> None:
        """Begin to measure anew, with an exchange after the next step: another kind of step follows."""
        self.every, self._mark = 1, time.perf_counter()


def _known(name: str) -> str:
    if name not in NAMES:
        raise UserError(f"flag {name!r} is unknown; there are {', '.join(NAMES)}")
    return name
