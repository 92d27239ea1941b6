"""One run of all ranks: starts them, carries their output, waits, and ends every process whatever happens.

- It runs in the thread that called launch, without an event loop of its own kind: prints reach the right
  cell, and Ctrl-C interrupts it.
- All returned: the ranks are released and leave together. One returned early: who waits for it in
  ``dtlab.world()`` is told at once. It is released after ``EARLY_SECONDS``, so that a peer that waits for it
  in a collective fails at once instead of never; who waits to make a process group with it is looked for.
- One failed: the others get a moment to report what it did to them, are asked what they are doing, and
  stopped.
- Timeout or Ctrl-C: asked, then SIGINT, SIGTERM, SIGKILL within seconds. Ranks that all wait in a collective
  cannot hear SIGINT: they do not get the second in which others clean up.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dtlab.ranks import asking, channel, crash, late, processes, stores
from dtlab.ranks.rank_handle import Rank
from dtlab.ranks.report import RankReport
from dtlab.ranks.stop_requests import StopRequests
from dtlab.ranks.worker import Descriptors

EARLY_SECONDS = 5.0
LEAVE_SECONDS = 30.0  # for exit handlers of ranks that have returned
_REPORT_SECONDS = 0.25  # after a failure, for the reports of the others
_CAUSE_SECONDS = 1.0  # when so far ranks only gave up on a peer, for the report of that one
_CLOSED_SECONDS = 5.0  # when its connection was closed, and for those that wait for it: they will tell
_ASK_SECONDS = 0.5  # for the answers of survivors of a failure
_ASK_LATE_SECONDS = 2.0  # at a timeout the answers are all there is to tell
START_SECONDS = 120.0  # until every rank runs its function; loaded machines import torch slowly
_POLL_SECONDS = 0.02  # where the system gives no descriptor for a process

ON_FAILURE = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 2.0))
ON_INTERRUPT = ((signal.SIGINT, 1.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0))
ON_DEADLOCK = ((signal.SIGINT, 0.1), *ON_INTERRUPT[1:])

Start = Callable[[int, Descriptors, Sequence[int]], processes.RankProcess]


class Run:
    """One attempt. Use as a context manager: leaving it ends and closes everything."""

    def __init__(
        self,
        world_size: int,
        folder: Path,
        echo: bool,
        store: Any,
        job: str,
        requests: StopRequests | None = None,
    ) -> None:
        self.requests = requests or StopRequests(None)
        self.job = job
        self._handed_on = False
        self.folder = folder
        self.store = store
        self.timed_out = False
        self.joins_in_vain = False
        """Ranks wait to make a process group with one that has returned."""
        self.grace_is_over = False
        """Ranks still ran at the end of the time that a stop request gave them."""
        self.seconds = 0.0
        self._all_started_at: float | None = None
        self.ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._echo = echo
        self._world_size = world_size

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process is None:  # starting it failed
                rank.gone_at = time.monotonic()
        try:
            if any(not rank.gone for rank in self.ranks):
                self.stop(ON_INTERRUPT)
        finally:
            for rank in self.ranks:
                rank.close()
            self._selector.close()

    def start(self, call: int, start: Start) -> None:
        """Start every rank; ``call`` is the descriptor of the packed function."""
        if self.requests.is_armed:
            self._selector.register(self.requests, selectors.EVENT_READ, (None, self.requests.drain))
        for number in range(self._world_size):
            rank = Rank(number, self.folder / f"rank{number}.log", self._echo)
            self.ranks.append(rank)
            fds = Descriptors(call, rank.far_control.fileno(), rank.far_pipe, rank.far_lifeline)
            ours = [fd for r in self.ranks for fd in (r.control.fileno(), r.pipe)]
            rank.process = start(number, fds, ours)
            rank.close_far_ends()
            self._selector.register(rank.control, selectors.EVENT_READ, (rank, self._read_control))
            self._selector.register(rank.pipe, selectors.EVENT_READ, (rank, self._read_output))
            fd = rank.process.fileno()
            if fd is not None:
                self._selector.register(fd, selectors.EVENT_READ, (rank, self._read_status))

    def wait(self, timeout: float | None) -> None:
        """Until all ranks are gone: of their own accord, or stopped after a failure or a timeout.

        ``timeout`` counts from the moment when every rank has started its function.
        """
        begin = time.monotonic()
        try:
            self._wait(timeout)
        finally:
            self.seconds = time.monotonic() - (self._all_started_at or begin)

    def _wait(self, timeout: float | None) -> None:
        deadline = time.monotonic() + START_SECONDS
        failed_at: float | None = None
        leave_by: float | None = None
        look_at: float | None = None
        asked = False
        joining: set[int] = set()
        while any(not rank.gone for rank in self.ranks):
            self._turn(self._pause(deadline, failed_at is not None or leave_by is not None))
            now = time.monotonic()
            if self.requests.received is not None and self._end_in_grace(now):
                return
            failures = [rank for rank in self.ranks if rank.failed_at is not None]
            if failures:
                failed_at = failed_at or now
                if not asked and now >= failed_at + self._patience(failures):
                    self._ask(_ASK_SECONDS)
                    asked = True
                if asked and (now >= failed_at + _CLOSED_SECONDS or not any(map(_will_fail, self.ranks))):
                    self.stop(ON_FAILURE)
                    return
            elif all(rank.returned_at is not None for rank in self.ranks):
                leave_by = leave_by or now + LEAVE_SECONDS
                for rank in self.ranks:
                    self._release(rank)
                if now >= leave_by:
                    self.stop(ON_FAILURE)
                    return
            else:
                for rank in self.ranks:
                    if rank.returned_at is not None and now >= rank.returned_at + EARLY_SECONDS:
                        self._release(rank)
                        look_at = look_at or now
                if look_at is not None and now >= look_at:
                    look_at = now + EARLY_SECONDS
                    # Twice: the first time they may just be late.
                    self._ask(_ASK_SECONDS)
                    joining, before = asking.joining(self.ranks), joining
                    if joining & before:
                        self.joins_in_vain = True
                        self.stop(ON_FAILURE)
                        return
                if self._all_started_at is None and all(rank.started for rank in self.ranks):
                    self._all_started_at = now
                    deadline = now + timeout if timeout is not None else math.inf
                if now >= deadline:
                    self.timed_out = True
                    self._ask(_ASK_LATE_SECONDS)
                    self.stop(ON_DEADLOCK if asking.deadlocked(self.ranks) else ON_INTERRUPT)
                    return

    def _patience(self, failures: Sequence[Rank]) -> float:
        """Seconds from the first failure to the end of the others."""
        lost = [rank.failure for rank in failures if rank.failure is not None and rank.failure["lost_peer"]]
        if len(lost) < len(failures):
            return _REPORT_SECONDS
        unheard = any(rank.failed_at is None and rank.returned_at is None for rank in self.ranks)
        closed = any(late.is_about_a_closed_connection(failure["message"]) for failure in lost)
        return _CLOSED_SECONDS if unheard and closed else _CAUSE_SECONDS

    def _end_in_grace(self, now: float) -> bool:
        """Hand the signal on to the ranks, to each one's own process only; True when their time is over."""
        if not self._handed_on and all(rank.started or rank.gone for rank in self.ranks):
            self._handed_on = True
            for rank in self.ranks:
                pid = rank.process.pid if rank.process is not None else None
                if not rank.gone and rank.returned_at is None and pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, self.requests.received or signal.SIGTERM)
        if now < self.requests.deadline:
            return False
        self.grace_is_over = True
        self._ask(_ASK_SECONDS)
        self.stop(ON_INTERRUPT)
        return True

    def stop(self, steps: Sequence[tuple[signal.Signals, float]]) -> None:
        """End every rank that still runs, and whatever the ranks started."""
        strays = processes.descendants(rank.process for rank in self.ranks if rank.process is not None)
        for rank in self.ranks:
            # What a rank says after it was told to stop is about the stopping.
            rank.stopped = rank.stopped or (not rank.gone and rank.failure is None)
        try:
            for number, grace in steps:
                until = time.monotonic() + grace
                self._signal(number)
                while any(not rank.gone for rank in self.ranks) and time.monotonic() < until:
                    self._turn(min(0.05, max(0.0, until - time.monotonic())))
                if all(rank.gone for rank in self.ranks):
                    break
        except BaseException:  # a second Ctrl-C: no more patience
            self._signal(signal.SIGKILL)
            raise
        finally:
            for stray in strays:
                with contextlib.suppress(Exception):
                    stray.kill()

    def reports(self) -> list[RankReport]:
        return [rank.report() for rank in self.ranks]

    def _pause(self, deadline: float, ending: bool) -> float:
        """How long to sleep at most when nothing is heard."""
        waits = [deadline - time.monotonic()]
        waits.append(self.requests.deadline - time.monotonic())
        waits.append(0.25 if any(rank.returned_at is not None for rank in self.ranks) else 5.0)
        if ending:
            waits.append(0.02)
        for rank in self.ranks:
            if rank.process is not None and not rank.gone and rank.process.fileno() is None:
                waits.append(_POLL_SECONDS)
        return max(0.0, min(waits))

    def _turn(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            rank, read = key.data
            read(rank)
        for rank in self.ranks:
            if not rank.gone and rank.process is not None and rank.process.fileno() is None:
                self._read_status(rank)

    def _read_control(self, rank: Rank) -> None:
        while True:
            try:
                data = rank.control.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._forget(rank.control)
                return
            for tag, body in rank.inbox.feed(data):
                if tag == channel.STARTED:
                    rank.started = True
                elif tag == channel.RETURNED:
                    rank.seconds, rank.result = channel.split_result(body)
                    rank.returned_at = time.monotonic()
                    self._say_returned(rank)
                elif tag == channel.FAILED:
                    rank.failure = json.loads(body)

    def _read_output(self, rank: Rank) -> None:
        for _ in range(64):  # then let the others have their turn
            try:
                data = os.read(rank.pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._forget(rank.pipe)
                return
            rank.output.feed(data)

    def _read_status(self, rank: Rank) -> None:
        assert rank.process is not None
        if rank.gone or rank.process.poll() is None:
            return
        fd = rank.process.fileno()
        if fd is not None:
            self._forget(fd)
        # Loader workers and whatever else it started end with it.
        rank.process.send(signal.SIGKILL)
        self._read_control(rank)
        self._read_output(rank)
        rank.output.feed(crash.told(self.folder / f"rank{rank.rank}.crash"))
        rank.output.close()
        rank.gone_at = time.monotonic()

    def _forget(self, file: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            if not rank.gone and rank.process is not None:
                if number == signal.SIGKILL:
                    # also reaches a rank that is not forked yet: it finds its lifeline closed
                    processes.release(rank.lifeline)
                rank.process.send(number)

    def _release(self, rank: Rank) -> None:
        if not rank.released:
            rank.released = True
            with contextlib.suppress(OSError):
                rank.control.send(channel.RELEASE)

    def _say_returned(self, rank: Rank) -> None:
        """To ranks that meet in ``dtlab.world()``; those that have left it hear nothing."""
        stores.say_ended(
            self.store,
            self.job,
            rank.rank,
            f"rank {rank.rank} of {self._world_size} returned without joining, and others wait for it in "
            "dtlab.world(). Fix: every rank joins, also one that has nothing to do",
        )

    def _ask(self, timeout: float) -> None:
        """Ask the ranks that still run for their last operation, before they are stopped."""
        asking.ask(self.ranks, self.store, self.folder, timeout, lambda: self._turn(0.2))


def _will_fail(rank: Rank) -> bool:
    """Whether a rank will notice by itself that another failed: it waits for it, or is too busy to answer."""
    if rank.gone or rank.failed_at is not None or rank.returned_at is not None or not rank.started:
        return False
    return rank.state is None or (rank.state.waits and rank.state.sequence is not None)
