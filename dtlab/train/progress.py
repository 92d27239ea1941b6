"""Progress for people: a bar at a terminal, a line every two seconds from ranks, silence elsewhere.

A run is silent unless somebody watches: stderr is a terminal, or whoever launched the ranks set
``DTLAB_INTERACTIVE=1`` (the command line does, when it runs at a terminal).
"""

from __future__ import annotations

import os
import sys
import time


class Progress:
    """Shows how far ``total`` steps have come; only on the rank that is given ``show=True``."""

    def __init__(self, total: int, label: str, *, show: bool = True, every_seconds: float = 2.0) -> None:
        self._total, self._label, self._every = max(1, total), label, every_seconds
        self._bar = show and sys.stderr.isatty()
        self._lines = show and not self._bar and os.environ.get("DTLAB_INTERACTIVE") == "1"
        self._start = self._last = time.monotonic()
        self.active = self._bar or self._lines
        self._drawn = False

    def update(self, step: int, samples_per_second: float | None = None) -> None:
        if not self.active:
            return
        now = time.monotonic()
        if now - self._last < (0.2 if self._bar else self._every):
            return
        self._last = now
        left = (now - self._start) / max(1, step) * (self._total - step)
        share = step / self._total
        speed = f"  {samples_per_second:,.0f} samples/s" if samples_per_second else ""
        text = f"{self._label}  {share:4.0%}  step {step} of {self._total}{speed}  {left:.0f} s left"
        if self._bar:
            filled = round(24 * share)
            sys.stderr.write(f"\r[{'#' * filled}{'.' * (24 - filled)}] {text}\x1b[K")
            sys.stderr.flush()
            self._drawn = True
        else:
            print(text, flush=True)

    def close(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
