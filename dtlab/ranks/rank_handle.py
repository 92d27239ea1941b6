"""What the launcher holds of one rank: its process, its line, its output, and what is known of its end."""

import os
import socket
from pathlib import Path
from typing import Any

from dtlab.ranks import channel, crash, processes
from dtlab.ranks.output import RankOutput
from dtlab.ranks.rank_state import RankState
from dtlab.ranks.report import RankReport, report_of


class Rank:
    """What the launcher holds of one rank."""

    def __init__(self, rank: int, path: Path, echo: bool) -> None:
        self.rank = rank
        self.output = RankOutput(rank, path, echo)
        self.inbox = channel.Inbox()
        self.process: processes.RankProcess | None = None
        self.control, self.far_control = socket.socketpair()
        self.pipe, self.far_pipe = os.pipe()
        self.far_lifeline, self.lifeline = os.pipe()
        self.control.setblocking(False)
        os.set_blocking(self.pipe, False)
        processes.hold(self.lifeline)
        self.started = False
        self.returned_at: float | None = None
        self.released = False
        self.seconds = 0.0
        self.result: bytes | None = None
        self.failure: dict[str, Any] | None = None
        self.gone_at: float | None = None
        self.state: RankState | None = None
        self.stopped = False  # by us, so its exit code says nothing

    @property
    def gone(self) -> bool:
        return self.gone_at is not None

    @property
    def failed_at(self) -> float | None:
        if self.failure is not None:
            return float(self.failure["time"])
        return self.gone_at if self.returned_at is None and not self.stopped else None

    def close_far_ends(self) -> None:
        self.far_control.close()
        for name in ("far_pipe", "far_lifeline"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def close(self) -> None:
        self.close_far_ends()
        self.control.close()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        processes.release(self.lifeline)
        if self.process is not None:
            self.process.close()
        self.output.close()

    def report(self) -> RankReport:
        code = self.process.exit_code if self.process is not None else None
        if self.returned_at is not None:
            return RankReport(self.rank, "returned", exit_code=code)
        if self.failure is not None and not self.stopped:
            return report_of(self.rank, self.failure, code)
        if self.stopped or not self.gone:
            outcome = "stopped" if self.started else "starting"
            return RankReport(self.rank, outcome, exit_code=code, state=self.state)
        dump = crash.read(self.output.tail())
        return RankReport(
            self.rank,
            "killed" if code is not None and code < 0 else "exited",
            exit_code=code,
            time=self.gone_at or 0.0,
            frames=dump.frames,
            last_output=tuple(dump.before[-8:]),
        )
