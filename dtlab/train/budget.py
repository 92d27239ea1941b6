"""A limit in seconds and in dollars, after which a run saves its state and stops (lesson 13).

It is the hard stop that a budget alarm is not: an alarm's figures are hours old. Dollars come from the price
catalogue, per started second of every instance; what was spent before a restart counts.
"""

from __future__ import annotations

import time

from dtlab.cost import billing, catalogue

__all__ = ["Budget"]


class Budget:
    """Seconds and dollars since the start of a run.

    Args:
        max_seconds: None for no limit.
        max_usd: None for no limit.
        instance: instance type of every host.
        count: hosts.
        spent_seconds: what earlier attempts of this run took.

    >>> Budget(max_seconds=3600, instance="ml.g4dn.12xlarge").reason() is None
    True
    """

    def __init__(
        self,
        max_seconds: float | None = None,
        max_usd: float | None = None,
        *,
        instance: str,
        count: int = 1,
        spent_seconds: float = 0.0,
    ) -> None:
        self.max_seconds, self.max_usd = max_seconds, max_usd
        # Looked up once: a price file that changes does not move the limit of a run that has begun.
        self._instance, self._count = catalogue.instance(instance), count
        self.spent_seconds = spent_seconds
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Spent so far, earlier attempts included."""
        return self.spent_seconds + time.monotonic() - self._start

    def reason(self) -> str | None:
        """Why the run must stop, or None."""
        seconds = self.seconds
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return f"budget: {seconds:.0f} s of stopping.max_seconds = {self.max_seconds:g} used"
        if self.max_usd is not None:
            usd = billing.cost(self._instance, seconds, count=self._count).usd
            if usd >= self.max_usd:
                return f"budget: ${usd:.2f} of stopping.max_usd = {self.max_usd:g} spent"
        return None

    def is_spent(self) -> bool:
        """Whether a limit is reached."""
        return (self.max_seconds is not None or self.max_usd is not None) and self.reason() is not None
